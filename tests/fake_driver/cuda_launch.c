#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The queue is this process's alone; a thread that waits for room in it holds up no other call. */
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult enqueue(struct CUstream_st *stream, uint64_t duration_ns)
{
    CUcontext context = stream->context;
    pthread_mutex_lock(&queue_lock);
    stream->finish = device_enqueue(gpu_state, gpu_process, context->device, duration_ns, stream->not_before);
    context->finish = stream->finish;
    pthread_mutex_unlock(&queue_lock);
    return CUDA_SUCCESS;
}

struct CUmod_st {
    unsigned device;
    uint64_t bytes;
};

/* An image says how much memory it takes: "code of 1024 bytes". */
EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned long long bytes = 0;
    (void)!sscanf(image, "code of %llu bytes", &bytes);
    result = reserve_bytes(context->device, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    *module = malloc(sizeof **module);
    **module = (struct CUmod_st){context->device, bytes};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    CUresult result = driver_status();
    if (result != CUDA_SUCCESS)
        return result;
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    state_release(gpu_process, module->device, module->bytes);
    free(module);
    return CUDA_SUCCESS;
}

/* The name says how long a launch keeps the device: noop, spin_us_5000, spin_ns_800. */
EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!module || !name)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t duration_ns = 0;
    if (!strncmp(name, "spin_us_", 8))
        duration_ns = strtoull(name + 8, NULL, 10) * 1000;
    else if (!strncmp(name, "spin_ns_", 8))
        duration_ns = strtoull(name + 8, NULL, 10);
    else if (strcmp(name, "noop") != 0)
        return CUDA_ERROR_NOT_FOUND;
    CUfunction made = malloc(sizeof *made);
    made->duration_ns = duration_ns;
    *function = made;
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, struct CUstream_st *stream)
{
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (captures_ongoing) {
        if (stream->capture)
            return capture_function(stream, function);
        CUresult result = capture_forbids_stream(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return function->duration_ns ? enqueue(stream, function->duration_ns) : CUDA_SUCCESS;
}

/* A grid or a block of nothing is refused, as by the driver. */
static CUresult launch_grid(CUfunction function, const unsigned *size, struct CUstream_st *stream)
{
    for (unsigned i = 0; i < 6; i++)
        if (!size[i])
            return CUDA_ERROR_INVALID_VALUE;
    return launch(function, stream);
}

#define SIZE ((const unsigned[]){grid_x, grid_y, grid_z, block_x, block_y, block_z})
#define CONFIGURED_SIZE                                                                                                \
    ((const unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,    \
                        config->blockDimZ})
EXPORT_ON_STREAM(cuLaunchKernel,
                 (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared_bytes __attribute__((unused)), CUstream stream,
                  void **parameters __attribute__((unused)), void **extra __attribute__((unused))),
                 stream, launch_grid(function, SIZE, on))
EXPORT_ON_STREAM(cuLaunchCooperativeKernel,
                 (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                  unsigned block_y, unsigned block_z, unsigned shared_bytes __attribute__((unused)), CUstream stream,
                  void **parameters __attribute__((unused))),
                 stream, launch_grid(function, SIZE, on))
EXPORT_ON_STREAM(cuLaunchKernelEx,
                 (const CUlaunchConfig *config, CUfunction function, void **parameters __attribute__((unused)),
                  void **extra __attribute__((unused))),
                 config->hStream, launch_grid(function, CONFIGURED_SIZE, on))

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned devices, unsigned flags)
{
    (void)flags;
    CUresult result = driver_status();
    for (unsigned i = 0; i < devices && result == CUDA_SUCCESS; i++)
        /* Each needs a stream of its own device; the legacy stream would be the current one's. */
        result = launches[i].hStream ? launch(launches[i].function, launches[i].hStream) : CUDA_ERROR_INVALID_VALUE;
    return result;
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height, CUstream stream)
{
    struct CUstream_st *on = stream_of(stream, false);
    if (!on)
        return no_stream();
    return grid_width > 0 && grid_height > 0 ? launch(function, on) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int grid_width, int grid_height)
{
    return cuLaunchGridAsync(function, grid_width, grid_height, NULL);
}

EXPORT CUresult cuLaunch(CUfunction function)
{
    return cuLaunchGridAsync(function, 1, 1, NULL);
}
