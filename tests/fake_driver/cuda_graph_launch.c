#include "graph.h"

#include <stdlib.h>

struct CUgraphExec_st {
    struct CUgraph_st graph; /* flat */
    CUgraph of;              /* if that has memory nodes */
    uint64_t duration_ns;
    bool frees_at_launch;
};

enum { GRANULARITY = 2 << 20 };
/* The memory of graphs: taken at a launch, and kept until it is trimmed. */
static struct {
    uint64_t used, used_high, reserved, reserved_high;
} graph_memory[MAX_DEVICES];

void graph_ended(CUgraphExec executable)
{
    executable->of = NULL;
}

/* "If graph contains any allocation or free nodes, there can be at most one executable graph in existence for that graph
   at a time." */
static CUresult instantiate(CUgraphExec *executable, CUgraph graph, uint64_t flags)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!executable || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->executable)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUgraphExec made = calloc(1, sizeof *made);
    graph_copy_nodes(&made->graph, graph, true);
    for (const struct CUgraphNode_st *node = made->graph.first; node; node = node->next) {
        made->duration_ns += node->duration_ns;
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            made->of = graph;
    }
    if (made->of)
        graph->executable = made;
    made->frees_at_launch = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    *executable = made;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                                   size_t length)
{
    (void)error_node;
    (void)log;
    (void)length;
    return instantiate(executable, graph, 0);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                                      size_t length)
{
    return cuGraphInstantiate(executable, graph, error_node, log, length);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, uint64_t flags)
{
    return instantiate(executable, graph, flags);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!executable)
        return CUDA_ERROR_INVALID_VALUE;
    graph_drop_nodes(&executable->graph);
    if (executable->of)
        executable->of->executable = NULL;
    free(executable);
    return CUDA_SUCCESS;
}

uint64_t graph_duration(CUgraphExec executable)
{
    return executable->duration_ns;
}

void graph_release_bytes(unsigned device, uint64_t bytes)
{
    graph_memory[device].used -= bytes;
}

/* Room for all that the graph allocates, on each device that it allocates on. */
static CUresult take_memory(CUgraphExec executable)
{
    for (const struct CUgraphNode_st *node = executable->graph.first; node; node = node->next) {
        CUdeviceptr base;
        struct allocation *found;
        if (node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || !(found = allocation_find(node->address, &base)))
            continue;
        if (found->graph_live && !executable->frees_at_launch)
            return CUDA_ERROR_INVALID_VALUE;
        if (found->graph_live)
            graph_release_bytes(node->device, node->bytes);
        found->graph_live = false;
    }
    for (unsigned device = 0; device < MAX_DEVICES; device++) {
        uint64_t wanted = graph_memory[device].used;
        for (const struct CUgraphNode_st *node = executable->graph.first; node; node = node->next)
            if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->device == device)
                wanted += node->bytes;
        wanted = (wanted + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
        if (wanted <= graph_memory[device].reserved)
            continue;
        if (reserve_bytes(device, wanted - graph_memory[device].reserved) != CUDA_SUCCESS)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph_memory[device].reserved = wanted;
        if (wanted > graph_memory[device].reserved_high)
            graph_memory[device].reserved_high = wanted;
    }
    return CUDA_SUCCESS;
}

static void run_memory_nodes(CUgraphExec executable)
{
    for (const struct CUgraphNode_st *node = executable->graph.first; node; node = node->next) {
        CUdeviceptr base;
        struct allocation *found;
        bool allocates = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        if ((!allocates && node->type != CU_GRAPH_NODE_TYPE_MEM_FREE) ||
            !(found = allocation_find(node->address, &base)) || found->graph_live == allocates)
            continue;
        found->graph_live = allocates;
        if (!allocates) {
            graph_release_bytes(found->device, found->bytes);
            continue;
        }
        graph_memory[found->device].used += found->bytes;
        if (graph_memory[found->device].used > graph_memory[found->device].used_high)
            graph_memory[found->device].used_high = graph_memory[found->device].used;
    }
}

/* A kernel runs where its context is, which need not be the device of the stream. */
static CUresult run_kernels(CUgraphExec executable, struct CUstream_st *stream)
{
    uint64_t here = 0;
    CUresult result = CUDA_SUCCESS;
    for (const struct CUgraphNode_st *node = executable->graph.first; node; node = node->next)
        if (!node->context || node->context->device == stream->context->device)
            here += node->duration_ns;
        else if (result == CUDA_SUCCESS)
            result = enqueue(&node->context->legacy, node->duration_ns);
    return result == CUDA_SUCCESS && here ? enqueue(stream, here) : result;
}

static CUresult launch(CUgraphExec executable, struct CUstream_st *stream)
{
    if (!executable)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return capture_graph(stream, executable);
    CUresult result = capture_forbids_stream(stream);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    result = take_memory(executable);
    if (result == CUDA_SUCCESS)
        run_memory_nodes(executable);
    pthread_mutex_unlock(&driver_lock);
    return result == CUDA_SUCCESS ? run_kernels(executable, stream) : result;
}

static CUresult upload(CUgraphExec executable)
{
    if (!executable)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&driver_lock);
    CUresult result = take_memory(executable);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

static CUresult instantiate_with(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(executable, graph, parameters->flags);
    if (result == CUDA_SUCCESS && parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        result = upload(*executable);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        cuGraphExecDestroy(*executable);
    parameters->result_out = result != CUDA_SUCCESS;
    return result;
}

EXPORT_ON_STREAM(cuGraphInstantiateWithParams,
                 (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters), NULL,
                 (on ? instantiate_with(executable, graph, parameters) : CUDA_ERROR_INVALID_CONTEXT))
EXPORT_ON_STREAM(cuGraphUpload, (CUgraphExec executable, CUstream stream), stream,
                 on->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : upload(executable))
EXPORT_ON_STREAM(cuGraphLaunch, (CUgraphExec executable, CUstream stream), stream, launch(executable, on))

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        result = capture_forbids();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    uint64_t keep = (graph_memory[device].used + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    state_release(gpu_process, device, graph_memory[device].reserved - keep);
    graph_memory[device].reserved = keep;
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    const uint64_t values[] = {graph_memory[device].used, graph_memory[device].used_high, graph_memory[device].reserved,
                               graph_memory[device].reserved_high};
    *(uint64_t *)value = values[attribute];
    pthread_mutex_unlock(&driver_lock);
    return CUDA_SUCCESS;
}

/* Only the high marks can be set, and only to zero. */
EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void *value)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!value || *(uint64_t *)value)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        graph_memory[device].used_high = graph_memory[device].used;
    else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        graph_memory[device].reserved_high = graph_memory[device].reserved;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&driver_lock);
    return result;
}
