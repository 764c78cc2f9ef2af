/* A program that launches on a GPU, in one of the ways in which programs do.

   launch_client DEVICE once WAY                 the driver's answer to one launch
   launch_client DEVICE work WAY KERNEL MS [spoiled]   launches for so long, and waits for the GPU after every 64
   launch_client DEVICE capture KERNEL WAY MS    captures graphs beside a thread that launches; writes how many, and how
                                                 many of them were spoiled. The WAYs 0 to 2 are modes; others: begin_capture
   launch_client DEVICE contexts KERNEL MS       launches in two contexts by turns
   launch_client DEVICE elsewhere WAY KERNEL MS  launches while the context of the next device is current; by `nodes` a
                                                 graph whose kernels are of DEVICE, into a stream of the next; by
                                                 `conditional` these are in the graph of a condition; by `memsets`, of memory of DEVICE, its pool or the next, a graph whose
                                                 memsets are of DEVICE
   launch_client DEVICE leave KERNEL             ends with launches that are not waited for */
#include "abi/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MUST(call) must(call, #call)
#define CU_STREAM_NON_BLOCKING 1
#define ONE 1, 1, 1, 1, 1, 1
#define BUFFER_BYTES (256ull << 20)

static CUfunction function;
static CUstream stream;
static CUgraphExec executable;
static CUdeviceptr buffer;
static _Atomic bool stopped;

static void must(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, result);
    exit(3);
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static CUlaunchConfig config(void)
{
    return (CUlaunchConfig){.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
                            .blockDimZ = 1, .hStream = stream};
}

static CUresult multi_device(void)
{
    CUDA_LAUNCH_PARAMS launch = {.function = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
                                 .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
    return cuLaunchCooperativeKernelMultiDevice(&launch, 1, 0);
}

static CUresult looked_up(void)
{
    static __typeof__(&cuLaunchKernel) launch;
    CUdriverProcAddressQueryResult status;
    void *found = NULL;
    if (launch == NULL) {
        MUST(cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 0, &status));
        memcpy(&launch, &found, sizeof launch);
    }
    return launch(function, ONE, 0, stream, NULL, NULL);
}

