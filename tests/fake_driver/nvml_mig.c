#include "mig.h"

#include <stdio.h>
#include <string.h>

enum { SMS = 132, SMS_PER_SLICE = 16 };
static const struct profile profiles[] = {
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
    {NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 2, 3, {0, 2, 4}},
    {NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 4, 2, {0, 4}},
    {NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 4, 1, {0}},
    {NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 8, 1, {0}},
};
#define EACH_PROFILE(profile)                                                                                          \
    const struct profile *profile = profiles;                                                                          \
    profile < profiles + sizeof profiles / sizeof profiles[0];                                                         \
    profile++

const struct profile *profile_of_id(unsigned id)
{
    for (EACH_PROFILE(profile))
        if (profile->id == id)
            return profile;
    return NULL;
}

uint64_t profile_mib(const struct device *gpu, const struct profile *profile)
{
    return gpu->mem_bytes / MIB * profile->memory_slices / MEMORY_SLICES;
}

unsigned profile_sms(const struct profile *profile)
{
    return profile->slices == COMPUTE_SLICES ? SMS : profile->slices * SMS_PER_SLICE;
}

nvmlReturn_t mig_gpu(nvmlDevice_t handle, struct state **state, unsigned *device)
{
    nvmlReturn_t result = nvml_device(handle, false, state, device);
    if (result != NVML_SUCCESS)
        return result;
    return (*state)->devices[*device].mig_capable ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t instance_of(nvmlDevice_t handle, struct state **state, unsigned *device)
{
    nvmlReturn_t result = nvml_device(handle, true, state, device);
    return result == NVML_SUCCESS && *device % DEVICES_PER_GPU == 0 ? NVML_ERROR_INVALID_ARGUMENT : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t handle, unsigned *current, unsigned *pending)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = mig_gpu(handle, &state, &device);
    if (result == NVML_SUCCESS)
        *current = *pending = state->devices[device].mig_enabled;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t handle, unsigned mode, nvmlReturn_t *activation)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = mig_gpu(handle, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    bool in_use = state_used(state, device) > 0;
    for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++)
        in_use = in_use || state->devices[device + instance].present;
    *activation = in_use && mode != state->devices[device].mig_enabled ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    if (*activation == NVML_SUCCESS)
        state->devices[device].mig_enabled = mode == NVML_DEVICE_MIG_ENABLE;
    return *activation;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t handle, unsigned *is_mig)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    *is_mig = device % DEVICES_PER_GPU != 0;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t handle, unsigned *count)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *count = result == NVML_SUCCESS && state->devices[device].mig_capable ? MAX_INSTANCES : 0;
    return result;
}

/* An instance becomes a device when it has a compute instance. */
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t handle, unsigned index, nvmlDevice_t *mig)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = mig_gpu(handle, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned instance = device + 1; instance <= device + MAX_INSTANCES; instance++)
        if (state->devices[instance].compute_instance && device_is_visible(state, instance) && index-- == 0) {
            *mig = nvml_handle(state, instance);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *handle)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of(mig, &state, &device);
    if (result == NVML_SUCCESS)
        *handle = nvml_handle(state, device - device % DEVICES_PER_GPU);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of(mig, &state, &device);
    *id = device % DEVICES_PER_GPU;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id)
{
    struct state *state;
    unsigned device;
    *id = 0;
    return instance_of(mig, &state, &device);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t handle, nvmlDeviceAttributes_t *attributes)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of(handle, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    const struct profile *profile = profile_of_id(state->devices[device].profile);
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = profile_sms(profile),
                                           .sharedCopyEngineCount = profile->slices,
                                           .gpuInstanceSliceCount = profile->slices,
                                           .computeInstanceSliceCount = profile->slices,
                                           .memorySizeMB = state->devices[device].mem_bytes / MIB};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t handle, unsigned number,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = mig_gpu(handle, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (info->version != nvmlGpuInstanceProfileInfo_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    for (EACH_PROFILE(profile))
        if (profile->number == number) {
            const struct device *gpu = &state->devices[device];
            uint64_t gib = (gpu->mem_bytes + (1ull << 30) - 1) >> 30;
            *info = (nvmlGpuInstanceProfileInfo_v2_t){.version = nvmlGpuInstanceProfileInfo_v2,
                                                      .id = profile->id,
                                                      .sliceCount = profile->slices,
                                                      .instanceCount = profile->count,
                                                      .multiprocessorCount = profile_sms(profile),
                                                      .copyEngineCount = profile->slices,
                                                      .memorySizeMB = profile_mib(gpu, profile)};
            /* Named after the size on the box, to the nearest GB: 1g.18gb of a card of 141 GB. */
            snprintf(info->name, sizeof info->name, "MIG %ug.%llugb", profile->slices,
                     (unsigned long long)(gib * profile->memory_slices + MEMORY_SLICES / 2) / MEMORY_SLICES);
            return NVML_SUCCESS;
        }
    return number < NVML_GPU_INSTANCE_PROFILE_COUNT ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t handle, unsigned number,
                                                        nvmlGpuInstanceProfileInfo_t *info)
{
    nvmlGpuInstanceProfileInfo_v2_t all = {.version = nvmlGpuInstanceProfileInfo_v2};
    nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfoV(handle, number, &all);
    if (result == NVML_SUCCESS)
        *info = (nvmlGpuInstanceProfileInfo_t){.id = all.id,
                                               .sliceCount = all.sliceCount,
                                               .instanceCount = all.instanceCount,
                                               .multiprocessorCount = all.multiprocessorCount,
                                               .copyEngineCount = all.copyEngineCount,
                                               .memorySizeMB = all.memorySizeMB};
    return result;
}
