/* What is known of a graph: the GPUs on which its CUDA kernels and memsets run, and its memory nodes. These take memory
   when their graph is launched, and the device's graph memory keeps it. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "allocations.h"
#include "charge.h"
#include "pools.h"
#include "process.h"
#include "usage.h"

struct graph_memory {
    CUcontext contexts[MAX_LIMITED_GPUS]; /* in which its CUDA kernels and memsets run */
    bool launches;                        /* at least one context is known */
    struct {
        uint64_t bytes;
        CUdevice device;
    } of_gpu[MAX_LIMITED_GPUS];
    uint64_t backed_since; /* the count of trims of graph memory when this graph last took memory */
};

static struct allocations executables = ALLOCATIONS_EMPTY;
static _Atomic bool any;

/* The memory of the graph that this thread is launching; NULL outside of a launch. */
static __thread struct graph_memory *launching;

static void forget(void)
{
    allocations_forget(&executables);
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

static bool add_graph(CUgraph graph, struct graph_memory *memory);

static CUcontext context_of_kernel(CUgraphNode node)
{
    CUDA_KERNEL_NODE_PARAMS parameters = {0};
    return REAL(cuGraphKernelNodeGetParams_v2)(node, &parameters) == CUDA_SUCCESS ? parameters.ctx : NULL;
}

static CUcontext active_primary_context(CUdevice device)
{
    CUcontext context;
    int active = 0;
    unsigned flags;
    if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active == 0 ||
        REAL(cuDevicePrimaryCtxRetain)(&context, device) != CUDA_SUCCESS)
        return NULL;
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
    return context;
}

/* Returns a context of the GPU that has the memory. Memory of a pool belongs to none, so that any will do. */
static CUcontext context_of_memory(CUdeviceptr address)
{
    CUcontext context = NULL;
    int device;
    if (REAL(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS && context != NULL)
        return context;
    if (REAL(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) != CUDA_SUCCESS)
        return NULL;
    return active_primary_context(device);
}

/* Drivers before CUDA 13.2 do not tell in which context a memset runs. Most often it is that of the memory. */
static CUcontext context_of_memset(CUgraphNode node)
{
    CUgraphNodeParams parameters = {0};
    if (REAL(cuGraphNodeGetParams)(node, &parameters) == CUDA_SUCCESS)
        return parameters.memset.ctx;
    if (REAL(cuGraphMemsetNodeGetParams)(node, &parameters.memset) == CUDA_SUCCESS)
        return context_of_memory(parameters.memset.dst);
    return NULL;
}

static bool add_context(CUcontext context, struct graph_memory *memory)
{
    CUdevice device;
    if (context == NULL || fgpu_device_of_context(context, &device) != CUDA_SUCCESS)
        return false;
    int gpu = fgpu_gpu_of_device(device);
    if (gpu < 0)
        return false;
    memory->contexts[gpu] = context;
    memory->launches = true;
    return true;
}

/* Adds the GPU on which the graphs of a conditional node run. Drivers before CUDA 13.2 do not tell which: it may be any
   on which the program has work. */
static bool add_conditional(CUgraphNode node, struct graph_memory *memory)
{
    CUgraphNodeParams parameters = {0};
    CUdevice device;
    bool added = false;
    if (REAL(cuGraphNodeGetParams)(node, &parameters) == CUDA_SUCCESS)
        return add_context(parameters.conditional.ctx, memory);
    for (int i = 0; REAL(cuDeviceGet)(&device, i) == CUDA_SUCCESS; i++)
        added |= add_context(active_primary_context(device), memory);
    return added;
}

static bool add_node(CUgraphNode node, struct graph_memory *memory)
{
    CUgraphNodeType type;
    CUgraph child;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters;
    if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
        return false;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL)
        return add_context(context_of_kernel(node), memory);
    if (type == CU_GRAPH_NODE_TYPE_MEMSET)
        return add_context(context_of_memset(node), memory);
    if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return add_conditional(node, memory);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH)
        return REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS && add_graph(child, memory);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
        REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) != CUDA_SUCCESS)
        return false;
    CUdevice device = fgpu_device_of_location(&parameters.poolProps.location);
    int gpu = device != NO_DEVICE ? fgpu_gpu_of_device(device) : NOT_LIMITED;
    if (gpu < 0)
        return false;
    memory->of_gpu[gpu].bytes += (parameters.bytesize + MEMORY_GRAIN - 1) / MEMORY_GRAIN * MEMORY_GRAIN;
    memory->of_gpu[gpu].device = device;
    return true;
}

static bool add_graph(CUgraph graph, struct graph_memory *memory)
{
    size_t count = 0;
    bool added = false;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return false;
    CUgraphNode *nodes = calloc(count, sizeof *nodes);
    if (nodes != NULL && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            added |= add_node(nodes[i], memory);
    free(nodes);
    return added;
}

static CUresult instantiated(CUresult result, const CUgraphExec *executable, CUgraph graph)
{
    if (result != CUDA_SUCCESS || limits_get() == NULL)
        return result;
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return result;
    process_check();
    if (add_graph(graph, memory) &&
        allocations_put(&executables, (struct allocation){.key = (uintptr_t)*executable, .owner = memory}))
        atomic_store(&any, true);
    else
        free(memory);
    return result;
}

HOOK CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                                 size_t length)
{
    return instantiated(REAL(cuGraphInstantiate)(executable, graph, error_node, log, length), executable, graph);
}

