#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20 };

/* Memory lives until its last handle is released and its last mapping is gone. */
struct physical {
    CUmemAllocationProp properties;
    uint64_t bytes;
    unsigned device, handles, mappings;
    bool imported; /* its exporter pays */
    struct physical *next;
};

struct mapping {
    CUdeviceptr address;
    uint64_t bytes;
    struct physical *physical;
    struct mapping *next;
};

static struct physical *physicals;
static struct mapping *mappings;

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    for (struct physical *at = physicals; at; at = at->next)
        if ((CUmemGenericAllocationHandle)at == handle)
            return at;
    return NULL;
}

static void drop_if_unused(struct physical *physical)
{
    if (physical->handles || physical->mappings)
        return;
    if (!physical->imported && physical->device != NOT_ON_A_DEVICE)
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
        *handle = keep((struct physical){.properties = *properties, .bytes = bytes, .device = device, .handles = 1});
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

/* The descriptor holds what an importer must know of the memory. */
EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                             CUmemAllocationHandleType type, uint64_t flags)
{
    pthread_mutex_lock(&driver_lock);
    const struct physical *physical = physical_of(handle);
    struct physical copy = physical ? *physical : (struct physical){0};
    pthread_mutex_unlock(&driver_lock);
    if (!physical || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    int file = (int)syscall(SYS_memfd_create, "fake-gpu-memory", 0);
    if (file < 0 || write(file, &copy, sizeof copy) != (ssize_t)sizeof copy)
        return CUDA_ERROR_UNKNOWN;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type)
{
    struct physical copy;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread((int)(intptr_t)shareable, &copy, sizeof copy, 0) != (ssize_t)sizeof copy)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = keep((struct physical){
        .properties = copy.properties, .bytes = copy.bytes, .device = copy.device, .handles = 1, .imported = true});
    return CUDA_SUCCESS;
}
