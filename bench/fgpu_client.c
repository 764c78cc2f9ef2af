/* fgpu_client BATCHES: print the median nanoseconds of an allocation with its release, and of a launch, with the
   libcuda.so.1 that the loader finds. bench/fgpu.py runs it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cuda.h"

enum { CALLS_PER_BATCH = 1000 };

static __typeof__(&cuMemAlloc_v2) allocate;
static __typeof__(&cuMemFree_v2) release;
static __typeof__(&cuLaunchKernel) launch;
static CUfunction function;

static void require(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "fgpu_client: %s: CUDA error %d\n", what, result);
        exit(1);
    }
}

static void *look_up(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "fgpu_client: %s\n", dlerror());
        exit(1);
    }
    return found;
}

static void allocate_and_release(void)
{
    CUdeviceptr address;
    require(allocate(&address, 2 << 20), "cuMemAlloc_v2");
    require(release(address), "cuMemFree_v2");
}

static void launch_once(void)
{
    require(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static int compare(const void *left, const void *right)
{
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static double median_ns(void (*call)(void), int batches)
{
    double *times = calloc((size_t)batches, sizeof *times);
    for (int batch = 0; batch < batches; batch++) {
        struct timespec began, ended;
        clock_gettime(CLOCK_MONOTONIC, &began);
        for (int i = 0; i < CALLS_PER_BATCH; i++)
            call();
        clock_gettime(CLOCK_MONOTONIC, &ended);
        times[batch] = ((double)(ended.tv_sec - began.tv_sec) * 1e9 + (double)(ended.tv_nsec - began.tv_nsec)) / CALLS_PER_BATCH;
    }
    qsort(times, (size_t)batches, sizeof *times, compare);
    double median = times[batches / 2];
    free(times);
    return median;
}

int main(int count, char **words)
{
    int batches = count > 1 ? atoi(words[1]) : 0;
    if (batches < 1) {
        fprintf(stderr, "fgpu_client: say how many batches of %d calls to time\n", CALLS_PER_BATCH);
        return 2;
    }
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        fprintf(stderr, "fgpu_client: %s\n", dlerror());
        return 1;
    }
    CUcontext context;
    CUmodule module;
    require(((__typeof__(&cuInit))look_up(cuda, "cuInit"))(0), "cuInit");
    require(((__typeof__(&cuDevicePrimaryCtxRetain))look_up(cuda, "cuDevicePrimaryCtxRetain"))(&context, 0), "a context");
    require(((__typeof__(&cuCtxSetCurrent))look_up(cuda, "cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    require(((__typeof__(&cuModuleLoadData))look_up(cuda, "cuModuleLoadData"))(&module, "image"), "cuModuleLoadData");
    require(((__typeof__(&cuModuleGetFunction))look_up(cuda, "cuModuleGetFunction"))(&function, module, "noop"),
            "cuModuleGetFunction");
    allocate = (__typeof__(allocate))look_up(cuda, "cuMemAlloc_v2");
    release = (__typeof__(release))look_up(cuda, "cuMemFree_v2");
    launch = (__typeof__(launch))look_up(cuda, "cuLaunchKernel");
    launch_once();
    allocate_and_release();
    double pair_ns = median_ns(allocate_and_release, batches), launch_ns = median_ns(launch_once, batches);
    printf("{\"alloc_free\": %.2f, \"launch\": %.2f}\n", pair_ns, launch_ns);
    return 0;
}
