/* Launches, which take turns by the compute lease of their GPU. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "bounds.h"
#include "launch.h"
#include "lease.h"
#include "lease_table.h"

#define MOST_CONTEXTS 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct lease *) leases[MAX_LIMITED_GPUS];

/* The contexts in which something was launched, so that a drain synchronises them. */
static struct used_context {
    CUcontext context; /* NULL: free */
    int gpu;
} contexts[MOST_CONTEXTS];
static _Atomic(CUcontext) draining[MAX_LIMITED_GPUS];
static _Atomic uint32_t drained; /* futex */
static _Atomic unsigned contexts_ended = 1;
static __thread struct {
    CUcontext context;
    unsigned ended;
} known;

/* The contexts stay: the driver refuses a child whose parent had any. */
static void forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    EACH_LIMITED_GPU(gpu)
        atomic_store(&draining[gpu], NULL);
    capture_forget();
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

static void note_context(CUcontext context, int gpu)
{
    struct used_context *free = NULL;
    known.ended = atomic_load(&contexts_ended);
    known.context = context;
    pthread_mutex_lock(&mutex);
    FOR_EACH(used, contexts) {
        if (used->context == context) {
            pthread_mutex_unlock(&mutex);
            return;
        }
        if (used->context == NULL)
            free = used;
    }
    if (free != NULL) /* launches in more contexts than there are places are not drained */
        *free = (struct used_context){context, gpu};
    pthread_mutex_unlock(&mutex);
}

void launch_context_ends(CUcontext context)
{
    process_check();
    pthread_mutex_lock(&mutex);
    FOR_EACH(used, contexts)
        if (used->context == context)
            used->context = NULL;
    atomic_fetch_add(&contexts_ended, 1);
    pthread_mutex_unlock(&mutex);
    EACH_LIMITED_GPU(gpu)
        for (uint32_t seen = atomic_load(&drained); atomic_load(&draining[gpu]) == context; seen = atomic_load(&drained))
            futex_wait(&drained, seen, LEASE_DRAIN_LIMIT, false);
}

