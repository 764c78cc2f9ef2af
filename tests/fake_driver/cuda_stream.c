#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

/* The streams that were destroyed last. CUDA does not say what becomes of a process that uses one: here it ends. */
static _Atomic(CUstream) gone[16];
static _Atomic unsigned gone_count;

static void end(CUstream stream)
{
    gone[gone_count++ % (sizeof gone / sizeof *gone)] = stream;
    free(stream);
}

static void begin(CUstream stream)
{
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (gone[i] == stream)
            gone[i] = NULL;
}

void stream_must_exist(CUstream stream)
{
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++)
        if (gone[i] == stream) {
            fprintf(stderr, "fake driver: a stream is used that was destroyed\n");
            abort();
        }
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUstream made = calloc(1, sizeof *made);
    made->context = context;
    made->non_blocking = flags & 1;
    begin(made);
    pthread_mutex_lock(&driver_lock);
    made->next = context->streams;
    context->streams = made;
    pthread_mutex_unlock(&driver_lock);
    *stream = made;
    return CUDA_SUCCESS;
}

/* Those that are captured are never freed: their captures name them. */
void free_streams_of(CUcontext context)
{
    for (struct CUstream_st *stream = context->streams, *next; stream; stream = next) {
        next = stream->next;
        if (!stream->capture)
            end(stream);
    }
    context->streams = NULL;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(stream, flags);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!capture_ends_with(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&driver_lock);
    for (struct CUstream_st **at = &stream->context->streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    pthread_mutex_unlock(&driver_lock);
    end(stream);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}

static CUresult context_of(struct CUstream_st *stream, CUcontext *context)
{
    *context = stream->context;
    return CUDA_SUCCESS;
}

/* The legacy stream waits for all others, but those that are non-blocking; with one queue there is nothing between. */
static uint64_t finish_of(const struct CUstream_st *stream)
{
    uint64_t finish = stream->is_legacy ? stream->context->finish : stream->finish;
    return finish > stream->not_before ? finish : stream->not_before;
}

static CUresult synchronize(struct CUstream_st *stream)
{
    CUresult result = capture_forbids_stream(stream);
    if (result != CUDA_SUCCESS)
        return result;
    device_wait(&gpu_state->devices[stream->context->device], finish_of(stream));
    pools_trim(stream->context->device);
    return CUDA_SUCCESS;
}

static CUresult query(struct CUstream_st *stream)
{
    CUresult result = capture_forbids_stream(stream);
    if (result != CUDA_SUCCESS)
        return result;
    return device_now(&gpu_state->devices[stream->context->device]) < finish_of(stream) ? CUDA_ERROR_NOT_READY
                                                                                        : CUDA_SUCCESS;
}

static CUresult wait_event(struct CUstream_st *stream, CUevent event)
{
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture || event->capture)
        return capture_wait(stream, event);
    unsigned device = stream->context->device;
    if (event->recorded && event->device != device) {
        uint64_t at = event->finish - gpu_state->devices[event->device].skipped_ns + gpu_state->devices[device].skipped_ns;
        if (at > stream->not_before)
            stream->not_before = at;
    }
    return CUDA_SUCCESS;
}

/* This driver does not go on before the function has run. */
static CUresult call(struct CUstream_st *stream, CUhostFn function, void *data)
{
    if (!function || stream->capture)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = synchronize(stream);
    if (result != CUDA_SUCCESS)
        return result;
    in_host_function = true;
    function(data);
    in_host_function = false;
    return CUDA_SUCCESS;
}

EXPORT_ON_STREAM(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void *data), stream, call(on, function, data))
EXPORT_ON_STREAM(cuStreamGetCtx, (CUstream stream, CUcontext *context), stream, context_of(on, context))
EXPORT_ON_STREAM(cuStreamSynchronize, (CUstream stream), stream, synchronize(on))
EXPORT_ON_STREAM(cuStreamQuery, (CUstream stream), stream, query(on))
EXPORT_ON_STREAM(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags __attribute__((unused))), stream,
                 wait_event(on, event))

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result != CUDA_SUCCESS)
        return result;
    CUevent made = calloc(1, sizeof *made);
    made->timed = !(flags & CU_EVENT_DISABLE_TIMING);
    *event = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    free(event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

static CUresult record(CUevent event, struct CUstream_st *stream)
{
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return capture_record(stream, event);
    uint64_t finish = finish_of(stream), now = device_now(&gpu_state->devices[stream->context->device]);
    event->capture = NULL;
    event->recorded = true;
    event->device = stream->context->device;
    event->finish = finish > now ? finish : now;
    return CUDA_SUCCESS;
}

EXPORT_ON_STREAM(cuEventRecord, (CUevent event, CUstream stream), stream, record(event, on))

static CUresult event_status(CUevent event)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    return event->capture ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    CUresult result = event_status(event);
    if (result != CUDA_SUCCESS || !event->recorded)
        return result;
    return device_now(&gpu_state->devices[event->device]) < event->finish ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    CUresult result = event_status(event);
    if (result != CUDA_SUCCESS || !event->recorded)
        return result;
    device_wait(&gpu_state->devices[event->device], event->finish);
    pools_trim(event->device);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    if (!start || !end || !start->timed || !end->timed || !start->recorded || !end->recorded)
        return CUDA_ERROR_INVALID_HANDLE;
    if (cuEventQuery(start) != CUDA_SUCCESS || cuEventQuery(end) != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->finish - start->finish) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
