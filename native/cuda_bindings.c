/* What keeps memory besides handles and mappings: multicast objects to which it is bound, and arrays into which it is
   mapped. */
#include <stdlib.h>

#include "cuda_vmm.h"
#include "process.h"

struct binding {
    const void *holder;
    uint64_t from, to; /* its place in the holder */
    struct memory *memory;
    struct binding *next;
};

static struct binding *bindings;

static void forget(void)
{
    bindings = NULL;
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

static void bind(const void *holder, uint64_t from, uint64_t to, struct memory *memory)
{
    struct binding *binding = malloc(sizeof *binding);
    if (holder == NULL || memory == NULL) {
        free(binding);
        return;
    }
    memory->bindings++;
    if (binding != NULL) { /* otherwise the memory stays charged until this process ends */
        *binding = (struct binding){holder, from, to, memory, bindings};
        bindings = binding;
    }
}

/* Ends the bindings that lie whole within a range, of memory of one GPU; NOT_LIMITED: of any. */
static void unbind(const void *holder, uint64_t from, uint64_t to, int gpu)
{
    for (struct binding **at = &bindings; *at != NULL;) {
        struct binding *binding = *at;
        if (binding->holder != holder || binding->from < from || binding->to > to ||
            (gpu != NOT_LIMITED && binding->memory->gpu != gpu)) {
            at = &binding->next;
            continue;
        }
        *at = binding->next;
        binding->memory->bindings--;
        vmm_drop_unused(binding->memory);
        free(binding);
        at = &bindings; /* the memory may have been a holder itself */
    }
}

void bindings_end(const void *holder)
{
    unbind(holder, 0, UINT64_MAX, NOT_LIMITED);
}

HOOK CUresult cuMulticastCreate(CUmemGenericAllocationHandle *multicast, const CUmulticastObjectProp *properties)
{
    vmm_lock();
    CUresult result = REAL(cuMulticastCreate)(multicast, properties);
    if (result == CUDA_SUCCESS)
        vmm_add(*multicast, &(struct memory){.gpu = NOT_LIMITED});
    vmm_unlock();
    return result;
}

/* Binds memory, which is found before the call: `found`. */
#define BIND(found, call)                                                                                              \
    do {                                                                                                               \
        vmm_lock();                                                                                                    \
        CUresult result = (call);                                                                                      \
        if (result == CUDA_SUCCESS)                                                                                    \
            bind(vmm_of_handle(multicast), offset, offset + bytes, found);                                             \
        vmm_unlock();                                                                                                  \
        return result;                                                                                                 \
    } while (0)

HOOK CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                                 CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                                 uint64_t flags)
{
    BIND(vmm_of_handle(memory), REAL(cuMulticastBindMem)(multicast, offset, memory, memory_offset, bytes, flags));
}

HOOK CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                                    CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                                    uint64_t flags)
{
    BIND(vmm_of_handle(memory),
         REAL(cuMulticastBindMem_v2)(multicast, device, offset, memory, memory_offset, bytes, flags));
}

HOOK CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address,
                                  size_t bytes, uint64_t flags)
{
    BIND(vmm_at(address), REAL(cuMulticastBindAddr)(multicast, offset, address, bytes, flags));
}

HOOK CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                                     CUdeviceptr address, size_t bytes, uint64_t flags)
{
    BIND(vmm_at(address), REAL(cuMulticastBindAddr_v2)(multicast, device, offset, address, bytes, flags));
}

HOOK CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, size_t bytes)
{
    vmm_lock();
    CUresult result = REAL(cuMulticastUnbind)(multicast, device, offset, bytes);
    int gpu = fgpu_gpu_of_device(device);
    if (result == CUDA_SUCCESS && gpu >= 0)
        unbind(vmm_of_handle(multicast), offset, offset + bytes, gpu);
    vmm_unlock();
    return result;
}

/* Memory of an endpoint is for the GPUs of other hosts. When they have done with it cannot be seen. */
static CUresult kept(CUresult result, struct memory *memory)
{
    if (result == CUDA_SUCCESS && memory != NULL)
        memory->bindings++;
    vmm_unlock();
    return result;
}

HOOK CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset,
                                       CUmemGenericAllocationHandle memory, uint64_t memory_offset, uint64_t bytes,
                                       unsigned long long flags)
{
    vmm_lock();
    return kept(REAL(cuLogicalEndpointBindMem)(endpoint, device, offset, memory, memory_offset, bytes, flags),
                vmm_of_handle(memory));
}

HOOK CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *address,
                                        uint64_t bytes, unsigned long long flags)
{
    vmm_lock();
    return kept(REAL(cuLogicalEndpointBindAddr)(endpoint, device, offset, address, bytes, flags),
                vmm_at((uintptr_t)address));
}

/* Returns a number for a part of an array. Memory is unmapped by naming the same part again. */
static uint64_t number_of(const CUarrayMapInfo *map)
{
    const unsigned char *bytes = (const unsigned char *)&map->subresource;
    uint64_t number = 14695981039346656037ull ^ (uint64_t)map->subresourceType; /* FNV-1a */
    for (size_t i = 0; i < sizeof map->subresource; i++)
        number = (number ^ bytes[i]) * 1099511628211ull;
    return number >> 1;
}

static CUresult mapped(CUresult result, const CUarrayMapInfo *maps, unsigned count)
{
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
        uint64_t part = number_of(&maps[i]);
        if (maps[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            bind(maps[i].resource.array, part, part, vmm_of_handle(maps[i].memHandle.memHandle));
        else
            unbind(maps[i].resource.array, part, part, NOT_LIMITED);
    }
    return result;
}

HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *maps, unsigned count, CUstream stream)
{
    vmm_lock();
    CUresult result = mapped(REAL(cuMemMapArrayAsync)(maps, count, stream), maps, count);
    vmm_unlock();
    return result;
}

HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *maps, unsigned count, CUstream stream)
{
    vmm_lock();
    CUresult result = mapped(REAL(cuMemMapArrayAsync_ptsz)(maps, count, stream), maps, count);
    vmm_unlock();
    return result;
}
