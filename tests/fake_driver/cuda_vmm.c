#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct mapping {
    CUdeviceptr address;
    uint64_t bytes;
    struct physical *physical;
    struct mapping *next;
};

static struct physical *physicals;
static struct mapping *mappings;

struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    for (struct physical *at = physicals; at; at = at->next)
        if ((CUmemGenericAllocationHandle)at == handle)
            return at;
    return NULL;
}

struct physical *physical_mapped_at(CUdeviceptr address, size_t bytes)
{
    for (const struct mapping *at = mappings; at; at = at->next)
        if (address >= at->address && address + bytes <= at->address + at->bytes)
            return at->physical;
    return NULL;
}

void physical_drop_if_unused(struct physical *physical)
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

CUmemGenericAllocationHandle physical_keep(struct physical made)
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
        *handle = physical_keep((struct physical){.properties = *properties, .bytes = bytes, .device = device, .handles = 1, .shared = -1});
    return result;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    pthread_mutex_lock(&driver_lock);
    struct physical *physical = physical_of(handle);
    bool held = physical && physical->handles;
    if (held) {
        physical->handles--;
        physical_drop_if_unused(physical);
    }
    pthread_mutex_unlock(&driver_lock);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    struct physical *physical = physical_mapped_at((CUdeviceptr)address, 1);
    if (physical) {
        physical->handles++;
        *handle = (CUmemGenericAllocationHandle)physical;
        result = CUDA_SUCCESS;
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
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
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
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
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
        physical_drop_if_unused(mapping->physical);
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
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    struct physical *physical = physical_of(handle);
    if (physical && physical->device != NOT_ON_A_DEVICE) {
        if (physical->shared < 0) {
            physical->shared = state_export(gpu_state, gpu_process, physical->device, physical->bytes);
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
    *handle = physical_keep(made);
    return CUDA_SUCCESS;
}

/* As a descriptor that keeps the memory, whatever becomes of its address. This driver does so for physical memory; that of
   linear memory keeps nothing. */
EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes,
                                              CUmemRangeHandleType type, uint64_t flags)
{
    CUmemGenericAllocationHandle memory;
    CUdeviceptr base;
    if (!handle || !bytes || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    const struct allocation *found = allocation_find(address, &base);
    bool linear = found && found->kind == ALLOC_LINEAR;
    pthread_mutex_unlock(&driver_lock);
    if (linear)
        return (*(int *)handle = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0 ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
    CUresult result = cuMemRetainAllocationHandle(&memory, (void *)(uintptr_t)address);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuMemExportToShareableHandle(handle, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    cuMemRelease(memory);
    return result;
}
