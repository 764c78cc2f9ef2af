/* Libraries of a driver that answers as the environment says: what is not there succeeds, on two GPUs of which the
   second is limited. */
#include "abi/cuda.h"
#include "abi/nvml.h"

#include <stdlib.h>
#include <string.h>

static unsigned long long answer(const char *name, unsigned long long usual)
{
    const char *given = getenv(name);
    return given != NULL ? strtoull(given, NULL, 10) : usual;
}

#define STATUS(function) return (int)answer(#function, 0)

nvmlReturn_t nvmlInit_v2(void)
{
    STATUS(nvmlInit_v2);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    (void)uuid;
    *device = NULL;
    STATUS(nvmlDeviceGetHandleByUUID);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    (void)device;
    memory->total = answer("nvml_total", 0);
    STATUS(nvmlDeviceGetMemoryInfo);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    (void)device;
    memory->total = answer("nvml_total_v2", 0);
    if (memory->version != nvmlMemory_v2)
        return 1;
    STATUS(nvmlDeviceGetMemoryInfo_v2);
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    STATUS(cuInit);
}

CUresult cuDeviceGetCount(int *count)
{
    *count = 2;
    STATUS(cuDeviceGetCount);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    STATUS(cuDeviceGet);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid->bytes, device == 0 ? 0x11 : 0x22, sizeof uuid->bytes);
    STATUS(cuDeviceGetUuid);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = device == 0 ? ~0ull : answer("cuda_total", 0);
    STATUS(cuDeviceTotalMem_v2);
}
