#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20 };

/* Memory lives until its last handle is released, its last mapping is gone, and nothing has it bound. */
struct physical {
    CUmemAllocationProp properties;
    uint64_t bytes;
    unsigned device, handles, mappings, bindings;
    bool is_multicast;
    int shared; /* the number of exported memory, which no process owns; -1: none */
    struct physical *next;
};

/* Memory that is bound to a multicast object, or mapped into an array. */
struct binding {
    const void *holder;
    CUarrayMapInfo part;    /* of an array */
    uint64_t offset, bytes; /* in a multicast object */
    struct physical *memory;
    struct binding *next;
};

struct mapping {
    CUdeviceptr address;
    uint64_t bytes;
    struct physical *physical;
    struct mapping *next;
};

static struct physical *physicals;
static struct mapping *mappings;
static struct binding *bindings;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    for (struct physical *at = physicals; at; at = at->next)
        if ((CUmemGenericAllocationHandle)at == handle)
            return at;
    return NULL;
}

static void end_bindings(const void *holder);

static void drop_if_unused(struct physical *physical)
{
    if (physical->handles || physical->mappings || physical->bindings)
        return;
    end_bindings(physical);
    if (physical->shared >= 0)
        state_export_drop(physical->shared);
    else if (physical->device != NOT_ON_A_DEVICE)
        state_release(gpu_process, physical->device, physical->bytes);
    for (struct physical **at = &physicals; *at; at = &(*at)->next)
        if (*at == physical) {
            *at = physical->next;
            break;
        }
    free(physical);
}

static void drop_binding(struct binding **at)
{
    struct binding *binding = *at;
    *at = binding->next;
    binding->memory->bindings--;
    drop_if_unused(binding->memory);
    free(binding);
}

static void end_bindings(const void *holder)
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

