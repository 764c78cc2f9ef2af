/* The memory that contexts cost, each of them from its begin to its end, and what cuCtxSetLimit() gives them beside. */
#include <pthread.h>
#include <stdbool.h>

#include "bounds.h"
#include "cuda_memory.h"
#include "launch.h"
#include "pools.h"
#include "process.h"
#include "usage.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct allocations contexts = ALLOCATIONS_EMPTY; /* created contexts; primary ones are not among them */
static struct allocations greens = ALLOCATIONS_EMPTY;   /* green contexts, each of which keeps its GPU's primary one */
static struct {
    CUcontext primary;
    CUdevice device;
    uint64_t charged;
} of_gpu[MAX_LIMITED_GPUS];

/* What a context has of itself, by these limits. */
#define DEFAULT_STACK_BYTES 1024u
#define DEFAULT_FIFO_BYTES (1ull << 20)
#define DEFAULT_HEAP_BYTES (8ull << 20)

/* The primary contexts stay: the driver refuses a child whose parent had any. */
static void forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    allocations_forget(&contexts);
    allocations_forget(&greens);
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

/* Locks the contexts, and reserves the memory of one. `primary`: of the GPU's primary context, which is made once. */
static CUresult begin(struct charge *charge, int gpu, bool primary)
{
    process_check();
    if (limits_get() == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&mutex);
    bool made = primary && gpu >= 0 && of_gpu[gpu].primary != NULL;
    CUresult result = charge_begin(charge, made ? NOT_LIMITED : gpu, limits_get()->context_bytes);
    if (result != CUDA_SUCCESS)
        pthread_mutex_unlock(&mutex);
    return result;
}

static CUresult end(struct charge *charge, CUresult result)
{
    charge_end(charge, result);
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Frees the charges of a context that the driver has destroyed. The caller holds the mutex. */
static void ended(int gpu, CUcontext context, uint64_t bytes)
{
    memory_ends_with(context);
    pools_measure(gpu);
    usage_release(gpu, bytes);
}

static void note_created(CUresult result, const struct charge *charge, CUcontext context)
{
    if (result == CUDA_SUCCESS && charge->gpu >= 0)
        allocations_put(&contexts, (struct allocation){
                                       .key = (uintptr_t)context, .gpu = charge->gpu, .bytes = charge->bytes});
}

static void note_primary(CUresult result, const struct charge *charge, CUcontext context, CUdevice device)
{
    if (result != CUDA_SUCCESS || charge->gpu < 0)
        return;
    of_gpu[charge->gpu].primary = context;
    of_gpu[charge->gpu].device = device;
    of_gpu[charge->gpu].charged = charge->bytes;
}

#define CREATE(device, context, call)                                                                                  \
    do {                                                                                                               \
        struct charge charge;                                                                                          \
        int gpu = fgpu_gpu_of_device(device);                                                                          \
        CUresult result = begin(&charge, gpu, false);                                                                  \
        if (result != CUDA_SUCCESS)                                                                                    \
            return result;                                                                                             \
        do                                                                                                             \
            result = (call);                                                                                           \
        while (charge_again(&charge, result));                                                                         \
        note_created(result, &charge, result == CUDA_SUCCESS ? *(context) : NULL);                                     \
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

static bool always(CUcontext context)
{
    (void)context;
    return true;
}

/* A context must be current to be detached, and is no longer once its last user has detached it. */
static bool unless_current(CUcontext context)
{
    CUcontext current = NULL;
    return REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != context;
}

static CUresult destroy(CUcontext context, CUresult (*real)(CUcontext), bool (*is_gone)(CUcontext))
{
    struct allocation allocation;
    process_check();
    launch_context_ends(context);
    pthread_mutex_lock(&mutex);
    CUresult result = real(context);
    if (result == CUDA_SUCCESS && is_gone(context) && allocations_take(&contexts, (uintptr_t)context, &allocation))
        ended(allocation.gpu, context, allocation.bytes);
    fgpu_contexts_changed();
    pthread_mutex_unlock(&mutex);
    return result;
}

HOOK CUresult cuCtxDestroy(CUcontext context)
{
    return destroy(context, REAL(cuCtxDestroy), always);
}

HOOK CUresult cuCtxDestroy_v2(CUcontext context)
{
    return destroy(context, REAL(cuCtxDestroy_v2), always);
}

HOOK CUresult cuCtxDetach(CUcontext context)
{
    return destroy(context, REAL(cuCtxDetach), unless_current);
}

HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct charge charge;
    int gpu = fgpu_gpu_of_device(device);
    CUresult result = begin(&charge, gpu, true);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuDevicePrimaryCtxRetain)(context, device);
    while (charge_again(&charge, result));
    note_primary(result, &charge, result == CUDA_SUCCESS ? *context : NULL, device);
    return end(&charge, result);
}