HOOK CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                                    size_t length)
{
    return instantiated(REAL(cuGraphInstantiate_v2)(executable, graph, error_node, log, length), executable, graph);
}

HOOK CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, uint64_t flags)
{
    return instantiated(REAL(cuGraphInstantiateWithFlags)(executable, graph, flags), executable, graph);
}

HOOK CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    struct allocation allocation;
    process_check();
    bool known = allocations_take(&executables, (uintptr_t)executable, &allocation);
    CUresult result = REAL(cuGraphExecDestroy)(executable);
    if (!known)
        return result;
    if (result != CUDA_SUCCESS) {
        allocations_put(&executables, allocation);
        return result;
    }
    free(allocation.owner); /* the device's graph memory keeps what the graph had */
    return result;
}

/* Reserves memory for the pool and adds it to its charge. The measurement after the launch corrects the charge. */
static CUresult reserve(struct pool *pool, uint64_t bytes)
{
    pools_measure_one(pool);
    if (usage_reserve(pool->gpu, bytes) != USAGE_GRANTED) {
        if (pools_unused(pool) >= bytes)
            return CUDA_SUCCESS;
        struct charge charge;
        CUresult result = charge_begin(&charge, pool->gpu, bytes);
        if (result != CUDA_SUCCESS)
            return result;
    }
    pool->charged += bytes;
    return CUDA_SUCCESS;
}

static void measure(const struct graph_memory *memory)
{
    for (int gpu = 0; gpu < limits_get()->gpu_count; gpu++)
        if (memory->of_gpu[gpu].bytes != 0)
            pools_measure(gpu);
}

const CUcontext *fgpu_contexts_of_graph(CUgraphExec executable)
{
    struct allocation allocation;
    process_check();
    if (!atomic_load_explicit(&any, memory_order_relaxed) ||
        !allocations_get(&executables, (uintptr_t)executable, &allocation))
        return NULL;
    const struct graph_memory *memory = allocation.owner;
    return memory->launches ? memory->contexts : NULL;
}

CUresult fgpu_before_graph_launch(CUgraphExec executable)
{
    struct allocation allocation;
    process_check();
    launching = NULL;
    if (!atomic_load_explicit(&any, memory_order_relaxed) ||
        !allocations_get(&executables, (uintptr_t)executable, &allocation))
        return CUDA_SUCCESS;
    struct graph_memory *memory = allocation.owner;
    pools_lock(); /* until after the launch: meanwhile the charge is above what the pool has */
    for (int gpu = 0; gpu < limits_get()->gpu_count; gpu++) {
        if (memory->of_gpu[gpu].bytes == 0)
            continue;
        struct pool *pool = pools_of_graphs(memory->of_gpu[gpu].device, gpu);
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
        if (pool != NULL)
            result = memory->backed_since == pools_graph_trims() ? CUDA_SUCCESS
                                                                  : reserve(pool, memory->of_gpu[gpu].bytes);
        if (result != CUDA_SUCCESS) {
            measure(memory);
            pools_unlock();
            return result;
        }
    }
    launching = memory;
    return CUDA_SUCCESS;
}

void fgpu_after_graph_launch(void)
{
    if (launching == NULL)
        return;
    launching->backed_since = pools_graph_trims();
    measure(launching);
    launching = NULL;
    pools_unlock();
}

static CUresult upload(CUgraphExec executable, CUstream stream, CUresult (*real)(CUgraphExec, CUstream))
{
    CUresult result = fgpu_before_graph_launch(executable);
    if (result != CUDA_SUCCESS)
        return result;
    result = real(executable, stream);
    fgpu_after_graph_launch();
    return result;
}

HOOK CUresult cuGraphUpload(CUgraphExec executable, CUstream stream)
{
    return upload(executable, stream, REAL(cuGraphUpload));
}

HOOK CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream)
{
    return upload(executable, stream, REAL(cuGraphUpload_ptsz));
}

/* Instantiates a graph and uploads it afterwards, if that was to be done at once: the memory of its nodes is charged
   before an upload takes it. */
static CUresult instantiate_with(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                                 CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *),
                                 CUresult (*real_upload)(CUgraphExec, CUstream))
{
    uint64_t flags = parameters != NULL ? parameters->flags : 0;
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0)
        return instantiated(real(executable, graph, parameters), executable, graph);
    parameters->flags = flags & ~(uint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult result = instantiated(real(executable, graph, parameters), executable, graph);
    parameters->flags = flags;
    if (result != CUDA_SUCCESS)
        return result;
    result = upload(*executable, parameters->hUploadStream, real_upload);
    if (result != CUDA_SUCCESS) {
        cuGraphExecDestroy(*executable);
        parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    }
    return result;
}

HOOK CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    return instantiate_with(executable, graph, parameters, REAL(cuGraphInstantiateWithParams), REAL(cuGraphUpload));
}

HOOK CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    return instantiate_with(executable, graph, parameters, REAL(cuGraphInstantiateWithParams_ptsz),
                            REAL(cuGraphUpload_ptsz));
}

HOOK CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult result = REAL(cuDeviceGraphMemTrim)(device);
    pools_graph_trimmed();
    int gpu = fgpu_gpu_of_device(device);
    if (gpu >= 0)
        pools_measure(gpu);
    return result;
}
