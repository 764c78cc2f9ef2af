/* Virtual memory management. Physical memory lives until its handle is released as often as it was retained, no mapping
   of it is left, nothing has it bound, and no other process has it. */
#include "cuda_vmm.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "allocations.h"
#include "charge.h"
#include "cuda_memory.h"
#include "process.h"
#include "shares.h"
#include "usage.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct allocations by_handle = ALLOCATIONS_EMPTY;
static struct allocations by_address = ALLOCATIONS_EMPTY; /* owner NULL: memory that is not charged here */

static void forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    allocations_forget(&by_handle);
    allocations_forget(&by_address);
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

void vmm_lock(void)
{
    process_check();
    pthread_mutex_lock(&mutex);
}

void vmm_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

struct memory *vmm_of_handle(CUmemGenericAllocationHandle handle)
{
    struct allocation entry;
    return allocations_get(&by_handle, handle, &entry) ? entry.owner : NULL;
}

struct memory *vmm_at(CUdeviceptr address)
{
    struct allocation mapping;
    return allocations_holding(&by_address, address, &mapping) ? mapping.owner : NULL;
}

void vmm_drop_unused(struct memory *memory)
{
    struct allocation entry;
    if (memory->handles != 0 || memory->mappings != 0 || memory->bindings != 0)
        return;
    if (memory->unseen)
        return;
    if (memory->share != 0)
        shares_drop(memory->share);
    else if (memory->gpu >= 0 && !memory->elsewhere)
        usage_release(memory->gpu, memory->bytes);
    if (memory->elsewhere && memory->share == 0)
        return; /* others may still have memory bound to it */
    bindings_end(memory);
    for (size_t from = 0; memory->aliased && allocations_take_of(&by_handle, memory, &from, &entry);)
        ;
    free(memory);
}

void vmm_add(CUmemGenericAllocationHandle handle, const struct memory *made)
{
    struct memory *memory = malloc(sizeof *memory);
    if (memory == NULL)
        return; /* its charge stays until this process ends */
    *memory = *made;
    memory->handles = 1;
    if (!allocations_put(&by_handle, (struct allocation){.key = handle, .owner = memory}))
        free(memory);
}

HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                          uint64_t flags)
{
    struct charge charge;
    /* The properties name the device; the current context does not matter. */
    CUdevice device = properties != NULL ? fgpu_device_of_location(&properties->location) : NO_DEVICE;
    int gpu = device != NO_DEVICE ? fgpu_gpu_of_device(device) : NOT_LIMITED;
    CUresult result = charge_begin(&charge, gpu, (bytes + MEMORY_GRAIN - 1) / MEMORY_GRAIN * MEMORY_GRAIN);
    if (result == CUDA_SUCCESS) {
        do
            result = REAL(cuMemCreate)(handle, bytes, properties, flags);
        while (charge_again(&charge, result));
        charge_end(&charge, result);
    }
    if (result == CUDA_SUCCESS && gpu >= 0) {
        vmm_lock();
        vmm_add(*handle, &(struct memory){.bytes = charge.bytes, .gpu = gpu});
        vmm_unlock();
    }
    return result;
}

HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct allocation entry;
    vmm_lock(); /* during the driver's call: once it returns, another thread may get the same handle */
    CUresult result = REAL(cuMemRelease)(handle);
    struct memory *memory = result == CUDA_SUCCESS ? vmm_of_handle(handle) : NULL;
    if (memory != NULL) {
        if (--memory->handles == 0)
            allocations_take(&by_handle, handle, &entry);
        vmm_drop_unused(memory);
    }
    vmm_unlock();
    return result;
}

/* Counts one more handle for known memory. Its value may equal a former one's, or be new. */
static void note_handle(CUmemGenericAllocationHandle handle, struct memory *memory)
{
    struct memory *known = vmm_of_handle(handle);
    if (known == NULL && memory != NULL &&
        allocations_put(&by_handle, (struct allocation){.key = handle, .owner = memory})) {
        known = memory;
        known->aliased = true;
    }
    if (known != NULL)
        known->handles++;
}

HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    vmm_lock();
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        note_handle(*handle, vmm_at((uintptr_t)address));
    vmm_unlock();
    return result;
}

HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                             CUmemAllocationHandleType type)
{
    int descriptor = (int)(intptr_t)shareable;
    vmm_lock();
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result == CUDA_SUCCESS && vmm_of_handle(*handle) != NULL)
        note_handle(*handle, NULL);
    else if (result == CUDA_SUCCESS)
        vmm_add(*handle, &(struct memory){
                             .gpu = NOT_LIMITED,
                             .share = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? shares_import(descriptor) : 0,
                             .elsewhere = true,
                         });
    vmm_unlock();
    return result;
}

HOOK CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type, uint64_t flags)
{
    vmm_lock();
    CUresult result = REAL(cuMemExportToShareableHandle)(shareable, handle, type, flags);
    struct memory *memory = result == CUDA_SUCCESS ? vmm_of_handle(handle) : NULL;
    if (memory != NULL) {
        memory->elsewhere = true;
        if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
            memory->share = shares_export(memory->share, memory->gpu, memory->bytes, *(int *)shareable);
    }
    vmm_unlock();
    return result;
}

/* A range of memory as a descriptor, for a network card for example. Who has it cannot be seen, so the memory stays
   charged until this process ends. */
HOOK CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                            uint64_t flags)
{
    struct allocation linear;
    vmm_lock();
    CUresult result = REAL(cuMemGetHandleForAddressRange)(handle, address, bytes, type, flags);
    struct memory *memory = result == CUDA_SUCCESS ? vmm_at(address) : NULL;
    if (memory != NULL)
        memory->unseen = true;
    else if (result == CUDA_SUCCESS && allocations_holding(&linear_memory, address, &linear)) {
        linear.unseen = true;
        allocations_put(&linear_memory, linear);
    }
    vmm_unlock();
    return result;
}

HOOK CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       uint64_t flags)
{
    vmm_lock();
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        struct memory *memory = vmm_of_handle(handle);
        if (allocations_put(&by_address, (struct allocation){.key = address, .owner = memory, .bytes = bytes}) &&
            memory != NULL)
            memory->mappings++;
    }
    vmm_unlock();
    return result;
}

HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    struct allocation mapping;
    vmm_lock();
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    /* A range may hold several mappings, each of them whole. */
    for (uint64_t at = address; result == CUDA_SUCCESS && at - address < bytes; at += mapping.bytes) {
        if (!allocations_take(&by_address, at, &mapping))
            break;
        struct memory *memory = mapping.owner;
        if (memory != NULL) {
            memory->mappings--;
            vmm_drop_unused(memory);
        }
    }
    vmm_unlock();
    return result;
}