/* No drain of ours may go on in the primary context when it ends, and it may end in the call after this. */
static void primary_may_end(int gpu)
{
    process_check();
    pthread_mutex_lock(&mutex);
    CUcontext primary = gpu >= 0 ? of_gpu[gpu].primary : NULL;
    pthread_mutex_unlock(&mutex);
    if (primary != NULL) /* without the mutex, since this may wait for a drain */
        launch_context_ends(primary);
}

/* Notes that the primary context was released. Other code of this process may have retained it too, so the driver is
   queried whether it still exists. The caller holds the mutex. */
static void primary_released(int gpu)
{
    unsigned flags;
    int active = 1;
    if (gpu >= 0 && of_gpu[gpu].primary != NULL &&
        REAL(cuDevicePrimaryCtxGetState)(of_gpu[gpu].device, &flags, &active) == CUDA_SUCCESS && active == 0) {
        CUcontext context = of_gpu[gpu].primary;
        of_gpu[gpu].primary = NULL;
        ended(gpu, context, of_gpu[gpu].charged);
    }
}

static CUresult release_primary(CUdevice device, CUresult (*real)(CUdevice))
{
    int gpu = fgpu_gpu_of_device(device);
    primary_may_end(gpu);
    pthread_mutex_lock(&mutex);
    CUresult result = real(device);
    if (result == CUDA_SUCCESS)
        primary_released(gpu);
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

/* A green context is a part of a GPU's processors. It retains the primary context, in whose memory it lives. */
HOOK CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
    struct charge charge;
    CUcontext primary = NULL;
    int gpu = fgpu_gpu_of_device(device);
    CUresult result = begin(&charge, gpu, true);
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuGreenCtxCreate)(green, description, device, flags);
    while (charge_again(&charge, result));
    if (result == CUDA_SUCCESS && gpu >= 0) {
        allocations_put(&greens, (struct allocation){.key = (uintptr_t)*green, .gpu = gpu});
        if (REAL(cuDevicePrimaryCtxRetain)(&primary, device) == CUDA_SUCCESS) {
            REAL(cuDevicePrimaryCtxRelease_v2)(device);
            note_primary(result, &charge, primary, device);
        }
    }
    return end(&charge, result);
}

HOOK CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    struct allocation allocation;
    CUcontext context = NULL;
    process_check();
    bool known = allocations_get(&greens, (uintptr_t)green, &allocation);
    if (REAL(cuCtxFromGreenCtx)(&context, green) == CUDA_SUCCESS)
        launch_context_ends(context);
    if (known)
        primary_may_end(allocation.gpu);
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuGreenCtxDestroy)(green);
    if (result == CUDA_SUCCESS && allocations_take(&greens, (uintptr_t)green, &allocation))
        primary_released(allocation.gpu);
    fgpu_contexts_changed();
    pthread_mutex_unlock(&mutex);
    return result;
}

/* Returns the memory that a limit gives the current context, beside what every context has. */
static uint64_t limit_bytes(CUlimit limit, uint64_t value)
{
    CUdevice device;
    int processors = 0, threads = 0;
    uint64_t bytes;
    switch (limit) {
    case CU_LIMIT_PRINTF_FIFO_SIZE:
        return charge_size(above(value, DEFAULT_FIFO_BYTES));
    case CU_LIMIT_MALLOC_HEAP_SIZE:
        return charge_size(above(value, DEFAULT_HEAP_BYTES));
    case CU_LIMIT_STACK_SIZE: /* the driver keeps a stack for each thread that the GPU can have at a time */
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS ||
            REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
            REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) !=
                CUDA_SUCCESS ||
            __builtin_mul_overflow(above(value, DEFAULT_STACK_BYTES), (uint64_t)processors * (uint64_t)threads, &bytes))
            return UINT64_MAX;
        return charge_size(bytes);
    default:
        return 0;
    }
}

HOOK CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct charge charge;
    struct allocation before = {0};
    CUcontext context;
    size_t old = 0, set = value;
    int gpu = fgpu_gpu_of_current(&context);
    /* A context's address is that of a structure, so that a small number fits in. */
    uint64_t key = (uintptr_t)context | (limit & 7u), bytes = gpu >= 0 ? limit_bytes(limit, value) : 0;
    CUresult result = charge_begin(&charge, gpu, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    REAL(cuCtxGetLimit)(&old, limit);
    do
        result = REAL(cuCtxSetLimit)(limit, value);
    while (charge_again(&charge, result));
    if (charge_end(&charge, result) != CUDA_SUCCESS || gpu < 0)
        return result;
    /* The driver may have set less, or a little more, for which there may be no room. */
    if (REAL(cuCtxGetLimit)(&set, limit) == CUDA_SUCCESS && !charge_settle(&charge, limit_bytes(limit, set))) {
        REAL(cuCtxSetLimit)(limit, old);
        return charge_end(&charge, CUDA_ERROR_OUT_OF_MEMORY);
    }
    if (allocations_take(&limit_memory, key, &before))
        usage_release(before.gpu, before.bytes);
    if (charge.bytes != 0)
        memory_note(&limit_memory, &charge, context, key);
    return result;
}
