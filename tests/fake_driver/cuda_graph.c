#include "graph.h"

#include <stdlib.h>

static CUgraphNode append(CUgraph graph, struct CUgraphNode_st made)
{
    CUgraphNode node = malloc(sizeof *node);
    *node = made;
    node->next = NULL;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->count++;
    return node;
}

void graph_drop_nodes(CUgraph graph)
{
    for (struct CUgraphNode_st *node = graph->first, *next; node; node = next) {
        next = node->next;
        if (node->child) {
            graph_drop_nodes(node->child);
            free(node->child);
        }
        free(node);
    }
    graph->first = graph->last = NULL;
    graph->count = 0;
}

void graph_copy_nodes(CUgraph to, const struct CUgraph_st *from, bool flat)
{
    for (const struct CUgraphNode_st *node = from->first; node; node = node->next) {
        if (node->child && flat) {
            graph_copy_nodes(to, node->child, true);
            continue;
        }
        CUgraphNode copy = append(to, *node);
        if (node->child) {
            copy->child = calloc(1, sizeof *copy->child);
            graph_copy_nodes(copy->child, node->child, false);
        }
    }
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph->executable)
        graph_ended(graph->executable);
    graph_drop_nodes(graph);
    free(graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    size_t at = 0;
    if (nodes)
        for (CUgraphNode node = graph->first; node && at < *count; node = node->next)
            nodes[at++] = node;
    *count = nodes ? at : graph->count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    if (!node)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult graph_add_duration(CUgraph graph, CUgraphNode *node, CUgraphNodeType type, uint64_t duration_ns,
                            CUcontext context, CUdeviceptr address)
{
    *node = append(graph, (struct CUgraphNode_st){
                              .type = type, .duration_ns = duration_ns, .context = context, .address = address});
    return CUDA_SUCCESS;
}

CUresult graph_add_alloc(CUgraph graph, CUgraphNode *node, unsigned device, uint64_t bytes, CUdeviceptr *address)
{
    CUresult result = allocation_add(address, (struct allocation){.kind = ALLOC_GRAPH, .device = device, .bytes = bytes});
    if (result == CUDA_SUCCESS)
        *node = append(graph, (struct CUgraphNode_st){.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                                                      .bytes = bytes,
                                                      .device = device,
                                                      .address = *address});
    return result;
}

CUresult graph_add_free(CUgraph graph, CUgraphNode *node, CUdeviceptr address)
{
    CUdeviceptr base;
    const struct allocation *found = allocation_find(address, &base);
    if (!found || found->kind != ALLOC_GRAPH || base != address)
        return CUDA_ERROR_INVALID_VALUE;
    *node = append(graph, (struct CUgraphNode_st){.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .address = address});
    return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, CUfunction function, CUcontext context)
{
    if (!node || !graph || !function)
        return CUDA_ERROR_INVALID_VALUE;
    return graph_add_duration(graph, node, CU_GRAPH_NODE_TYPE_KERNEL, function->duration_ns,
                              context ? context : current_context(), 0);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                     const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    (void)dependencies;
    (void)count;
    return parameters ? add_kernel(node, graph, parameters->func, NULL) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                        size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    (void)dependencies;
    (void)count;
    return parameters ? add_kernel(node, graph, parameters->func, parameters->ctx) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
    if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    *parameters = (CUDA_KERNEL_NODE_PARAMS){.ctx = node->context};
    return CUDA_SUCCESS;
}

/* "ctx: Context on which to run the node": it need not be that of the memory, nor of the stream of a launch. */
EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                     const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context)
{
    (void)dependencies;
    (void)count;
    uint64_t duration_ns;
    if (!node || !graph || !parameters || !context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = memset_duration(parameters->dst, parameters->pitch, parameters->width * parameters->elementSize,
                                      parameters->height, &duration_ns);
    return result == CUDA_SUCCESS ? graph_add_duration(graph, node, CU_GRAPH_NODE_TYPE_MEMSET, duration_ns, context,
                                                       parameters->dst)
                                  : result;
}

EXPORT CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *parameters)
{
    if (!node || node->type != CU_GRAPH_NODE_TYPE_MEMSET)
        return CUDA_ERROR_INVALID_VALUE;
    parameters->dst = node->address;
    return CUDA_SUCCESS;
}

/* Drivers before CUDA 13.2 lack it. */
EXPORT CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *parameters)
{
    if (atoi(gpu_state->driver_version) < 595)
        return CUDA_ERROR_NOT_FOUND;
    if (!node || !parameters)
        return CUDA_ERROR_INVALID_VALUE;
    *parameters = (CUgraphNodeParams){.type = node->type};
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL)
        parameters->kernel.ctx = node->context;
    if (node->type == CU_GRAPH_NODE_TYPE_MEMSET)
        parameters->memset = (CUDA_MEMSET_NODE_PARAMS){.dst = node->address, .ctx = node->context};
    if (node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        parameters->conditional.ctx = node->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    (void)dependencies;
    (void)count;
    unsigned device;
    if (!node || !graph || !parameters || !parameters->bytesize ||
        parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(parameters->poolProps.location.id, &device);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    result = graph_add_alloc(graph, node, device, parameters->bytesize, &parameters->dptr);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    if (!node || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    int ordinal = 0;
    for (unsigned device; device_of(ordinal, &device) == CUDA_SUCCESS && device != node->device;)
        ordinal++;
    *parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}},
        .bytesize = node->bytes,
        .dptr = node->address};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                      CUdeviceptr address)
{
    (void)dependencies;
    (void)count;
    if (!node || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&driver_lock);
    CUresult result = graph_add_free(graph, node, address);
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
    if (!node || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *address = node->address;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t count, CUgraph child)
{
    (void)dependencies;
    (void)count;
    if (!node || !graph || !child)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph copy = calloc(1, sizeof *copy);
    graph_copy_nodes(copy, child, false);
    *node = append(graph, (struct CUgraphNode_st){.type = CU_GRAPH_NODE_TYPE_GRAPH, .child = copy});
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    if (!node || node->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                               unsigned value, unsigned flags)
{
    (void)value;
    (void)flags;
    if (!handle || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (uintptr_t)(context ? context : current_context());
    return CUDA_SUCCESS;
}

/* Its graph always runs, once. The program fills it after this call. */
static CUresult add_conditional(CUgraphNode *node, CUgraph graph, CUDA_CONDITIONAL_NODE_PARAMS *parameters)
{
    if (!node || !graph || !parameters->ctx || parameters->handle != (uintptr_t)parameters->ctx)
        return CUDA_ERROR_INVALID_VALUE;
    *node = append(graph, (struct CUgraphNode_st){.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                                  .context = parameters->ctx,
                                                  .child = calloc(1, sizeof *graph)});
    parameters->phGraph_out = &(*node)->child;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    (void)dependencies;
    (void)count;
    return node && graph ? graph_add_duration(graph, node, CU_GRAPH_NODE_TYPE_EMPTY, 0, NULL, 0)
                         : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUgraphNodeParams *parameters)
{
    if (!parameters)
        return CUDA_ERROR_INVALID_VALUE;
    switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return add_kernel(node, graph, parameters->kernel.func, parameters->kernel.ctx);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, dependencies, count, &parameters->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, dependencies, count, parameters->free.dptr);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(node, graph, dependencies, count, parameters->graph.graph);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return add_conditional(node, graph, &parameters->conditional);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return cuGraphAddEmptyNode(node, graph, dependencies, count);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    (void)edges;
    return cuGraphAddNode(node, graph, dependencies, count, parameters);
}
