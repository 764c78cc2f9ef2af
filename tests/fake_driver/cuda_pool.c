#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* A pool takes memory in large blocks and keeps what was freed until a synchronisation or a trim gives it back. */
enum { SMALLEST_BLOCK = 2 << 20 };

struct CUmemPoolHandle_st {
    CUmemPoolProps properties;
    unsigned device;
    bool is_default, destroyed;
    uint64_t reserved, used, reserved_high, used_high, threshold;
    int reuse[4];
    struct CUmemPoolHandle_st *next;
};

static struct CUmemPoolHandle_st *pools;
static CUmemoryPool current_pool[MAX_DEVICES + 1]; /* the last one: of the host's memory */

static CUmemoryPool make(unsigned device, const CUmemPoolProps *properties)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    pool->device = device;
    pool->properties = *properties;
    memset(pool->reuse, 1, sizeof pool->reuse);
    pool->next = pools;
    pools = pool;
    return pool;
}

/* What a pool takes and gives back; a pool of the host's memory takes none of a device. */
static CUresult take(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
    return pool->device == NOT_ON_A_DEVICE ? CUDA_SUCCESS : reserve_bytes(pool->device, bytes);
}

static void give(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
    if (pool->device != NOT_ON_A_DEVICE)
        state_release(gpu_process, pool->device, bytes);
}

/* Managed memory without a place of its own is where it is used: here, on the current device. */
static CUresult device_of_pool(const CUmemLocation *location, CUmemAllocationType type, unsigned *device)
{
    CUcontext context;
    if (type != CU_MEM_ALLOCATION_TYPE_MANAGED || location->type == CU_MEM_LOCATION_TYPE_DEVICE)
        return device_of_location(location, device);
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS)
        *device = context->device;
    return result;
}

static CUmemoryPool default_pool_of(unsigned device, const CUmemLocation *location, CUmemAllocationType type)
{
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->is_default && pool->device == device && pool->properties.allocType == type)
            return pool;
    CUmemPoolProps properties = {.allocType = type, .location = *location};
    CUmemoryPool pool = make(device, &properties);
    pool->is_default = true;
    return pool;
}

static CUmemoryPool default_pool(unsigned device, CUdevice ordinal)
{
    CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal};
    return default_pool_of(device, &location, CU_MEM_ALLOCATION_TYPE_PINNED);
}

static void trim_to(CUmemoryPool pool, uint64_t keep)
{
    keep = keep < pool->used ? pool->used : (keep + SMALLEST_BLOCK - 1) / SMALLEST_BLOCK * SMALLEST_BLOCK;
    if (keep == pool->used)
        keep = (keep + SMALLEST_BLOCK - 1) / SMALLEST_BLOCK * SMALLEST_BLOCK;
    if (pool->reserved > keep) {
        give(pool, pool->reserved - keep);
        pool->reserved = keep;
    }
}

static void drop_if_empty(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used)
        return;
    give(pool, pool->reserved);
    for (struct CUmemPoolHandle_st **at = &pools; *at; at = &(*at)->next)
        if (*at == pool) {
            *at = pool->next;
            break;
        }
    free(pool);
}

void pools_trim(unsigned device)
{
    pthread_mutex_lock(&driver_lock);
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        if (pool->device == device && pool->threshold < pool->reserved)
            trim_to(pool, pool->threshold);
    pthread_mutex_unlock(&driver_lock);
}

void pool_give_back(CUmemoryPool pool, uint64_t bytes)
{
    pool->used -= bytes;
    drop_if_empty(pool);
}

