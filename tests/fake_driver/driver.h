/* What the files of the fake libcuda.so.1 share: this process's contexts, streams, memory and graphs. */
#pragma once
#include "../../native/abi/cuda.h"
#include "state.h"

#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))
/* A function and its twin on the per-thread default stream; `on` is the stream in CALL. */
#define EXPORT_ON_STREAM(function, parameters, stream, call)                                                           \
    EXPORT CUresult function parameters                                                                                \
    {                                                                                                                  \
        struct CUstream_st *on = stream_of(stream, false);                                                             \
        return on ? call : no_stream();                                                                                \
    }                                                                                                                  \
    EXPORT CUresult function##_ptsz parameters                                                                         \
    {                                                                                                                  \
        struct CUstream_st *on = stream_of(stream, true);                                                              \
        return on ? call : no_stream();                                                                                \
    }

struct capture {
    CUgraph graph;
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status;
    uint64_t id;
    pthread_t thread;
    CUstream origin;
    unsigned unjoined; /* streams whose last work the origin does not wait for */
    struct capture *next;
};

struct CUstream_st {
    CUcontext context;
    bool is_legacy, non_blocking;
    bool joined;               /* a captured stream: the origin waits for its last work */
    struct capture *capture;
    uint64_t finish;           /* in its device's time */
    uint64_t not_before;       /* likewise: what it waits for on other devices */
    struct CUstream_st *next;  /* of the context's */
};

struct CUevent_st {
    bool timed, recorded;
    CUstream stream; /* of the last record, where that was captured */
    struct capture *capture;
    unsigned device;
    uint64_t finish;
};

enum { LIMITS = 3 };

struct CUctx_st {
    CUdevice ordinal;
    unsigned device, flags, references;
    bool alive, is_green;
    size_t limits[LIMITS];
    _Atomic uint64_t finish; /* of the last work of all its streams */
    struct CUstream_st legacy, *streams;
    struct CUctx_st *next;
};

struct CUfunc_st {
    uint64_t duration_ns;
};

enum allocation_kind { ALLOC_NONE, ALLOC_LINEAR, ALLOC_MANAGED, ALLOC_HOST, ALLOC_RESERVATION, ALLOC_POOL, ALLOC_GRAPH, ALLOC_OPENED };

struct allocation {
    enum allocation_kind kind;
    unsigned device;
    uint64_t bytes;
    CUcontext context;
    CUmemoryPool pool;
    bool graph_live;
    int shared;       /* one more than the number of memory that others may have by a handle; 0: it is this process's */
    unsigned opens;   /* of another process's */
    uint32_t next_free;
};

/* cuda_device.c */
extern struct state *gpu_state;
extern struct process *gpu_process;
extern pthread_mutex_t driver_lock; /* all of the process's own structures */
extern __thread bool in_host_function;
CUresult driver_status(void);
CUresult device_of(CUdevice ordinal, unsigned *device);
/* NOT_ON_A_DEVICE: the memory is the host's. */
enum { NOT_ON_A_DEVICE = MAX_DEVICES };
CUresult device_of_location(const CUmemLocation *location, unsigned *device);
unsigned device_count(void);

/* cuda_context.c */
CUcontext current_context(void);
CUresult context_status(CUcontext *context); /* the current one; an error where there is none */
struct CUstream_st *stream_of(CUstream stream, bool per_thread);
CUresult no_stream(void);

/* cuda_stream.c; under driver_lock. The next stream may be at the same address, as with the driver. */
void free_streams_of(CUcontext context);
/* Ends the process if the stream was destroyed. */
void stream_must_exist(CUstream stream);

/* cuda_memory.c */
CUresult reserve_bytes(unsigned device, uint64_t bytes);
/* Both under driver_lock. */
CUresult allocation_add(CUdeviceptr *address, struct allocation allocation);
struct allocation *allocation_find(CUdeviceptr address, CUdeviceptr *base);
void allocation_drop(CUdeviceptr base);
struct allocation *allocation_opened(int number, CUdeviceptr *base);
void free_memory_of(CUcontext context);
void free_arrays_of(CUcontext context);

/* cuda_vmm.c; under driver_lock. */
void array_is_gone(CUarray array);

/* cuda_pool.c */
void pools_trim(unsigned device);
void pool_give_back(CUmemoryPool pool, uint64_t bytes);

/* cuda_capture.c */
extern _Atomic unsigned captures_ongoing;
/* Calls that could break a capture are refused during one, and break it. */
CUresult capture_forbids(void);
CUresult capture_forbids_context(CUcontext context);
CUresult capture_forbids_stream(struct CUstream_st *stream);
CUresult capture_function(struct CUstream_st *stream, CUfunction function);
CUresult capture_memset(struct CUstream_st *stream, CUdeviceptr address, uint64_t duration_ns);
CUresult capture_graph(struct CUstream_st *stream, CUgraphExec executable);
CUresult capture_alloc(struct CUstream_st *stream, CUdeviceptr *address, uint64_t bytes);
CUresult capture_free(struct CUstream_st *stream, CUdeviceptr address);
CUresult capture_record(struct CUstream_st *stream, struct CUevent_st *event);
CUresult capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
/* Whether the stream may be destroyed. CUDA does not say when: this driver ends a capture so that was invalidated. */
bool capture_ends_with(struct CUstream_st *stream);

/* cuda_graph.c; the first four under driver_lock. */
CUresult graph_add_duration(CUgraph graph, CUgraphNode *node, CUgraphNodeType type, uint64_t duration_ns,
                            CUcontext context, CUdeviceptr address);
CUresult graph_add_alloc(CUgraph graph, CUgraphNode *node, unsigned device, uint64_t bytes, CUdeviceptr *address);
CUresult graph_add_free(CUgraph graph, CUgraphNode *node, CUdeviceptr address);
void graph_release_bytes(unsigned device, uint64_t bytes);
uint64_t graph_duration(CUgraphExec executable);

/* cuda_memset.c; how long it takes, or an error. */
CUresult memset_duration(CUdeviceptr address, uint64_t pitch, uint64_t width, uint64_t height, uint64_t *duration_ns);

/* cuda_launch.c */
CUresult enqueue(struct CUstream_st *stream, uint64_t duration_ns);
