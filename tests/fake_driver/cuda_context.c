#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 16, PROCESSORS = 132, THREADS = 2048, STACK_BLOCK = 512, FIFO_BLOCK = 1 << 20 };
static const size_t default_limits[LIMITS] = {1024, 1 << 20, 8 << 20};

struct CUgreenCtx_st {
    CUcontext context;
};

static struct {
    CUcontext context;
    unsigned references, flags;
} primaries[MAX_GPUS];
static CUcontext all_contexts; /* never freed: a stale handle must be told from a live one */
static __thread CUcontext stack[STACK_DEPTH];
static __thread unsigned depth;
static __thread struct CUstream_st thread_stream;

CUcontext current_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

CUresult context_status(CUcontext *context)
{
    CUresult status = driver_status();
    if (status != CUDA_SUCCESS)
        return status;
    *context = current_context();
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return (*context)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

struct CUstream_st *stream_of(CUstream stream, bool per_thread)
{
    CUcontext context;
    if (context_status(&context) != CUDA_SUCCESS)
        return NULL;
    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) {
        thread_stream.context = context;
        return &thread_stream;
    }
    if (!stream || stream == CU_STREAM_LEGACY)
        return &context->legacy;
    stream_must_exist(stream);
    return stream;
}

CUresult no_stream(void)
{
    CUcontext context;
    return context_status(&context);
}

static CUresult make(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        result = reserve_bytes(device, gpu_state->context_bytes);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext made = calloc(1, sizeof *made);
    made->ordinal = ordinal;
    made->device = device;
    made->flags = flags;
    made->alive = true;
    made->references = 1;
    memcpy(made->limits, default_limits, sizeof made->limits);
    made->legacy.context = made;
    made->legacy.is_legacy = true;
    made->next = all_contexts;
    all_contexts = made;
    gpu_process->contexts[device]++;
    *context = made;
    return CUDA_SUCCESS;
}

/* What a limit costs above the default, which every context has. The stack is each thread's. */
static uint64_t limit_bytes(unsigned limit, size_t value)
{
    uint64_t more = value > default_limits[limit] ? value - default_limits[limit] : 0;
    return limit == CU_LIMIT_STACK_SIZE ? more * PROCESSORS * THREADS : more;
}

static void destroy(CUcontext context)
{
    free_memory_of(context);
    free_arrays_of(context);
    free_streams_of(context);
    for (unsigned limit = 0; limit < LIMITS; limit++)
        state_release(gpu_process, context->device, limit_bytes(limit, context->limits[limit]));
    state_release(gpu_process, context->device, gpu_state->context_bytes);
    gpu_process->contexts[context->device]--;
    context->alive = false;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    if (!primaries[ordinal].context)
        result = make(&primaries[ordinal].context, primaries[ordinal].flags, ordinal);
    if (result == CUDA_SUCCESS) {
        primaries[ordinal].references++;
        *context = primaries[ordinal].context;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static CUresult release_primary(CUdevice ordinal, bool reset)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    if (!primaries[ordinal].context)
        result = reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    else if (reset || --primaries[ordinal].references == 0) {
        destroy(primaries[ordinal].context);
        primaries[ordinal].context = NULL;
        primaries[ordinal].references = 0;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    return release_primary(ordinal, false);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return release_primary(ordinal, false);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    return release_primary(ordinal, true);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return release_primary(ordinal, true);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        primaries[ordinal].flags = flags;
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS) {
        *flags = primaries[ordinal].flags;
        *active = primaries[ordinal].context != NULL;
    }
    return result;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    if (!context || depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    CUresult result = make(context, flags, ordinal);
    pthread_mutex_unlock(&driver_lock);
    if (result == CUDA_SUCCESS)
        stack[depth++] = *context;
    return result;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice ordinal)
{
    return cuCtxCreate_v2(context, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinities, unsigned flags,
                               CUdevice ordinal)
{
    return affinity || affinities ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, ordinal);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice ordinal)
{
    return parameters && parameters->numExecAffinityParams ? CUDA_ERROR_NOT_SUPPORTED
                                                            : cuCtxCreate_v2(context, flags, ordinal);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context->alive || context->is_green)
        return context->alive ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    for (unsigned device = 0; device < MAX_GPUS; device++)
        if (primaries[device].context == context)
            return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&driver_lock);
    destroy(context);
    pthread_mutex_unlock(&driver_lock);
    if (current_context() == context)
        depth--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    CUresult result = context_status(context);
    if (result == CUDA_SUCCESS && flags)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        (*context)->references++;
    return result;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!context || context != current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    return --context->references ? CUDA_SUCCESS : cuCtxDestroy_v2(context);
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result != CUDA_SUCCESS || (unsigned)limit >= LIMITS)
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    /* A driver may set more or less. */
    if (limit == CU_LIMIT_STACK_SIZE)
        value = (value + STACK_BLOCK - 1) / STACK_BLOCK * STACK_BLOCK;
    if (limit == CU_LIMIT_PRINTF_FIFO_SIZE)
        value = value / FIFO_BLOCK * FIFO_BLOCK;
    uint64_t before = limit_bytes(limit, context->limits[limit]);
    result = reserve_bytes(context->device, limit_bytes(limit, value));
    if (result != CUDA_SUCCESS)
        return result;
    state_release(gpu_process, context->device, before);
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS && (!value || (unsigned)limit >= LIMITS))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = context->limits[limit];
    return result;
}

/* It costs no memory of its own, and keeps the primary context. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice ordinal, unsigned flags)
{
    (void)description;
    CUcontext primary;
    if (!green || flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuDevicePrimaryCtxRetain(&primary, ordinal);
    if (result != CUDA_SUCCESS)
        return result;
    CUcontext made = calloc(1, sizeof *made);
    *made = (struct CUctx_st){.ordinal = ordinal, .device = primary->device, .alive = true, .is_green = true,
                              .references = 1};
    memcpy(made->limits, default_limits, sizeof made->limits);
    made->legacy.context = made;
    made->legacy.is_legacy = true;
    *green = malloc(sizeof **green);
    (*green)->context = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = green->context;
    free(green);
    context->alive = false;
    pthread_mutex_lock(&driver_lock);
    free_streams_of(context);
    pthread_mutex_unlock(&driver_lock);
    return release_primary(context->ordinal, false);
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    if (!context || !green)
        return CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!context || depth == STACK_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxPushCurrent_v2(context);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context)
{
    return cuCtxPopCurrent_v2(context);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!context)
        depth -= depth > 0;
    else if (depth)
        stack[depth - 1] = context;
    else
        stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    *context = current_context();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS)
        *device = context->ordinal;
    return result;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    if (!context)
        return cuCtxGetDevice(device);
    *device = context->ordinal;
    return driver_status();
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS)
        *flags = context->flags;
    return result;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!context && !current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    *version = 3020;
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext context)
{
    CUresult result = capture_forbids_context(context);
    if (result != CUDA_SUCCESS)
        return result;
    device_wait(&gpu_state->devices[context->device], context->finish);
    pools_trim(context->device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    CUcontext context;
    CUresult result = context_status(&context);
    return result == CUDA_SUCCESS ? synchronize(context) : result;
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    if (!context)
        return cuCtxSynchronize();
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    return context->alive ? synchronize(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
