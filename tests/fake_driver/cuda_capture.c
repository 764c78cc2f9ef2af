#include "graph.h"

#include <stdlib.h>

enum { MAX_STREAMS = 64 };

struct capture_streams {
    struct capture capture;
    struct CUstream_st *streams[MAX_STREAMS];
    unsigned count;
    bool owns_graph;
};

_Atomic unsigned captures_ongoing;
static struct capture *ongoing;
static uint64_t last_id;
static __thread CUstreamCaptureMode thread_mode;

static bool is_of_this_thread(const struct capture *capture)
{
    return pthread_equal(capture->thread, pthread_self());
}

static bool is_endangered(const struct capture *capture)
{
    switch (thread_mode) {
    case CU_STREAM_CAPTURE_MODE_RELAXED:
        return false;
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
        return is_of_this_thread(capture) && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    default:
        return capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
               (is_of_this_thread(capture) && capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    }
}

CUresult capture_forbids(void)
{
    if (!captures_ongoing)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    for (struct capture *capture = ongoing; capture; capture = capture->next)
        if (is_endangered(capture)) {
            capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult capture_forbids_context(CUcontext context)
{
    if (!captures_ongoing)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    for (struct capture *capture = ongoing; capture; capture = capture->next)
        if (capture->origin->context == context) {
            capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult capture_forbids_stream(struct CUstream_st *stream)
{
    if (!captures_ongoing)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    if (stream->capture) {
        stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream->is_legacy) {
        for (struct capture *capture = ongoing; capture; capture = capture->next)
            if (capture->origin->context == stream->context && !capture->origin->non_blocking) {
                capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static void add_stream(struct capture *capture, struct CUstream_st *stream)
{
    struct capture_streams *all = (struct capture_streams *)capture;
    if (stream->capture || all->count == MAX_STREAMS)
        return;
    all->streams[all->count++] = stream;
    stream->capture = capture;
    stream->joined = false;
    capture->unjoined += stream != capture->origin;
}

/* Before anything is captured: the stream's work is then no longer what the origin waited for. */
static CUresult capturing(struct CUstream_st *stream)
{
    struct capture *capture = stream->capture;
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->joined) {
        stream->joined = false;
        capture->unjoined++;
    }
    return CUDA_SUCCESS;
}

static CUresult begin(struct CUstream_st *stream, CUgraph graph, CUstreamCaptureMode mode)
{
    if (stream->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture_streams *all = calloc(1, sizeof *all);
    all->owns_graph = !graph;
    if (!graph)
        cuGraphCreate(&graph, 0);
    pthread_mutex_lock(&driver_lock);
    all->capture = (struct capture){.graph = graph,
                                    .mode = mode,
                                    .status = CU_STREAM_CAPTURE_STATUS_ACTIVE,
                                    .id = ++last_id,
                                    .thread = pthread_self(),
                                    .origin = stream,
                                    .next = ongoing};
    ongoing = &all->capture;
    add_stream(&all->capture, stream);
    captures_ongoing++;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

static CUresult end(struct CUstream_st *stream, CUgraph *graph)
{
    struct capture *capture = stream->capture;
    *graph = NULL;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !is_of_this_thread(capture))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    struct capture_streams *all = (struct capture_streams *)capture;
    CUresult result = CUDA_SUCCESS;
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (capture->unjoined)
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    pthread_mutex_lock(&driver_lock);
    for (unsigned i = 0; i < all->count; i++)
        all->streams[i]->capture = NULL;
    for (struct capture **at = &ongoing; *at; at = &(*at)->next)
        if (*at == capture) {
            *at = capture->next;
            break;
        }
    captures_ongoing--;
    pthread_mutex_unlock(&driver_lock);
    if (result == CUDA_SUCCESS)
        *graph = capture->graph;
    else if (all->owns_graph)
        cuGraphDestroy(capture->graph);
    free(all);
    return result;
}

bool capture_ends_with(struct CUstream_st *stream)
{
    CUgraph none;
    return !stream->capture || (stream->capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED &&
                                end(stream, &none) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

/* While a blocking stream of its context is captured, the legacy stream has no state: CUDA documents that
   cuStreamIsCapturing() returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for it then, and does that capture no harm. */
static CUresult information(const struct CUstream_st *stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph)
{
    bool unusable = false;
    pthread_mutex_lock(&driver_lock);
    for (const struct capture *other = ongoing; other && stream->is_legacy; other = other->next)
        unusable |= other->origin->context == stream->context && !other->origin->non_blocking;
    pthread_mutex_unlock(&driver_lock);
    if (unusable)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const struct capture *capture = stream->capture;
    *status = capture ? capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    if (capture && id)
        *id = capture->id;
    if (capture && graph)
        *graph = capture->graph;
    return CUDA_SUCCESS;
}

static CUresult information_with_nodes(const struct CUstream_st *stream, CUstreamCaptureStatus *status, uint64_t *id,
                                       CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    if (dependencies)
        *dependencies = NULL;
    if (count)
        *count = 0;
    return information(stream, status, id, graph);
}

EXPORT_ON_STREAM(cuStreamBeginCapture, (CUstream stream), stream, begin(on, NULL, CU_STREAM_CAPTURE_MODE_GLOBAL))
EXPORT_ON_STREAM(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), stream, begin(on, NULL, mode))
EXPORT_ON_STREAM(cuStreamBeginCaptureToGraph,
                 (CUstream stream, CUgraph graph, const CUgraphNode *dependencies __attribute__((unused)),
                  const CUgraphEdgeData *edges __attribute__((unused)), size_t count __attribute__((unused)),
                  CUstreamCaptureMode mode),
                 stream, graph ? begin(on, graph, mode) : CUDA_ERROR_INVALID_VALUE)
/* What is captured takes the place of the graph's nodes; which of them it changes is not looked at. */
EXPORT_ON_STREAM(cuStreamBeginRecaptureToGraph,
                 (CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                  CUgraphRecaptureCallback callback __attribute__((unused)), void *data __attribute__((unused))),
                 stream, graph ? (graph_drop_nodes(graph), begin(on, graph, mode)) : CUDA_ERROR_INVALID_VALUE)
EXPORT_ON_STREAM(cuStreamEndCapture, (CUstream stream, CUgraph *graph), stream, end(on, graph))
EXPORT_ON_STREAM(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), stream,
                 information(on, status, NULL, NULL))
EXPORT_ON_STREAM(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id), stream,
                 information(on, status, id, NULL))
EXPORT_ON_STREAM(cuStreamGetCaptureInfo_v2,
                 (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                  const CUgraphNode **dependencies, size_t *count),
                 stream, information_with_nodes(on, status, id, graph, dependencies, count))
EXPORT_ON_STREAM(cuStreamGetCaptureInfo_v3,
                 (CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                  const CUgraphNode **dependencies, const CUgraphEdgeData **edges __attribute__((unused)),
                  size_t *count),
                 stream, information_with_nodes(on, status, id, graph, dependencies, count))

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult capture_duration(struct CUstream_st *stream, CUgraphNodeType type, uint64_t duration_ns,
                                 CUdeviceptr address)
{
    pthread_mutex_lock(&driver_lock);
    CUgraphNode node;
    CUresult result = capturing(stream);
    if (result == CUDA_SUCCESS)
        result = graph_add_duration(stream->capture->graph, &node, type, duration_ns, stream->context, address);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult capture_function(struct CUstream_st *stream, CUfunction function)
{
    return capture_duration(stream, CU_GRAPH_NODE_TYPE_KERNEL, function->duration_ns, 0);
}

CUresult capture_memset(struct CUstream_st *stream, CUdeviceptr address, uint64_t duration_ns)
{
    return capture_duration(stream, CU_GRAPH_NODE_TYPE_MEMSET, duration_ns, address);
}

CUresult capture_graph(struct CUstream_st *stream, CUgraphExec executable)
{
    return capture_duration(stream, CU_GRAPH_NODE_TYPE_GRAPH, graph_duration(executable), 0);
}

CUresult capture_alloc(struct CUstream_st *stream, CUdeviceptr *address, uint64_t bytes)
{
    pthread_mutex_lock(&driver_lock);
    CUgraphNode node;
    CUresult result = capturing(stream);
    if (result == CUDA_SUCCESS)
        result = graph_add_alloc(stream->capture->graph, &node, stream->context->device, bytes, address);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult capture_free(struct CUstream_st *stream, CUdeviceptr address)
{
    pthread_mutex_lock(&driver_lock);
    CUgraphNode node;
    CUresult result = capturing(stream);
    if (result == CUDA_SUCCESS)
        result = graph_add_free(stream->capture->graph, &node, address);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

CUresult capture_record(struct CUstream_st *stream, struct CUevent_st *event)
{
    event->capture = stream->capture;
    event->stream = stream;
    event->recorded = true;
    return CUDA_SUCCESS;
}

/* A stream that waits for a captured event is captured too; the origin, when it waits, joins the other back. */
CUresult capture_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
    if (!event->capture)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (stream->capture && stream->capture != event->capture)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (stream->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    pthread_mutex_lock(&driver_lock);
    struct capture *capture = event->capture;
    if (!stream->capture)
        add_stream(capture, stream);
    else if (event->stream != capture->origin && event->stream != stream && !event->stream->joined) {
        event->stream->joined = true;
        capture->unjoined--;
    }
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}
