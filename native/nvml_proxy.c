/* NVML's memory queries: a limited GPU is shown as large as the container's cap, with the container's own use. */
#include "abi/nvml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "limits.h"
#include "real.h"
#include "usage.h"

#define HOOK __attribute__((visibility("default")))

static struct {
    __typeof__(&nvmlInit) nvmlInit;
    __typeof__(&nvmlInit_v2) nvmlInit_v2;
    __typeof__(&nvmlInitWithFlags) nvmlInitWithFlags;
    __typeof__(&nvmlDeviceGetUUID) nvmlDeviceGetUUID;
    __typeof__(&nvmlDeviceGetMemoryInfo) nvmlDeviceGetMemoryInfo;
    __typeof__(&nvmlDeviceGetMemoryInfo_v2) nvmlDeviceGetMemoryInfo_v2;
} real;

static nvmlReturn_t absent(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

__attribute__((constructor)) static void find_real_functions(void)
{
    void *driver = real_library(DRIVER_DIR "/libnvidia-ml.so.1", "nvmlInit_v2", (real_function)nvmlInit_v2);
#define FIND(function) *(real_function *)&real.function = real_symbol(driver, #function, (real_function)absent)
    FIND(nvmlInit);
    FIND(nvmlInit_v2);
    FIND(nvmlInitWithFlags);
    FIND(nvmlDeviceGetUUID);
    FIND(nvmlDeviceGetMemoryInfo);
    FIND(nvmlDeviceGetMemoryInfo_v2);
}

HOOK nvmlReturn_t nvmlInit(void)
{
    return limits_get() != NULL ? real.nvmlInit() : NVML_ERROR_NO_PERMISSION;
}

HOOK nvmlReturn_t nvmlInit_v2(void)
{
    return limits_get() != NULL ? real.nvmlInit_v2() : NVML_ERROR_NO_PERMISSION;
}

HOOK nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    return limits_get() != NULL ? real.nvmlInitWithFlags(flags) : NVML_ERROR_NO_PERMISSION;
}

struct view {
    unsigned long long *total, *free, *used;
};

static nvmlReturn_t limit(nvmlReturn_t result, nvmlDevice_t device, struct view view, bool *limited)
{
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE];
    uint64_t used;
    const struct limits *limits = limits_get();
    *limited = false;
    if (limits == NULL)
        return NVML_ERROR_NO_PERMISSION;
    if (result != NVML_SUCCESS)
        return result;
    result = real.nvmlDeviceGetUUID(device, uuid, sizeof uuid);
    if (result != NVML_SUCCESS)
        return result;
    int gpu = limits_gpu_of_uuid(limits, uuid);
    if (gpu < 0)
        return result;
    if (usage_total(gpu, &used) != USAGE_GRANTED)
        return NVML_ERROR_NO_PERMISSION;
    *limited = true;
    if (*view.total > limits->gpus[gpu].mem_bytes)
        *view.total = limits->gpus[gpu].mem_bytes;
    *view.used = used < *view.total ? used : *view.total;
    *view.free = *view.total - *view.used;
    return result;
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    bool limited;
    nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo(device, memory);
    return limit(result, device, (struct view){&memory->total, &memory->free, &memory->used}, &limited);
}

HOOK nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    bool limited;
    nvmlReturn_t result = real.nvmlDeviceGetMemoryInfo_v2(device, memory);
    result = limit(result, device, (struct view){&memory->total, &memory->free, &memory->used}, &limited);
    if (limited)
        memory->reserved = 0;
    return result;
}
