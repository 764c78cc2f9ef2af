/* smi: the devices, as nvidia-smi shows them: by the libraries that the loader finds under their plain names.
   smi hold BYTES [DEVICE]: allocates and holds until its standard input ends; exits 2 where it is refused. */
#include "../../native/abi/cuda.h"
#include "../../native/abi/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *load(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "smi: %s\n", dlerror());
        exit(1);
    }
    return library;
}

#define FROM(library, function) __typeof__(&function) p_##function = (__typeof__(&function))dlsym(library, #function)

static int show(void)
{
    void *nvml = load("libnvidia-ml.so.1");
    FROM(nvml, nvmlInit_v2);
    FROM(nvml, nvmlErrorString);
    FROM(nvml, nvmlDeviceGetCount_v2);
    FROM(nvml, nvmlDeviceGetHandleByIndex_v2);
    FROM(nvml, nvmlDeviceGetUUID);
    FROM(nvml, nvmlDeviceGetMemoryInfo);
    FROM(nvml, nvmlDeviceGetMemoryInfo_v2);
    nvmlReturn_t result = p_nvmlInit_v2();
    unsigned count = 0;
    if (result == NVML_SUCCESS)
        result = p_nvmlDeviceGetCount_v2(&count);
    for (unsigned index = 0; index < count && result == NVML_SUCCESS; index++) {
        nvmlDevice_t device;
        nvmlMemory_t memory = {0};
        nvmlMemory_v2_t memory_v2 = {.version = nvmlMemory_v2};
        char uuid[NVML_DEVICE_UUID_BUFFER_SIZE] = "";
        result = p_nvmlDeviceGetHandleByIndex_v2(index, &device);
        if (result == NVML_SUCCESS)
            result = p_nvmlDeviceGetUUID(device, uuid, sizeof uuid);
        if (result == NVML_SUCCESS)
            result = p_nvmlDeviceGetMemoryInfo(device, &memory);
        if (result == NVML_SUCCESS)
            result = p_nvmlDeviceGetMemoryInfo_v2(device, &memory_v2);
        if (result == NVML_SUCCESS && memory.total != memory_v2.total)
            printf("%u %s the two versions differ: %llu and %llu\n", index, uuid, memory.total, memory_v2.total);
        else if (result == NVML_SUCCESS)
            printf("%u %s total %llu used %llu\n", index, uuid, memory.total, memory.used);
    }
    if (result != NVML_SUCCESS)
        fprintf(stderr, "smi: NVML: %s\n", p_nvmlErrorString(result));
    return result == NVML_SUCCESS ? 0 : 1;
}

static int hold(size_t bytes, int ordinal)
{
    void *cuda = load("libcuda.so.1");
    FROM(cuda, cuInit);
    FROM(cuda, cuDeviceGet);
    FROM(cuda, cuDevicePrimaryCtxRetain);
    FROM(cuda, cuCtxSetCurrent);
    FROM(cuda, cuMemAlloc_v2);
    FROM(cuda, cuMemGetInfo_v2);
    CUdevice device;
    CUcontext context;
    CUdeviceptr address;
    size_t available = 0, total = 0;
    CUresult result = p_cuInit(0);
    if (result == CUDA_SUCCESS)
        result = p_cuDeviceGet(&device, ordinal);
    if (result == CUDA_SUCCESS)
        result = p_cuDevicePrimaryCtxRetain(&context, device);
    if (result == CUDA_SUCCESS)
        result = p_cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS)
        result = p_cuMemAlloc_v2(&address, bytes);
    if (result == CUDA_SUCCESS)
        result = p_cuMemGetInfo_v2(&available, &total);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "smi: CUDA error %d\n", result);
        return result == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 1;
    }
    printf("holds %zu; free %zu total %zu\n", bytes, available, total);
    fflush(stdout);
    for (char byte; read(STDIN_FILENO, &byte, 1) > 0;) {
    }
    return 0;
}

int main(int count, char **words)
{
    if (count > 2 && !strcmp(words[1], "hold"))
        return hold(strtoull(words[2], NULL, 10), count > 3 ? atoi(words[3]) : 0);
    return show();
}