static CUresult grow(CUmemoryPool pool, uint64_t bytes)
{
    if (pool->reserved - pool->used >= bytes)
        return CUDA_SUCCESS;
    uint64_t missing = bytes - (pool->reserved - pool->used);
    uint64_t steps[] = {gpu_state->pool_block_bytes, SMALLEST_BLOCK};
    for (unsigned i = 0; i < 2; i++) {
        uint64_t more = (missing + steps[i] - 1) / steps[i] * steps[i];
        if (pool->properties.maxSize && pool->reserved + more > pool->properties.maxSize)
            continue;
        if (take(pool, more) == CUDA_SUCCESS) {
            pool->reserved += more;
            if (pool->reserved > pool->reserved_high)
                pool->reserved_high = pool->reserved;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, struct CUstream_st *stream)
{
    if (!address || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_alloc(stream, address, bytes);
    CUcontext context = stream->context;
    pthread_mutex_lock(&driver_lock);
    if (!pool)
        pool = current_pool[context->device] ? current_pool[context->device]
                                             : default_pool(context->device, context->ordinal);
    CUresult result = pool->destroyed ? CUDA_ERROR_INVALID_VALUE : grow(pool, bytes);
    if (result == CUDA_SUCCESS) {
        struct allocation made = {
            .kind = ALLOC_POOL, .device = pool->device, .bytes = bytes, .context = context, .pool = pool};
        result = allocation_add(address, made);
        pool->used += bytes;
        if (pool->used > pool->used_high)
            pool->used_high = pool->used;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static CUresult free_async(CUdeviceptr address, struct CUstream_st *stream)
{
    if (stream->capture)
        return capture_free(stream, address);
    CUdeviceptr base;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    struct allocation *found = allocation_find(address, &base);
    if (!found || base != address) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (found->kind == ALLOC_POOL) {
        pool_give_back(found->pool, found->bytes);
        allocation_drop(base);
    } else if (found->kind == ALLOC_GRAPH && found->graph_live) {
        graph_release_bytes(found->device, found->bytes);
        found->graph_live = false;
    } else if (found->kind == ALLOC_LINEAR || found->kind == ALLOC_MANAGED) {
        state_release(gpu_process, found->device, found->bytes);
        allocation_drop(base);
    } else {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT_ON_STREAM(cuMemAllocAsync, (CUdeviceptr * address, size_t bytes, CUstream stream), stream,
                 allocate(address, bytes, NULL, on))
EXPORT_ON_STREAM(cuMemAllocFromPoolAsync, (CUdeviceptr * address, size_t bytes, CUmemoryPool pool, CUstream stream),
                 stream, pool ? allocate(address, bytes, pool, on) : CUDA_ERROR_INVALID_VALUE)
EXPORT_ON_STREAM(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), stream, free_async(address, on))

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    unsigned device;
    if (!pool || !properties || properties->allocType == CU_MEM_ALLOCATION_TYPE_INVALID ||
        properties->allocType > CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of_pool(&properties->location, properties->allocType, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    *pool = make(device, properties);
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

/* A pool with memory in use goes when the last of it is freed. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!pool || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    if (current_pool[pool->device] == pool)
        current_pool[pool->device] = NULL;
    pool->destroyed = true;
    drop_if_empty(pool);
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    /* CUDA does not list the calls that a capture forbids: those that give memory back at once are taken for such. */
    CUresult result = capture_forbids();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    trim_to(pool, keep_bytes);
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute] = *(int *)value;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(uint64_t *)value;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        pool->reserved_high = pool->reserved;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        pool->used_high = pool->used;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute] != 0;
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(uint64_t *)value = pool->threshold;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(uint64_t *)value = pool->reserved;
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(uint64_t *)value = pool->reserved_high;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(uint64_t *)value = pool->used;
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(uint64_t *)value = pool->used_high;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    return pool && access && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    *pool = default_pool(device, ordinal);
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS && !current_pool[device])
        return cuDeviceGetDefaultMemPool(pool, ordinal);
    if (result == CUDA_SUCCESS)
        *pool = current_pool[device];
    return result;
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS && (!pool || pool->device != device))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        current_pool[device] = pool;
    return result;
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    unsigned device;
    if (!pool || !location)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of_pool(location, type, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    *pool = default_pool_of(device, location, type);
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    unsigned device;
    CUresult result = location ? device_of_pool(location, type, &device) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED || !current_pool[device])
        return cuMemGetDefaultMemPool(pool, location, type);
    *pool = current_pool[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    unsigned device;
    CUresult result = location && type == CU_MEM_ALLOCATION_TYPE_PINNED ? device_of_location(location, &device)
                                                                        : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && (!pool || pool->device != device))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        current_pool[device] = pool;
    return result;
}