static CUresult device_of_properties(const CUmemAllocationProp *properties, unsigned *device)
{
    if (!properties || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    return device_of_location(&properties->location, device);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags option)
{
    (void)option;
    unsigned device;
    CUresult result = device_of_properties(properties, &device);
    if (result == CUDA_SUCCESS)
        *granularity = GRANULARITY;
    return result;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                                    uint64_t flags)
{
    (void)alignment;
    (void)wish;
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!bytes || bytes % GRANULARITY || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    CUresult result = allocation_add(address, (struct allocation){.kind = ALLOC_RESERVATION, .bytes = bytes});
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    CUdeviceptr base;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    const struct allocation *found = allocation_find(address, &base);
    if (!found || found->kind != ALLOC_RESERVATION || base != address || found->bytes != bytes)
        result = CUDA_ERROR_INVALID_VALUE;
    for (const struct mapping *at = mappings; at && result == CUDA_SUCCESS; at = at->next)
        if (at->address >= address && at->address < address + bytes)
            result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        allocation_drop(base);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static CUmemGenericAllocationHandle keep(struct physical made)
{
    struct physical *physical = malloc(sizeof *physical);
    *physical = made;
    pthread_mutex_lock(&driver_lock);
    physical->next = physicals;
    physicals = physical;
    pthread_mutex_unlock(&driver_lock);
    return (CUmemGenericAllocationHandle)physical;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                            uint64_t flags)
{
    unsigned device;
    CUresult result = device_of_properties(properties, &device);
    if (result == CUDA_SUCCESS && (!bytes || bytes % GRANULARITY || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && device != NOT_ON_A_DEVICE)
        result = reserve_bytes(device, bytes);
    if (result == CUDA_SUCCESS)
        *handle = keep((struct physical){.properties = *properties, .bytes = bytes, .device = device, .handles = 1, .shared = -1});
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&driver_lock);
    struct physical *physical = physical_of(handle);
    bool held = physical && physical->handles;
    if (held) {
        physical->handles--;
        drop_if_unused(physical);
    }
    pthread_mutex_unlock(&driver_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    for (struct mapping *at = mappings; at; at = at->next)
        if ((CUdeviceptr)address >= at->address && (CUdeviceptr)address < at->address + at->bytes) {
            at->physical->handles++;
            *handle = (CUmemGenericAllocationHandle)at->physical;
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&driver_lock);
    const struct physical *physical = physical_of(handle);
    if (physical)
        *properties = physical->properties;
    pthread_mutex_unlock(&driver_lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                         uint64_t flags)
{
    CUdeviceptr base;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    const struct allocation *found = allocation_find(address, &base);
    struct physical *physical = physical_of(handle);
    if (!found || found->kind != ALLOC_RESERVATION || !physical || flags || !bytes || bytes % GRANULARITY ||
        offset + bytes > physical->bytes || address + bytes > base + found->bytes)
        result = CUDA_ERROR_INVALID_VALUE;
    for (const struct mapping *at = mappings; at && result == CUDA_SUCCESS; at = at->next)
        if (address < at->address + at->bytes && at->address < address + bytes)
            result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct mapping *mapping = malloc(sizeof *mapping);
        *mapping = (struct mapping){address, bytes, physical, mappings};
        mappings = mapping;
        physical->mappings++;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

/* Whole mappings only: the range ends where mappings end. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    uint64_t whole = 0;
    pthread_mutex_lock(&driver_lock);
    for (const struct mapping *at = mappings; at; at = at->next)
        if (at->address >= address && at->address + at->bytes <= address + bytes)
            whole += at->bytes;
    bool exact = bytes && whole == bytes;
    for (struct mapping **at = &mappings; exact && *at;) {
        struct mapping *mapping = *at;
        if (mapping->address < address || mapping->address >= address + bytes) {
            at = &mapping->next;
            continue;
        }
        *at = mapping->next;
        mapping->physical->mappings--;
        drop_if_unused(mapping->physical);
        free(mapping);
    }
    pthread_mutex_unlock(&driver_lock);
    return exact ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    uint64_t whole = 0;
    pthread_mutex_lock(&driver_lock);
    for (const struct mapping *at = mappings; at; at = at->next)
        if (at->address >= address && at->address + at->bytes <= address + bytes)
            whole += at->bytes;
    pthread_mutex_unlock(&driver_lock);
    return access && count && whole == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, uint64_t flags)
{
    if (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    struct physical *physical = physical_of(handle);
    if (physical && physical->device != NOT_ON_A_DEVICE) {
        if (physical->shared < 0) {
            physical->shared = state_export(gpu_state, physical->device, physical->bytes);
            if (physical->shared >= 0)
                memcpy(gpu_state->exports[physical->shared].properties, &physical->properties,
                       sizeof physical->properties);
        }
        *(int *)shareable = physical->shared < 0 ? -1 : state_export_open(physical->shared);
        result = *(int *)shareable < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    int number = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? state_import(gpu_state, (int)(intptr_t)shareable) : -1;
    if (number < 0)
        return CUDA_ERROR_INVALID_VALUE;
    const struct exported *exported = &gpu_state->exports[number];
    struct physical made = {.bytes = exported->bytes, .device = exported->device, .handles = 1, .shared = number};
    memcpy(&made.properties, exported->properties, sizeof made.properties);
    *handle = keep(made);
    return CUDA_SUCCESS;
}

/* As a descriptor that keeps the memory, whatever becomes of its address. This driver does so for physical memory. */
EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
                                              CUmemRangeHandleType type, uint64_t flags)
{
    CUmemGenericAllocationHandle memory;
    if (!handle || !bytes || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)address);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemExportToShareableHandle(handle, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cuMemRelease(memory);
    return result;
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *multicast, const CUmulticastObjectProp *properties)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!multicast || !properties || !properties->size || properties->size % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    *multicast = keep((struct physical){
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
    struct physical *memory = NULL;
    pthread_mutex_lock(&driver_lock);
    for (const struct mapping *at = mappings; at; at = at->next)
        if (address >= at->address && address + bytes <= at->address + at->bytes)
            memory = at->physical;
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
