/* Linear memory: plain, pitched, managed. */
#include "cuda_memory.h"

#include "cuda_vmm.h"
#include "pools.h"
#include "process.h"
#include "shares.h"
#include "usage.h"

#define PITCH_GRAIN 512u

struct allocations linear_memory = ALLOCATIONS_EMPTY, arrays = ALLOCATIONS_EMPTY, limit_memory = ALLOCATIONS_EMPTY;

static void forget(void)
{
    allocations_forget(&linear_memory);
    allocations_forget(&arrays);
    allocations_forget(&limit_memory);
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

void memory_note(struct allocations *allocations, const struct charge *charge, CUcontext context, uint64_t key)
{
    if (charge->gpu >= 0)
        allocations_put(allocations,
                        (struct allocation){.key = key, .owner = context, .bytes = charge->bytes, .gpu = charge->gpu});
}

void array_ended(uint64_t array)
{
    vmm_lock();
    bindings_end((const void *)(uintptr_t)array);
    vmm_unlock();
}

/* Releases the charge of memory that is gone, or this process's part of it if others may have the memory. */
static void release(const struct allocation *allocation)
{
    if (allocation->unseen)
        return;
    if (allocation->share != 0)
        shares_drop(allocation->share);
    else
        usage_release(allocation->gpu, allocation->bytes);
}

static void end_with(struct allocations *allocations, CUcontext context)
{
    struct allocation allocation;
    size_t from = 0;
    while (allocations_take_of(allocations, context, &from, &allocation)) {
        if (allocations == &arrays)
            array_ended(allocation.key);
        release(&allocation);
    }
}

void memory_ends_with(CUcontext context)
{
    end_with(&linear_memory, context);
    end_with(&arrays, context);
    end_with(&limit_memory, context);
    opened_memory_ends_with(context);
}

/* Returns the charge for managed memory. The driver moves it to the host's memory when the GPU is full, so that best
   effort may have more of it than its share: each byte is charged a part of a byte. All other memory stays on the GPU,
   and together it never exceeds the share. */
static uint64_t managed_size(size_t bytes)
{
    uint64_t size = charge_size(bytes);
    const struct limits *limits = limits_get();
    unsigned milli = limits != NULL ? limits->overcommit_milli : 1000;
    return milli == 1000 || size > UINT64_MAX / 1000 ? size : (size * 1000 + milli - 1) / milli;
}

/* Returns whether plain memory is to be managed memory, as the site allows for best effort. */
static bool overcommits(int gpu)
{
    const struct limits *limits = limits_get();
    return gpu >= 0 && limits != NULL && limits->overcommit_milli > 1000;
}

HOOK CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    struct charge charge;
    CUcontext context;
    int gpu = fgpu_gpu_of_current(&context);
    if (overcommits(gpu))
        return cuMemAllocManaged(address, bytes, CU_MEM_ATTACH_GLOBAL);
    CUresult result = charge_begin(&charge, gpu, charge_size(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuMemAlloc_v2)(address, bytes);
    while (charge_again(&charge, result));
    if (charge_end(&charge, result) == CUDA_SUCCESS)
        memory_note(&linear_memory, &charge, context, *address);
    return result;
}

HOOK CUresult cuMemAlloc(unsigned *address, unsigned bytes)
{
    struct charge charge;
    CUcontext context;
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), charge_size(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuMemAlloc)(address, bytes);
    while (charge_again(&charge, result));
    if (charge_end(&charge, result) == CUDA_SUCCESS)
        memory_note(&linear_memory, &charge, context, *address);
    return result;
}

/* Settles a pitched allocation. Its pitch is known only once the driver has made it, and if that is above the estimate,
   the rest must fit as well. */
static CUresult pitched(struct charge *charge, CUcontext context, CUdeviceptr address, size_t pitch, size_t height)
{
    if (!charge_settle(charge, charge_size((uint64_t)pitch * height))) {
        REAL(cuMemFree_v2)(address);
        return charge_end(charge, CUDA_ERROR_OUT_OF_MEMORY);
    }
    memory_note(&linear_memory, charge, context, address);
    return CUDA_SUCCESS;
}

static uint64_t pitch_estimate(size_t width, size_t height)
{
    uint64_t bytes;
    if (__builtin_mul_overflow((width + PITCH_GRAIN - 1) / PITCH_GRAIN * PITCH_GRAIN, height, &bytes))
        return UINT64_MAX;
    return charge_size(bytes);
}

HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct charge charge;
    CUcontext context;
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), pitch_estimate(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuMemAllocPitch_v2)(address, pitch, width, height, element);
    while (charge_again(&charge, result));
    return charge_end(&charge, result) == CUDA_SUCCESS ? pitched(&charge, context, *address, *pitch, height) : result;
}

HOOK CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    struct charge charge;
    CUcontext context;
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), pitch_estimate(width, height));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuMemAllocPitch)(address, pitch, width, height, element);
    while (charge_again(&charge, result));
    return charge_end(&charge, result) == CUDA_SUCCESS ? pitched(&charge, context, *address, *pitch, height) : result;
}

HOOK CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    struct charge charge;
    CUcontext context;
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), managed_size(bytes));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuMemAllocManaged)(address, bytes, flags);
    while (charge_again(&charge, result));
    if (charge_end(&charge, result) == CUDA_SUCCESS)
        memory_note(&linear_memory, &charge, context, *address);
    return result;
}

/* Removes the entry of an address that is about to be freed. Once the driver has freed it, another thread may get the
   same address. */
static bool forget_address(CUdeviceptr address, struct allocation *allocation)
{
    process_check();
    return allocations_take(&linear_memory, address, allocation);
}

static CUresult freed(CUresult result, bool known, const struct allocation *allocation, CUdeviceptr address)
{
    if (known && result == CUDA_SUCCESS)
        release(allocation);
    else if (known)
        allocations_put(&linear_memory, *allocation);
    else if (result == CUDA_SUCCESS)
        pools_freed(address);
    return result;
}

HOOK CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct allocation allocation;
    bool known = forget_address(address, &allocation);
    return freed(REAL(cuMemFree_v2)(address), known, &allocation, address);
}

HOOK CUresult cuMemFree(unsigned address)
{
    struct allocation allocation;
    bool known = forget_address(address, &allocation);
    return freed(REAL(cuMemFree)(address), known, &allocation, address);
}

HOOK CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    struct allocation allocation;
    bool known = forget_address(address, &allocation);
    return freed(REAL(cuMemFreeAsync)(address, stream), known, &allocation, address);
}

HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    struct allocation allocation;
    bool known = forget_address(address, &allocation);
    return freed(REAL(cuMemFreeAsync_ptsz)(address, stream), known, &allocation, address);
}