/* Waits for the context's work. False: a capture forbids that, perhaps one that was invalidated and never ended. */
static bool synchronize(CUcontext context)
{
    CUcontext popped;
    /* The context becomes current in this thread alone, which is ours: the program's threads do not notice. */
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (capture_allows_drain()) {
            result = REAL(cuCtxSynchronize)();
            capture_drain_ends();
        }
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

static bool drain(void *argument)
{
    int gpu = (int)(intptr_t)argument;
    bool waited = true;
    FOR_EACH(used, contexts) {
        pthread_mutex_lock(&mutex);
        CUcontext context = used->gpu == gpu ? used->context : NULL;
        atomic_store(&draining[gpu], context);
        pthread_mutex_unlock(&mutex);
        if (context == NULL)
            continue;
        waited = synchronize(context) && waited;
        atomic_store(&draining[gpu], NULL);
        atomic_fetch_add(&drained, 1);
        futex_wake(&drained, false);
    }
    return waited;
}

static struct lease *open_lease(int gpu)
{
    const struct limits *limits = limits_get();
    const struct gpu_limit *limit = &limits->gpus[gpu];
    char path[sizeof FGPU_STATE "/lease/" + sizeof limit->uuid];
    struct lease_terms terms = {
        .share_milli = limit->compute_milli,
        .limit_milli = limits->compute == COMPUTE_HARD ? limit->compute_milli : limit->limit_milli,
        .best_effort = limits->best_effort,
    };
    snprintf(path, sizeof path, "%s/lease/%s", FGPU_STATE, limit->uuid);
    pthread_mutex_lock(&mutex);
    struct lease *lease = atomic_load(&leases[gpu]);
    if (lease == NULL)
        lease = lease_open(path, limits->kernel, terms, drain, (void *)(intptr_t)gpu);
    atomic_store(&leases[gpu], lease);
    pthread_mutex_unlock(&mutex);
    return lease;
}

static CUresult wait_for_turn_of(int gpu, CUcontext context)
{
    process_check();
    struct lease *lease = atomic_load_explicit(&leases[gpu], memory_order_acquire);
    if (lease == NULL && (lease = open_lease(gpu)) == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    if (known.context != context || known.ended != atomic_load_explicit(&contexts_ended, memory_order_relaxed))
        note_context(context, gpu);
    return lease_before_launch(lease) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult launch_wait_for_turn(CUstream stream, bool per_thread)
{
    CUcontext context;
    const struct limits *limits = limits_get();
    if (limits == NULL)
        return CUDA_ERROR_NOT_PERMITTED;
    if (limits->compute == COMPUTE_NONE)
        return CUDA_SUCCESS;
    int gpu = fgpu_gpu_of_stream(stream, &context);
    if (gpu == NOT_LIMITED || capture_records(stream, per_thread))
        return CUDA_SUCCESS;
    return gpu == GPU_UNKNOWN ? CUDA_ERROR_NOT_PERMITTED : wait_for_turn_of(gpu, context);
}

HOOK CUresult cuLaunch(CUfunction function)
{
    IN_TURN(NULL, false, REAL(cuLaunch)(function));
}

HOOK CUresult cuLaunchGrid(CUfunction function, int grid_width, int grid_height)
{
    IN_TURN(NULL, false, REAL(cuLaunchGrid)(function, grid_width, grid_height));
}

HOOK CUresult cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height, CUstream stream)
{
    IN_TURN(stream, false, REAL(cuLaunchGridAsync)(function, grid_width, grid_height, stream));
}

/* Defines the hooks of a launch function: on the given stream, and on the per-thread default stream. */
#define ON_BOTH(name, parameters, stream, arguments)                                                                   \
    HOOK CUresult name parameters                                                                                      \
    {                                                                                                                  \
        IN_TURN(stream, false, REAL(name) arguments);                                                                  \
    }                                                                                                                  \
    HOOK CUresult name##_ptsz parameters                                                                               \
    {                                                                                                                  \
        IN_TURN(stream, true, REAL(name##_ptsz) arguments);                                                            \
    }

ON_BOTH(cuLaunchKernel,
        (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
         unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra),
        stream,
        (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra))
ON_BOTH(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
        config != NULL ? config->hStream : NULL, (config, function, parameters, extra))
ON_BOTH(cuLaunchCooperativeKernel,
        (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
         unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters),
        stream, (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters))

HOOK CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned devices, unsigned flags)
{
    for (unsigned i = 0; i < devices && launches != NULL; i++) {
        CUresult result = launch_wait_for_turn(launches[i].hStream, false);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, devices, flags);
}

/* Waits for turns on the GPUs, other than the stream's, on which the graph's CUDA kernels and memsets run. */
static CUresult wait_for_kernels(CUgraphExec executable, CUstream stream)
{
    CUcontext context;
    CUresult result = CUDA_SUCCESS;
    const CUcontext *contexts = fgpu_contexts_of_graph(executable);
    if (contexts == NULL || limits_get()->compute == COMPUTE_NONE)
        return CUDA_SUCCESS;
    int of_stream = fgpu_gpu_of_stream(stream, &context);
    EACH_LIMITED_GPU(gpu)
        if (result == CUDA_SUCCESS && contexts[gpu] != NULL && gpu != of_stream)
            result = wait_for_turn_of(gpu, contexts[gpu]);
    return result;
}

static CUresult launch_graph(CUgraphExec executable, CUstream stream, bool per_thread,
                             CUresult (*real)(CUgraphExec, CUstream))
{
    if (capture_records(stream, per_thread))
        return real(executable, stream);
    CUresult result = launch_wait_for_turn(stream, per_thread);
    if (result == CUDA_SUCCESS)
        result = wait_for_kernels(executable, stream);
    if (result == CUDA_SUCCESS)
        result = fgpu_before_graph_launch(executable);
    if (result != CUDA_SUCCESS)
        return result;
    result = real(executable, stream);
    fgpu_after_graph_launch();
    return result;
}

HOOK CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    return launch_graph(executable, stream, false, REAL(cuGraphLaunch));
}

HOOK CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream)
{
    return launch_graph(executable, stream, true, REAL(cuGraphLaunch_ptsz));
}
