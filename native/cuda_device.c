/* The GPU of a device or context, and its memory as a program sees it. */
#include <stdatomic.h>
#include <stdbool.h>

#include "hooks.h"
#include "pools.h"
#include "usage.h"

#define DEVICES 64
enum { UNKNOWN = 0, NOT_LIMITED = 1, FIRST_LIMITED = 2 };
static _Atomic signed char gpus_of_devices[DEVICES];

int fgpu_gpu_of_device(CUdevice device)
{
    const struct limits *limits = limits_get();
    if (limits == NULL)
        return -1;
    bool kept = device >= 0 && device < DEVICES;
    int known = kept ? atomic_load_explicit(&gpus_of_devices[device], memory_order_relaxed) : UNKNOWN;
    if (known != UNKNOWN)
        return known - FIRST_LIMITED;
    CUuuid uuid;
    /* The second version gives a MIG instance's own UUID; older drivers have the first only. */
    CUresult result = REAL(cuDeviceGetUuid_v2)(&uuid, device);
    if (result == CUDA_ERROR_NOT_FOUND)
        result = REAL(cuDeviceGetUuid)(&uuid, device);
    if (result != CUDA_SUCCESS)
        return -1;
    int gpu = limits_gpu_of_uuid_bytes(limits, (const unsigned char *)uuid.bytes);
    if (kept)
        atomic_store_explicit(&gpus_of_devices[device], (signed char)(gpu + FIRST_LIMITED), memory_order_relaxed);
    return gpu;
}

static _Atomic unsigned changes = 1;
static __thread struct {
    CUcontext context;
    unsigned changes;
    int gpu;
} current;

void fgpu_contexts_changed(void)
{
    atomic_fetch_add_explicit(&changes, 1, memory_order_relaxed);
}

int fgpu_gpu_of_current(CUcontext *context)
{
    CUdevice device;
    *context = NULL;
    if (REAL(cuCtxGetCurrent)(context) != CUDA_SUCCESS || *context == NULL)
        return -1;
    unsigned now = atomic_load_explicit(&changes, memory_order_relaxed);
    if (current.context != *context || current.changes != now) {
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
            return -1;
        current.context = *context;
        current.changes = now;
        current.gpu = fgpu_gpu_of_device(device);
    }
    return current.gpu;
}

int fgpu_gpu_of_current_context(void)
{
    CUcontext context;
    return fgpu_gpu_of_current(&context);
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
    int gpu = result == CUDA_SUCCESS ? fgpu_gpu_of_device(device) : -1;
    if (gpu >= 0 && *bytes > limits_get()->gpus[gpu].mem_bytes)
        *bytes = limits_get()->gpus[gpu].mem_bytes;
    return result;
}

static unsigned in_32_bits(size_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
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
    int gpu = result == CUDA_SUCCESS ? fgpu_gpu_of_current_context() : -1;
    if (gpu < 0)
        return result;
    uint64_t used = 0, cap = limits_get()->gpus[gpu].mem_bytes;
    pools_measure(gpu);
    if (usage_total(gpu, &used) != USAGE_GRANTED)
        return CUDA_ERROR_NOT_PERMITTED;
    uint64_t left = used < cap ? cap - used : 0;
    if (free_bytes != NULL && *free_bytes > left)
        *free_bytes = left;
    if (total_bytes != NULL && *total_bytes > cap)
        *total_bytes = cap;
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
