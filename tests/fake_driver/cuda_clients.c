/* Functions that cuda.core and numba call beside those that the tests are about. */
#include "driver.h"

#include <stdlib.h>

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = 0;
    return result;
}

/* A library is loaded without a context, and a kernel of it can be launched as a function is. */
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *options, void **values, unsigned count,
                                  int *library_options, void **library_values, unsigned library_count)
{
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!library || !code)
        return CUDA_ERROR_INVALID_VALUE;
    *library = (CUlibrary)calloc(1, 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    free(library);
    return driver_status();
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return cuModuleGetFunction((CUfunction *)kernel, (CUmodule)library, name);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    *function = (CUfunction)kernel;
    return driver_status();
}
