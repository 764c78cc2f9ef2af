/* NVML's memory queries: a limited GPU is shown as large as the container's cap, with the container's own use. */
#include "nvml_proxy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bounds.h"
#include "limits.h"
#include "usage.h"

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

static void *driver;

__attribute__((constructor(199))) static void find_driver(void)
{
    driver = real_library(DRIVER_DIR "/real-libnvidia-ml.so.1", "nvmlInit_v2", (real_function)nvmlInit_v2);
}

real_function nvml_real(const char *name)
{
    return real_symbol(driver, name, (real_function)absent);
}

__attribute__((constructor(200))) static void find_real_functions(void)
{
#define FIND(function) *(real_function *)&real.function = nvml_real(#function)
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

nvmlReturn_t nvml_limited_gpu(nvmlDevice_t device, int *gpu)
{
    char uuid[NVML_DEVICE_UUID_BUFFER_SIZE];
    const struct limits *limits = limits_get();
    *gpu = -1;
    if (limits == NULL)
        return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = real.nvmlDeviceGetUUID(device, uuid, sizeof uuid);
    if (result == NVML_SUCCESS)
        *gpu = limits_gpu_of_uuid(limits, uuid);
    return result;
}

struct view {
    unsigned long long *total, *free, *used;
};

static nvmlReturn_t limit(nvmlReturn_t result, nvmlDevice_t device, struct view view, bool *limited)
{
    uint64_t used;
    int gpu = -1;
    *limited = false;
    if (limits_get() == NULL)
        return NVML_ERROR_NO_PERMISSION;
    if (result == NVML_SUCCESS)
        result = nvml_limited_gpu(device, &gpu);
    if (result != NVML_SUCCESS || gpu < 0)
        return result;
    if (usage_total(gpu, &used) != USAGE_GRANTED)
        return NVML_ERROR_NO_PERMISSION;
    *limited = true;
    *view.total = least(*view.total, limits_get()->gpus[gpu].mem_bytes);
    *view.used = least(used, *view.total);
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
