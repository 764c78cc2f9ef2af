/* A profiler's wrapper: it stands before the driver and finds it by RTLD_NEXT. */
#define _GNU_SOURCE
#include "abi/cuda.h"

#include <dlfcn.h>
#include <stdio.h>

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    CUresult (*next)(CUdeviceptr *, size_t);
    *(void **)&next = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    fprintf(stderr, "wrapped\n");
    return next(address, bytes);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult (*next)(size_t *, CUdevice);
    *(void **)&next = dlsym(RTLD_NEXT, "cuDeviceTotalMem_v2");
    fprintf(stderr, "wrapped\n");
    return next(bytes, device);
}
