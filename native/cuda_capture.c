/* The streams that are being captured. A synchronisation of a context invalidates each capture in it. */
#include <pthread.h>
#include <stdatomic.h>

#include "launch.h"
#include "lease_table.h"
#include "process.h"

#define MOST 64
#define PATIENCE_WITH_DRAINS (LEASE_DRAIN_LIMIT + 50 * MILLISECOND)

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic unsigned count;
static struct {
    CUstream stream; /* CU_STREAM_PER_THREAD by this one of its names */
    bool begun;      /* the driver has begun it */
} captures[MOST];
static _Atomic bool lost_count; /* there were more than MOST captures at a time, so no drain is safe any more */
static _Atomic uint32_t drains; /* futex: drains that go on */

/* Returns the name by which every function knows the stream that is given to one of the per-thread default stream. */
static CUstream of_thread(CUstream stream)
{
    return stream != NULL ? stream : CU_STREAM_PER_THREAD;
}

bool capture_records(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status;
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0 && !lost_count)
        return false;
    /* An error means the legacy stream while another stream is captured. The launch itself then fails with it. */
    return REAL(cuStreamIsCapturing)(per_thread ? of_thread(stream) : stream, &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void remove_at(unsigned i)
{
    captures[i] = captures[--count];
}

static void forget_stream(CUstream stream)
{
    for (unsigned i = count; i-- > 0;)
        if (captures[i].stream == stream)
            remove_at(i);
}

/* Captures that were invalidated, or ended without a hook, are dropped: a drain does them no harm. The state of another
   thread's per-thread stream cannot be queried, so its capture stays. */
bool capture_allows_drain(void)
{
    pthread_mutex_lock(&mutex);
    for (unsigned i = count; i-- > 0;) {
        CUstreamCaptureStatus status;
        if (!captures[i].begun || captures[i].stream == CU_STREAM_PER_THREAD)
            continue;
        if (REAL(cuStreamIsCapturing)(captures[i].stream, &status) == CUDA_SUCCESS &&
            status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
            remove_at(i);
    }
    bool allowed = count == 0 && !lost_count;
    if (allowed)
        drains++;
    pthread_mutex_unlock(&mutex);
    return allowed;
}

void capture_drain_ends(void)
{
    atomic_fetch_sub(&drains, 1);
    futex_wake(&drains, false);
}

void capture_forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    count = 0;
    lost_count = false;
    drains = 0;
}

/* Notes the capture, so that no drain begins any more, and waits for drains that go on. That wait has a limit, since
   the kernels of a drain may wait for this graph. */
static void before_capture(CUstream stream)
{
    process_check();
    uint64_t until = monotonic_ns() + PATIENCE_WITH_DRAINS, now;
    pthread_mutex_lock(&mutex);
    if (count == MOST) {
        lost_count = true;
    } else {
        captures[count].stream = stream;
        captures[count++].begun = false;
    }
    pthread_mutex_unlock(&mutex);
    for (uint32_t ongoing; (ongoing = atomic_load(&drains)) != 0 && (now = monotonic_ns()) < until;)
        futex_wait(&drains, ongoing, until - now, false);
}

static CUresult after_capture(CUresult result, CUstream stream)
{
    CUstreamCaptureStatus status;
    process_check();
    pthread_mutex_lock(&mutex);
    if (REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE)
        forget_stream(stream);
    for (unsigned i = count; i-- > 0;)
        if (captures[i].stream == stream)
            captures[i].begun = true;
    pthread_mutex_unlock(&mutex);
    return result;
}

#define BEGIN(stream, call)                                                                                            \
    do {                                                                                                               \
        before_capture(stream);                                                                                        \
        return after_capture(call, stream);                                                                            \
    } while (0)

HOOK CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(stream, REAL(cuStreamBeginCapture)(stream));
}

HOOK CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(of_thread(stream), REAL(cuStreamBeginCapture_ptsz)(stream));
}

HOOK CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(stream, REAL(cuStreamBeginCapture_v2)(stream, mode));
}

HOOK CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(of_thread(stream), REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

HOOK CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t edge_count, CUstreamCaptureMode mode)
{
    BEGIN(stream, REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, edges, edge_count, mode));
}

HOOK CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                               const CUgraphEdgeData *edges, size_t edge_count,
                                               CUstreamCaptureMode mode)
{
    BEGIN(of_thread(stream),
          REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, dependencies, edges, edge_count, mode));
}

HOOK CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                            CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(stream, REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

HOOK CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                 CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(of_thread(stream), REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data));
}

HOOK CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return after_capture(REAL(cuStreamEndCapture)(stream, graph), stream);
}

HOOK CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return after_capture(REAL(cuStreamEndCapture_ptsz)(stream, graph), of_thread(stream));
}

/* Destroys the stream while no drain begins: none may query a stream that is gone, and the next stream at its address may
   be another context's. A driver may refuse to destroy one that is captured. */
static CUresult destroy(CUstream stream, CUresult (*real)(CUstream))
{
    process_check();
    pthread_mutex_lock(&mutex);
    CUresult result = real(stream);
    if (result == CUDA_SUCCESS)
        forget_stream(stream);
    pthread_mutex_unlock(&mutex);
    fgpu_contexts_changed();
    return result;
}

HOOK CUresult cuStreamDestroy(CUstream stream)
{
    return destroy(stream, REAL(cuStreamDestroy));
}

HOOK CUresult cuStreamDestroy_v2(CUstream stream)
{
    return destroy(stream, REAL(cuStreamDestroy_v2));
}
