/* The GPU of a device or context, and its memory as a program sees it. */
#include <stdatomic.h>
#include <stdbool.h>

#include "bounds.h"
#include "hooks.h"
#include "pools.h"
#include "usage.h"

#define DEVICES 64
enum { NOT_READ = 0, FIRST_LIMITED = 2 };
static _Atomic signed char gpus_of_devices[DEVICES];

static int gpu_without_device(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return NOT_LIMITED;
    default:
        return GPU_UNKNOWN;
    }
}

int fgpu_gpu_of_device(CUdevice device)
{
    const struct limits *limits = limits_get();
    if (limits == NULL)
        return GPU_UNKNOWN;
    bool kept = device >= 0 && device < DEVICES;
    int known = kept ? atomic_load_explicit(&gpus_of_devices[device], memory_order_relaxed) : NOT_READ;
    if (known != NOT_READ)
        return known - FIRST_LIMITED;
    CUuuid uuid;
    /* The second version gives a MIG instance's own UUID; older drivers have the first only. */
    CUresult result = REAL(cuDeviceGetUuid_v2)(&uuid, device);
    if (result == CUDA_ERROR_NOT_FOUND)
        result = REAL(cuDeviceGetUuid)(&uuid, device);
    if (result != CUDA_SUCCESS)
        return gpu_without_device(result);
    int gpu = limits_gpu_of_uuid_bytes(limits, (const unsigned char *)uuid.bytes);
    if (kept)
        atomic_store_explicit(&gpus_of_devices[device], (signed char)(gpu + FIRST_LIMITED), memory_order_relaxed);
    return gpu;
}

static _Atomic unsigned changes = 1;
struct cached {
    CUstream stream;
    CUcontext context;
    unsigned changes;
    int gpu;
};
#define STREAMS 8
static __thread struct cached current, of_streams[STREAMS];

void fgpu_contexts_changed(void)
{
    atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
}

int fgpu_gpu_of_current(CUcontext *context)
{
    CUdevice device;
    *context = NULL;
    CUresult result = REAL(cuCtxGetCurrent)(context);
    if (result != CUDA_SUCCESS || *context == NULL)
        return result == CUDA_SUCCESS ? NOT_LIMITED : gpu_without_device(result);
    unsigned now = atomic_load_explicit(&changes, memory_order_relaxed);
    if (current.context != *context || current.changes != now) {
        result = REAL(cuCtxGetDevice)(&device);
        if (result != CUDA_SUCCESS)
            return gpu_without_device(result);
        current.context = *context;
        current.changes = now;
        current.gpu = fgpu_gpu_of_device(device);
    }
    if (current.gpu == GPU_UNKNOWN)
        current.context = NULL; /* look again at the next call */
    return current.gpu;
}

int fgpu_gpu_of_current_context(void)
{
    CUcontext context;
    return fgpu_gpu_of_current(&context);
}

CUresult fgpu_device_of_context(CUcontext context, CUdevice *device)
{
    CUcontext popped;
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuCtxGetDevice)(device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    return result;
}

int fgpu_gpu_of_stream(CUstream stream, CUcontext *context)
{
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return fgpu_gpu_of_current(context);
    unsigned now = atomic_load_explicit(&changes, memory_order_relaxed);
    struct cached *cached = &of_streams[((uintptr_t)stream >> 4) % STREAMS];
    if (cached->stream != stream || cached->changes != now) {
        CUdevice device;
        CUresult result = REAL(cuStreamGetCtx)(stream, &cached->context);
        cached->stream = NULL;
        if (result == CUDA_SUCCESS)
            result = fgpu_device_of_context(cached->context, &device);
        if (result != CUDA_SUCCESS)
            return result == CUDA_ERROR_INVALID_HANDLE ? NOT_LIMITED : gpu_without_device(result);
        cached->gpu = fgpu_gpu_of_device(device);
        cached->changes = now;
        cached->stream = cached->gpu != GPU_UNKNOWN ? stream : NULL;
    }
    *context = cached->context;
    return cached->gpu;
}

static CUdevice first_limited_device(void)
{
    CUdevice device;
    for (int i = 0; REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS; i++)
        if (fgpu_gpu_of_device(device) != NOT_LIMITED)
            return device;
    return NO_DEVICE;
}

static CUdevice current_device(void)
{
    CUdevice device;
    return REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : first_limited_device();
}

CUdevice fgpu_device_of_location(const CUmemLocation *location)
{
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return location->id;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        return location->id & 0xff;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return NO_DEVICE;
    default:
        return first_limited_device();
    }
}

CUdevice fgpu_device_of_pool(const CUmemLocation *location, CUmemAllocationType type)
{
    bool somewhere = type == CU_MEM_ALLOCATION_TYPE_MANAGED && location->type != CU_MEM_LOCATION_TYPE_DEVICE;
    return somewhere ? current_device() : fgpu_device_of_location(location);
}

HOOK CUresult cuInit(unsigned flags)
{
    return limits_get() != NULL ? REAL(cuInit)(flags) : CUDA_ERROR_NOT_PERMITTED;
}

HOOK CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, device);
    if (limits_get() == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    int gpu = result == CUDA_SUCCESS ? fgpu_gpu_of_device(device) : NOT_LIMITED;
    if (gpu == GPU_UNKNOWN)
        return CUDA_ERROR_NOT_PERMITTED;
    if (gpu >= 0)
        *bytes = least(*bytes, limits_get()->gpus[gpu].mem_bytes);
    return result;
}

static unsigned in_32_bits(size_t bytes)
{
    return (unsigned)least(bytes, UINT32_MAX);
}

HOOK CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t total = 0;
    CUresult result = bytes != NULL ? cuDeviceTotalMem_v2(&total, device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = in_32_bits(total);
    return result;
}

HOOK CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUresult result = REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (limits_get() == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    int gpu = result == CUDA_SUCCESS ? fgpu_gpu_of_current_context() : NOT_LIMITED;
    if (gpu < 0)
        return gpu == GPU_UNKNOWN ? CUDA_ERROR_NOT_PERMITTED : result;
    uint64_t used = 0, cap = limits_get()->gpus[gpu].mem_bytes;
    pools_measure(gpu);
    if (usage_total(gpu, &used) != USAGE_GRANTED)
        return CUDA_ERROR_NOT_PERMITTED;
    if (free_bytes != NULL)
        *free_bytes = least(*free_bytes, above(cap, used));
    if (total_bytes != NULL)
        *total_bytes = least(*total_bytes, cap);
    return result;
}

HOOK CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
    size_t available = 0, total = 0;
    CUresult result = cuMemGetInfo_v2(&available, &total);
    if (result == CUDA_SUCCESS && free_bytes != NULL)
        *free_bytes = in_32_bits(available);
    if (result == CUDA_SUCCESS && total_bytes != NULL)
        *total_bytes = in_32_bits(total);
    return result;
}
