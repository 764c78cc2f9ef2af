/* Memory that is bound: to multicast objects, to logical endpoints, and into sparse arrays. */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

struct binding {
    const void *holder;
    CUarrayMapInfo part;    /* of an array */
    uint64_t offset, bytes; /* in a multicast object */
    struct physical *memory;
    struct binding *next;
};

static struct binding *bindings;

static void drop_binding(struct binding **at)
{
    struct binding *binding = *at;
    *at = binding->next;
    binding->memory->bindings--;
    physical_drop_if_unused(binding->memory);
    free(binding);
}

void end_bindings(const void *holder)
{
    for (struct binding **at = &bindings; *at;)
        if ((*at)->holder == holder) {
            drop_binding(at);
            at = &bindings;
        } else {
            at = &(*at)->next;
        }
}

void array_is_gone(CUarray array)
{
    end_bindings(array);
}

static void bind(struct binding made)
{
    struct binding *binding = malloc(sizeof *binding);
    *binding = made;
    binding->next = bindings;
    bindings = binding;
    made.memory->bindings++;
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *multicast, const CUmulticastObjectProp *properties)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!multicast || !properties || !properties->size || properties->size % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    *multicast = physical_keep((struct physical){
        .bytes = properties->size, .device = NOT_ON_A_DEVICE, .is_multicast = true, .handles = 1, .shared = -1});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle multicast, CUdevice ordinal)
{
    unsigned device;
    (void)multicast;
    return device_of(ordinal, &device);
}

/* Under driver_lock. */
static CUresult bind_memory(CUmemGenericAllocationHandle multicast, size_t offset, struct physical *memory, size_t bytes)
{
    const struct physical *holder = physical_of(multicast);
    if (!holder || !holder->is_multicast || !memory || !bytes || offset + bytes > holder->bytes || bytes > memory->bytes)
        return CUDA_ERROR_INVALID_VALUE;
    bind((struct binding){.holder = holder, .offset = offset, .bytes = bytes, .memory = memory});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset,
                                   CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                                   uint64_t flags)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (memory_offset || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    CUresult result = bind_memory(multicast, offset, physical_of(memory), bytes);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                                      CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                                      uint64_t flags)
{
    (void)device;
    return cuMulticastBindMem(multicast, offset, memory, memory_offset, bytes, flags);
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address,
                                    size_t bytes, uint64_t flags)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    pthread_mutex_lock(&driver_lock);
    struct physical *memory = physical_mapped_at(address, bytes);
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : bind_memory(multicast, offset, memory, bytes);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                                       CUdeviceptr address, size_t bytes, uint64_t flags)
{
    (void)device;
    return cuMulticastBindAddr(multicast, offset, address, bytes, flags);
}

EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice ordinal, size_t offset, size_t bytes)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    const struct physical *holder = physical_of(multicast);
    for (struct binding **at = &bindings; holder && *at;)
        if ((*at)->holder == holder && (*at)->memory->device == device && (*at)->offset >= offset &&
            (*at)->offset + (*at)->bytes <= offset + bytes) {
            drop_binding(at);
            at = &bindings;
        } else {
            at = &(*at)->next;
        }
    pthread_mutex_unlock(&driver_lock);
    return holder ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* An endpoint keeps what is bound to it until its process ends; which endpoint it is does not matter here. */
EXPORT CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset,
                                         CUmemGenericAllocationHandle memory, uint64_t memory_offset, uint64_t bytes,
                                         unsigned long long flags)
{
    (void)endpoint;
    (void)device;
    (void)offset;
    pthread_mutex_lock(&driver_lock);
    struct physical *physical = physical_of(memory);
    bool binds = physical && !memory_offset && bytes && bytes <= physical->bytes && !flags;
    if (binds)
        physical->bindings++;
    pthread_mutex_unlock(&driver_lock);
    return binds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *address,
                                          uint64_t bytes, unsigned long long flags)
{
    CUmemGenericAllocationHandle memory;
    CUresult result = cuMemRetainAllocationHandle(&memory, address);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuLogicalEndpointBindMem(endpoint, device, offset, memory, 0, bytes, flags);
    cuMemRelease(memory);
    return result;
}

static bool same_part(const CUarrayMapInfo *one, const CUarrayMapInfo *other)
{
    return one->subresourceType == other->subresourceType &&
           memcmp(&one->subresource, &other->subresource, sizeof one->subresource) == 0;
}

/* A part that is mapped again loses what it had. */
static CUresult map_array(const CUarrayMapInfo *map)
{
    const void *array = map->resource.array;
    struct physical *memory = NULL;
    if (map->memOperationType == CU_MEM_OPERATION_TYPE_MAP && !(memory = physical_of(map->memHandle.memHandle)))
        return CUDA_ERROR_INVALID_VALUE;
    if (memory)
        memory->bindings++;
    for (struct binding **at = &bindings; *at;)
        if ((*at)->holder == array && same_part(&(*at)->part, map)) {
            drop_binding(at);
            at = &bindings;
        } else {
            at = &(*at)->next;
        }
    if (memory) {
        bind((struct binding){.holder = array, .part = *map, .memory = memory});
        memory->bindings--;
    }
    return CUDA_SUCCESS;
}

static CUresult map_arrays(const CUarrayMapInfo *maps, unsigned count)
{
    CUresult result = maps && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = map_array(&maps[i]);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT_ON_STREAM(cuMemMapArrayAsync, (CUarrayMapInfo * maps, unsigned count, CUstream stream), stream,
                 (on ? map_arrays(maps, count) : CUDA_ERROR_INVALID_CONTEXT))