static CUresult launch_by(const char *way)
{
    CUlaunchConfig on_stream = config();
#define WAY(name, call)                                                                                                \
    if (strcmp(way, #name) == 0)                                                                                       \
    return call
    WAY(kernel, cuLaunchKernel(function, ONE, 0, stream, NULL, NULL));
    WAY(kernel_ptsz, cuLaunchKernel_ptsz(function, ONE, 0, NULL, NULL, NULL));
    WAY(ex, cuLaunchKernelEx(&on_stream, function, NULL, NULL));
    WAY(ex_ptsz, cuLaunchKernelEx_ptsz(&on_stream, function, NULL, NULL));
    WAY(cooperative, cuLaunchCooperativeKernel(function, ONE, 0, stream, NULL));
    WAY(cooperative_ptsz, cuLaunchCooperativeKernel_ptsz(function, ONE, 0, NULL, NULL));
    WAY(multi_device, multi_device());
    WAY(old, cuLaunch(function));
    WAY(grid, cuLaunchGrid(function, 1, 1));
    WAY(grid_async, cuLaunchGridAsync(function, 1, 1, stream));
    WAY(graph, cuGraphLaunch(executable, stream));
    WAY(graph_ptsz, cuGraphLaunch_ptsz(executable, NULL));
    WAY(looked_up, looked_up());
    WAY(memset, cuMemsetD8Async(buffer, 0, BUFFER_BYTES, stream));
    WAY(memset_ptsz, cuMemsetD32Async_ptsz(buffer, 0, BUFFER_BYTES / 4, NULL));
    WAY(memset_default, cuMemsetD2D16_v2(buffer, 1024, 0, 512, BUFFER_BYTES / 1024));
#undef WAY
    fprintf(stderr, "there is no way %s\n", way);
    exit(2);
}

static CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction found;
    MUST(cuModuleLoadData(&module, "image"));
    MUST(cuModuleGetFunction(&found, module, name));
    return found;
}

enum { RECAPTURE = 3, OLD, TO_GRAPH, FIRST_OF_THREAD, RECAPTURE_OF_THREAD = FIRST_OF_THREAD, OLD_OF_THREAD,
       TO_GRAPH_OF_THREAD, OF_THREAD };
static CUgraph captured;

/* Into a graph that there is already by RECAPTURE and TO_GRAPH; by the last four ways of the per-thread default stream. */
static CUresult begin_capture(int way)
{
    const CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    switch (way) {
    case RECAPTURE:
        return cuStreamBeginRecaptureToGraph(stream, mode, captured, NULL, NULL);
    case OLD:
        return cuStreamBeginCapture(stream);
    case TO_GRAPH:
        return cuStreamBeginCaptureToGraph(stream, captured, NULL, NULL, 0, mode);
    case RECAPTURE_OF_THREAD:
        return cuStreamBeginRecaptureToGraph_ptsz(NULL, mode, captured, NULL, NULL);
    case OLD_OF_THREAD:
        return cuStreamBeginCapture_ptsz(NULL);
    case TO_GRAPH_OF_THREAD:
        return cuStreamBeginCaptureToGraph_ptsz(NULL, captured, NULL, NULL, 0, mode);
    case OF_THREAD:
        return cuStreamBeginCapture_v2_ptsz(NULL, mode);
    default:
        return cuStreamBeginCapture_v2(stream, (CUstreamCaptureMode)way);
    }
}

/* Of three launches and memsets. */
static CUresult capture(int way, int pause_us, CUgraph *graph)
{
    bool of_thread = way >= FIRST_OF_THREAD;
    CUresult result = begin_capture(way);
    for (int i = 0; i < 3 && result == CUDA_SUCCESS; i++) {
        result = of_thread ? cuLaunchKernel_ptsz(function, ONE, 0, NULL, NULL, NULL)
                           : cuLaunchKernel(function, ONE, 0, stream, NULL, NULL);
        if (result == CUDA_SUCCESS)
            result = of_thread ? cuMemsetD8Async_ptsz(buffer, 0, BUFFER_BYTES, NULL)
                               : cuMemsetD8Async(buffer, 0, BUFFER_BYTES, stream);
        usleep((useconds_t)pause_us);
    }
    CUresult ended = of_thread ? cuStreamEndCapture_ptsz(NULL, graph) : cuStreamEndCapture(stream, graph);
    return result != CUDA_SUCCESS ? result : ended;
}

static void work(const char *way, double ms)
{
    CUcontext context, after;
    MUST(cuCtxGetCurrent(&context));
    double until = now_ms() + ms;
    for (int i = 1; now_ms() < until && !stopped; i++) {
        MUST(launch_by(way));
        if (i % 64 == 0)
            MUST(cuStreamSynchronize(stream));
    }
    MUST(cuCtxGetCurrent(&after));
    if (after != context)
        exit(4);
}

/* The driver takes a graph's stream, and a kernel's own context, from any device. */
static void elsewhere(const char *way, int device, double ms)
{
    CUcontext other;
    CUgraph graph;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS parameters = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
                                          .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    CUDA_MEMSET_NODE_PARAMS memset = {.dst = buffer, .elementSize = 1, .width = BUFFER_BYTES, .height = 1};
    MUST(cuCtxGetCurrent(&parameters.ctx));
    if (strcmp(way, "memsets_of_pool") == 0)
        MUST(cuMemAllocAsync(&memset.dst, BUFFER_BYTES, NULL));
    MUST(cuDevicePrimaryCtxRetain(&other, device + 1));
    MUST(cuCtxSetCurrent(other));
    if (strcmp(way, "memsets_of_next") == 0)
        MUST(cuMemAlloc_v2(&memset.dst, BUFFER_BYTES));
    bool memsets = strncmp(way, "memsets", 7) == 0, conditional = strcmp(way, "conditional") == 0;
    if (memsets || conditional || strcmp(way, "nodes") == 0) {
        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        MUST(cuGraphCreate(&graph, 0));
        for (int i = 0; i < 8 && memsets; i++)
            MUST(cuGraphAddMemsetNode(&node, graph, NULL, 0, &memset, parameters.ctx));
        CUgraph inner = graph;
        if (conditional) {
            CUgraphNodeParams condition = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL,
                                           .conditional = {.size = 1, .ctx = parameters.ctx}};
            MUST(cuGraphConditionalHandleCreate(&condition.conditional.handle, graph, parameters.ctx, 1, 1));
            MUST(cuGraphAddNode(&node, graph, NULL, 0, &condition));
            inner = condition.conditional.phGraph_out[0];
        }
        if (!memsets)
            MUST(cuGraphAddKernelNode_v2(&node, inner, NULL, 0, &parameters));
        MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
        way = "graph";
    }
    work(way, ms);
}

