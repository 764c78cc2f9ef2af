/* The memory that contexts cost. It is charged once for each process and GPU, from its first context to its last. */
#include <pthread.h>
#include <stdbool.h>

#include "cuda_memory.h"
#include "launch.h"
#include "pools.h"
#include "process.h"
#include "usage.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct allocations contexts = ALLOCATIONS_EMPTY; /* created contexts; primary ones are not among them */
static struct {
    int created;
    CUcontext primary;
    uint64_t charged;
} of_gpu[MAX_LIMITED_GPUS];

static void forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    allocations_forget(&contexts);
    for (int gpu = 0; gpu < MAX_LIMITED_GPUS; gpu++) {
        of_gpu[gpu].created = 0;
        of_gpu[gpu].primary = NULL;
        of_gpu[gpu].charged = 0;
    }
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

static CUresult begin(struct charge *charge, int gpu)
{
    process_check();
    if (limits_get() == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&mutex);
    bool first = gpu >= 0 && of_gpu[gpu].created == 0 && of_gpu[gpu].primary == NULL;
    CUresult result = charge_begin(charge, first ? gpu : -1, limits_get()->context_bytes);
    if (result != CUDA_SUCCESS)
        pthread_mutex_unlock(&mutex);
    return result;
}

static CUresult end(struct charge *charge, CUresult result)
{
    if (charge_end(charge, result) == CUDA_SUCCESS && charge->gpu >= 0)
        of_gpu[charge->gpu].charged = charge->bytes;
    fgpu_contexts_changed();
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Frees the charges of a context that the driver has destroyed. The caller holds the mutex. */
static void ended(int gpu, CUcontext context)
{
    fgpu_contexts_changed();
    memory_ends_with(context);
    pools_measure(gpu);
    if (of_gpu[gpu].created == 0 && of_gpu[gpu].primary == NULL) {
        usage_release(gpu, of_gpu[gpu].charged);
        of_gpu[gpu].charged = 0;
    }
}

static void note_created(CUresult result, int gpu, CUcontext context)
{
    if (result != CUDA_SUCCESS || gpu < 0)
        return;
    of_gpu[gpu].created++;
    allocations_put(&contexts, (struct allocation){.key = (uintptr_t)context, .gpu = gpu});
}

#define CREATE(device, context, call)                                                                                  \
    do {                                                                                                               \
        struct charge charge;                                                                                          \
        int gpu = fgpu_gpu_of_device(device);                                                                          \
        CUresult result = begin(&charge, gpu);                                                                         \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        do                                                                                                             \
            result = (call);                                                                                           \
        while (charge_again(&charge, result));                                                                         \
        note_created(result, gpu, result == CUDA_SUCCESS ? *(context) : NULL);                                         \
        return end(&charge, result);                                                                                   \
    } while (0)

HOOK CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    CREATE(device, context, REAL(cuCtxCreate)(context, flags, device));
}

HOOK CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    CREATE(device, context, REAL(cuCtxCreate_v2)(context, flags, device));
}

HOOK CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinities, unsigned flags,
                             CUdevice device)
{
    CREATE(device, context, REAL(cuCtxCreate_v3)(context, affinity, affinities, flags, device));
}

HOOK CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
    CREATE(device, context, REAL(cuCtxCreate_v4)(context, parameters, flags, device));
}

static CUresult destroy(CUcontext context, CUresult (*real)(CUcontext))
{
    struct allocation allocation;
    process_check();
    launch_context_ends(context);
    pthread_mutex_lock(&mutex);
    CUresult result = real(context);
    if (result == CUDA_SUCCESS && allocations_take(&contexts, (uintptr_t)context, &allocation)) {
        of_gpu[allocation.gpu].created--;
        ended(allocation.gpu, context);
    }
    fgpu_contexts_changed();
    pthread_mutex_unlock(&mutex);
    return result;
}

HOOK CUresult cuCtxDestroy(CUcontext context)
{
    return destroy(context, REAL(cuCtxDestroy));
}

HOOK CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy(context, REAL(cuCtxDestroy_v2));
}

HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct charge charge;
    int gpu = fgpu_gpu_of_device(device);
    CUresult result = begin(&charge, gpu);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    while (charge_again(&charge, result));
    if (result == CUDA_SUCCESS && gpu >= 0)
        of_gpu[gpu].primary = *context;
    return end(&charge, result);
}

/* Releases the primary context. Other code of this process may have retained it too, so the driver is queried whether
   it still exists. */
static CUresult release_primary(CUdevice device, CUresult (*real)(CUdevice))
{
    unsigned flags;
    int active = 1, gpu = fgpu_gpu_of_device(device);
    process_check();
    pthread_mutex_lock(&mutex);
    CUcontext primary = gpu >= 0 ? of_gpu[gpu].primary : NULL;
    pthread_mutex_unlock(&mutex);
    if (primary != NULL) /* without the mutex, since this may wait for a drain */
        launch_context_ends(primary);
    pthread_mutex_lock(&mutex);
    CUresult result = real(device);
    if (result == CUDA_SUCCESS && gpu >= 0 && of_gpu[gpu].primary != NULL &&
        REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active == 0) {
        CUcontext context = of_gpu[gpu].primary;
        of_gpu[gpu].primary = NULL;
        ended(gpu, context);
    }
    fgpu_contexts_changed();
    pthread_mutex_unlock(&mutex);
    return result;
}

HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release_primary(device, REAL(cuDevicePrimaryCtxRelease));
}

HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release_primary(device, REAL(cuDevicePrimaryCtxRelease_v2));
}

HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return release_primary(device, REAL(cuDevicePrimaryCtxReset));
}

HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return release_primary(device, REAL(cuDevicePrimaryCtxReset_v2));
}
