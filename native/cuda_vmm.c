/* Virtual memory management. Physical memory lives until its handle is released as often as it was retained, and no
   mapping of it is left. */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "allocations.h"
#include "charge.h"
#include "process.h"
#include "usage.h"

struct memory {
    uint64_t bytes;
    int gpu;
    unsigned handles, mappings;
};

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

static void lock(void)
{
    process_check();
    pthread_mutex_lock(&mutex);
}

static void unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static struct memory *of_handle(CUmemGenericAllocationHandle handle)
{
    struct allocation entry;
    return allocations_get(&by_handle, handle, &entry) ? entry.owner : NULL;
}

static void drop_unused(struct memory *memory)
{
    if (memory->handles == 0 && memory->mappings == 0) {
        usage_release(memory->gpu, memory->bytes);
        free(memory);
    }
}

HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                          uint64_t flags)
{
    struct charge charge;
    /* The properties name the device; the current context does not matter. */
    CUdevice device = properties != NULL ? fgpu_device_of_location(&properties->location) : NO_DEVICE;
    int gpu = device != NO_DEVICE ? fgpu_gpu_of_device(device) : NOT_LIMITED;
    struct memory *memory = gpu >= 0 ? malloc(sizeof *memory) : NULL;
    if (gpu >= 0 && memory == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = charge_begin(&charge, gpu, (bytes + MEMORY_GRAIN - 1) / MEMORY_GRAIN * MEMORY_GRAIN);
    if (result == CUDA_SUCCESS) {
        do
            result = REAL(cuMemCreate)(handle, bytes, properties, flags);
        while (charge_again(&charge, result));
        charge_end(&charge, result);
    }
    if (result != CUDA_SUCCESS || memory == NULL) {
        free(memory);
        return result;
    }
    *memory = (struct memory){.bytes = charge.bytes, .gpu = gpu, .handles = 1};
    lock();
    allocations_put(&by_handle, (struct allocation){.key = *handle, .owner = memory});
    unlock();
    return result;
}

HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct allocation entry;
    lock(); /* during the driver's call: once it returns, another thread may get the same handle */
    CUresult result = REAL(cuMemRelease)(handle);
    struct memory *memory = result == CUDA_SUCCESS ? of_handle(handle) : NULL;
    if (memory != NULL) {
        if (--memory->handles == 0)
            allocations_take(&by_handle, handle, &entry);
        drop_unused(memory);
    }
    unlock();
    return result;
}

/* Counts one more handle for known memory. Its value may equal a former one's, or be new. */
static void note_handle(CUmemGenericAllocationHandle handle, struct memory *memory)
{
    struct memory *known = of_handle(handle);
    if (known == NULL && memory != NULL &&
        allocations_put(&by_handle, (struct allocation){.key = handle, .owner = memory}))
        known = memory;
    if (known != NULL)
        known->handles++;
}

HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    struct allocation mapping;
    lock();
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    if (result == CUDA_SUCCESS)
        note_handle(*handle,
                    allocations_holding(&by_address, (uintptr_t)address, &mapping) ? mapping.owner : NULL);
    unlock();
    return result;
}

HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                             CUmemAllocationHandleType type)
{
    lock();
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shareable, type);
    if (result == CUDA_SUCCESS)
        note_handle(*handle, NULL);
    unlock();
    return result;
}

HOOK CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       uint64_t flags)
{
    lock();
    CUresult result = REAL(cuMemMap)(address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        struct memory *memory = of_handle(handle);
        if (allocations_put(&by_address, (struct allocation){.key = address, .owner = memory, .bytes = bytes}) &&
            memory != NULL)
            memory->mappings++;
    }
    unlock();
    return result;
}

HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    struct allocation mapping;
    lock();
    CUresult result = REAL(cuMemUnmap)(address, bytes);
    /* A range may hold several mappings, each of them whole. */
    for (uint64_t at = address; result == CUDA_SUCCESS && at - address < bytes; at += mapping.bytes) {
        if (!allocations_take(&by_address, at, &mapping))
            break;
        struct memory *memory = mapping.owner;
        if (memory != NULL) {
            memory->mappings--;
            drop_unused(memory);
        }
    }
    unlock();
    return result;
}
