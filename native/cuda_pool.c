/* Stream-ordered memory. */
#include <stdbool.h>

#include "charge.h"
#include "pools.h"
#include "usage.h"

/* Drivers let a pool grow by blocks of this size, where there is room. */
#define POOL_BLOCK (32ull << 20)

static CUresult device_of_stream(CUstream stream, CUresult (*context_of)(CUstream, CUcontext *), CUdevice *device)
{
    CUcontext context = NULL;
    CUresult result = context_of(stream, &context);
    if (result != CUDA_SUCCESS || context == NULL)
        return REAL(cuCtxGetDevice)(device);
    return fgpu_device_of_context(context, device);
}

static struct pool *add(CUmemoryPool handle, CUdevice device)
{
    return pools_add(handle, device, device == NO_DEVICE ? NOT_LIMITED : fgpu_gpu_of_device(device));
}

/* Returns the pool of a handle. One that no hook has seen is a device's default pool, or another process's, from which
   this process cannot allocate. An unknown one counts as the stream's device. */
static struct pool *known_pool(CUmemoryPool handle, CUdevice of_stream)
{
    struct pool *pool = pools_find(handle);
    CUdevice device;
    CUmemoryPool of_device;
    for (int i = 0; pool == NULL && REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS; i++)
        if (REAL(cuDeviceGetDefaultMemPool)(&of_device, device) == CUDA_SUCCESS && of_device == handle)
            pool = add(handle, device);
    return pool != NULL ? pool : add(handle, of_stream);
}

struct request {
    struct pool *pool;
    CUdeviceptr *address;
    uint64_t bytes;
    CUstream stream;
    CUresult (*plain)(CUdeviceptr *, size_t, CUstream);
    CUresult (*from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
    CUresult (*free_memory)(CUdeviceptr, CUstream);
    CUresult (*synchronise)(CUstream);
    CUmemoryPool handle;
};

static CUresult call(const struct request *request)
{
    if (request->plain != NULL)
        return request->plain(request->address, request->bytes, request->stream);
    return request->from_pool(request->address, request->bytes, request->handle, request->stream);
}

/* Reserves memory for an allocation from a pool, whose growth is known only afterwards. It tries to reserve a block,
   then the bytes alone, then nothing if the pool has enough unused, then the bytes again once all pools are trimmed. */
static CUresult reserve(struct charge *charge, const struct request *request)
{
    int gpu = request->pool->gpu;
    uint64_t bytes = charge_size(request->bytes), block = (bytes + POOL_BLOCK - 1) / POOL_BLOCK * POOL_BLOCK;
    *charge = (struct charge){.gpu = gpu, .bytes = block};
    if (block >= bytes && usage_reserve(gpu, block) == USAGE_GRANTED)
        return CUDA_SUCCESS;
    charge->bytes = bytes;
    if (usage_reserve(gpu, bytes) == USAGE_GRANTED)
        return CUDA_SUCCESS;
    charge->bytes = 0;
    if (pools_unused(request->pool) >= request->bytes)
        return CUDA_SUCCESS;
    return charge_begin(charge, gpu, bytes);
}

/* Turns the reservation into the pool's charge. False: the pool grew beyond it, and that does not fit. */
static bool settle(struct charge *charge, struct pool *pool)
{
    uint64_t before = pool->charged + charge->bytes, cap = limits_get()->gpus[pool->gpu].mem_bytes, total = 0;
    pool->charged = before;
    pools_measure_one(pool);
    return pool->charged <= before || (usage_total(pool->gpu, &total) == USAGE_GRANTED && total <= cap);
}

static CUresult allocate_limited(const struct request *request)
{
    struct charge charge;
    pools_measure_one(request->pool);
    CUresult result = reserve(&charge, request);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = call(request);
    while (charge_again(&charge, result));
    if (charge_end(&charge, result) != CUDA_SUCCESS)
        return result;
    if (settle(&charge, request->pool)) {
        pools_note(request->pool, *request->address);
        return CUDA_SUCCESS;
    }
    request->free_memory(*request->address, request->stream);
    request->synchronise(request->stream);
    pools_shrink(request->pool->gpu);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(struct request *request, CUresult (*context_of)(CUstream, CUcontext *),
                         CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *))
{
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    CUdevice device;
    CUresult result;
    if (limits_get() == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    /* While the stream is captured, this call adds a node to its graph, which is charged when the graph runs. */
    if (is_capturing(request->stream, &capturing) != CUDA_SUCCESS || capturing != CU_STREAM_CAPTURE_STATUS_NONE)
        return call(request);
    result = device_of_stream(request->stream, context_of, &device);
    if (result == CUDA_SUCCESS && request->plain != NULL)
        result = REAL(cuDeviceGetMemPool)(&request->handle, device);
    if (result != CUDA_SUCCESS)
        return result;
    pools_lock();
    request->pool = known_pool(request->handle, device);
    if (request->pool == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (request->pool->gpu == GPU_UNKNOWN)
        result = CUDA_ERROR_NOT_PERMITTED;
    else
        result = request->pool->gpu == NOT_LIMITED ? call(request) : allocate_limited(request);
    pools_unlock();
    return result;
}

HOOK CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    struct request request = {.address = address, .bytes = bytes, .stream = stream, .plain = REAL(cuMemAllocAsync),
                              .free_memory = REAL(cuMemFreeAsync), .synchronise = REAL(cuStreamSynchronize)};
    return allocate(&request, REAL(cuStreamGetCtx), REAL(cuStreamIsCapturing));
}

HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    struct request request = {.address = address, .bytes = bytes, .stream = stream, .plain = REAL(cuMemAllocAsync_ptsz),
                              .free_memory = REAL(cuMemFreeAsync_ptsz), .synchronise = REAL(cuStreamSynchronize_ptsz)};
    return allocate(&request, REAL(cuStreamGetCtx_ptsz), REAL(cuStreamIsCapturing_ptsz));
}

HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct request request = {.address = address, .bytes = bytes, .stream = stream, .handle = pool,
                              .from_pool = REAL(cuMemAllocFromPoolAsync), .free_memory = REAL(cuMemFreeAsync),
                              .synchronise = REAL(cuStreamSynchronize)};
    return allocate(&request, REAL(cuStreamGetCtx), REAL(cuStreamIsCapturing));
}

HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    struct request request = {.address = address, .bytes = bytes, .stream = stream, .handle = pool,
                              .from_pool = REAL(cuMemAllocFromPoolAsync_ptsz), .free_memory = REAL(cuMemFreeAsync_ptsz),
                              .synchronise = REAL(cuStreamSynchronize_ptsz)};
    return allocate(&request, REAL(cuStreamGetCtx_ptsz), REAL(cuStreamIsCapturing_ptsz));
}

HOOK CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    CUresult result = REAL(cuMemPoolCreate)(pool, properties);
    if (result != CUDA_SUCCESS)
        return result;
    pools_lock();
    add(*pool, fgpu_device_of_pool(&properties->location, properties->allocType));
    pools_unlock();
    return result;
}

/* Notes where the memory of a pool is that the driver itself has made. */
static CUresult found(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                      CUmemAllocationType type)
{
    if (result != CUDA_SUCCESS || limits_get() == NULL)
        return result;
    pools_lock();
    if (pools_find(*pool) == NULL)
        add(*pool, fgpu_device_of_pool(location, type));
    pools_unlock();
    return result;
}

HOOK CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return found(REAL(cuMemGetDefaultMemPool)(pool, location, type), pool, location, type);
}

HOOK CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return found(REAL(cuMemGetMemPool)(pool, location, type), pool, location, type);
}

HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    pools_lock();
    struct pool *pool = pools_find(handle);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (result == CUDA_SUCCESS && pool != NULL)
        pools_destroyed(pool);
    pools_unlock();
    return result;
}

static CUresult measured(CUresult result, CUmemoryPool handle)
{
    pools_lock();
    struct pool *pool = pools_find(handle);
    if (pool != NULL)
        pools_measure_one(pool);
    pools_unlock();
    return result;
}

HOOK CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes)
{
    return measured(REAL(cuMemPoolTrimTo)(pool, keep_bytes), pool);
}

HOOK CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    return measured(REAL(cuMemPoolSetAttribute)(pool, attribute, value), pool);
}

static CUresult synchronised(CUresult result)
{
    pools_after_synchronising();
    return result;
}

HOOK CUresult cuCtxSynchronize(void)
{
    return synchronised(REAL(cuCtxSynchronize)());
}

HOOK CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return synchronised(REAL(cuCtxSynchronize_v2)(context));
}

HOOK CUresult cuStreamSynchronize(CUstream stream)
{
    return synchronised(REAL(cuStreamSynchronize)(stream));
}

HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return synchronised(REAL(cuStreamSynchronize_ptsz)(stream));
}

HOOK CUresult cuEventSynchronize(CUevent event)
{
    return synchronised(REAL(cuEventSynchronize)(event));
}