static CUcontext of_main;

static void *launch_beside(void *other)
{
    MUST(cuCtxSetCurrent(of_main));
    while (!stopped)
        MUST(cuLaunchKernel(function, ONE, 0, other, NULL, NULL));
    return NULL;
}

static void capture_for(int way, double ms)
{
    int captures = 0, spoiled = 0;
    pthread_t beside;
    CUstream other; /* made before any capture, which this would spoil */
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    MUST(cuGraphCreate(&captured, 0));
    pthread_create(&beside, NULL, launch_beside, other);
    for (double until = now_ms() + ms; now_ms() < until; captures++) {
        CUgraph graph = NULL;
        if (capture(way, 3000, &graph) != CUDA_SUCCESS)
            spoiled++;
        else if (graph != captured)
            MUST(cuGraphDestroy(graph));
        usleep(1000);
    }
    stopped = true;
    pthread_join(beside, NULL);
    printf("%d %d\n", captures, spoiled);
}

/* Of a capture that the program itself spoils and never ends. */
static void spoil_a_capture(void)
{
    CUstream spoiled;
    MUST(cuStreamCreate(&spoiled, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture_v2(spoiled, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (cuCtxSynchronize() == CUDA_SUCCESS)
        exit(4);
}

int main(int count, char **words)
{
    CUcontext second = NULL;
    CUgraph graph;
    if (count < 4)
        return 2;
    const char *mode = words[2];
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&of_main, atoi(words[1])));
    MUST(cuCtxSetCurrent(of_main));
    if (strcmp(mode, "contexts") == 0)
        MUST(cuCtxCreate_v2(&second, 0, atoi(words[1])));
    MUST(cuCtxSetCurrent(of_main));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&buffer, BUFFER_BYTES));
    function = kernel(strcmp(mode, "work") == 0 || strcmp(mode, "elsewhere") == 0 ? words[4] : strncmp(words[3], "spin", 4) == 0 ? words[3] : "noop");
    MUST(capture(CU_STREAM_CAPTURE_MODE_RELAXED, 0, &graph));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));

    if (strcmp(mode, "once") == 0) {
        printf("%d\n", launch_by(words[3]));
    } else if (strcmp(mode, "work") == 0) {
        if (count > 6) {
            work(words[3], 300);
            spoil_a_capture();
        }
        work(words[3], atof(words[5]));
    } else if (strcmp(mode, "elsewhere") == 0) {
        elsewhere(words[3], atoi(words[1]), atof(words[5]));
    } else if (strcmp(mode, "capture") == 0) {
        capture_for(atoi(words[4]), atof(words[5]));
    } else if (strcmp(mode, "contexts") == 0) {
        CUstream streams[2] = {stream};
        MUST(cuCtxSetCurrent(second));
        MUST(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
        for (double until = now_ms() + atof(words[4]); now_ms() < until;) {
            for (int i = 0; i < 2; i++) {
                MUST(cuCtxSetCurrent(i == 0 ? of_main : second));
                for (int j = 0; j < 8; j++)
                    MUST(cuLaunchKernel(function, ONE, 0, streams[i], NULL, NULL));
            }
            MUST(cuStreamSynchronize(streams[1]));
        }
        MUST(cuCtxDestroy_v2(second));
    } else {
        for (int i = 0; i < 40; i++)
            MUST(launch_by("kernel"));
    }
    return 0;
}
