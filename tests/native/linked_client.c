/* Linked with the driver, as a program or as a plugin of one. */
#include "abi/cuda.h"

#include <stdio.h>
#include <stdlib.h>

int run(unsigned long long asked);

int run(unsigned long long asked)
{
    CUcontext context;
    CUdeviceptr address;
    size_t total = 0;
    CUresult started = cuInit(0);
    cuDeviceTotalMem_v2(&total, 0);
    if (cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS)
        cuCtxSetCurrent(context);
    printf("{\"init\": %d, \"total\": %zu, \"above\": %d}\n", started, total, cuMemAlloc_v2(&address, asked));
    return 0;
}

int main(int count, char **arguments)
{
    return count == 2 ? run(strtoull(arguments[1], NULL, 10)) : 2;
}
