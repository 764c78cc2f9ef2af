#include "mig.h"

#include <string.h>

static nvmlReturn_t enabled_gpu(nvmlDevice_t handle, struct state **state, unsigned *device)
{
    nvmlReturn_t result = mig_gpu(handle, state, device);
    if (result != NVML_SUCCESS)
        return result;
    return (*state)->devices[*device].mig_enabled ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* A GPU in MIG mode, followed by its instances, and one of the profiles that it can be cut by. */
static nvmlReturn_t profile_on(nvmlDevice_t handle, unsigned profile_id, struct device **gpu,
                               const struct profile **profile)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = enabled_gpu(handle, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    *gpu = &state->devices[device];
    *profile = profile_of_id(profile_id);
    return *profile ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static bool place_is_free(const struct device *gpu, const struct profile *profile, unsigned start)
{
    unsigned slices = profile->slices;
    for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++) {
        const struct device *other = &gpu[instance];
        if (!other->present)
            continue;
        slices += profile_of_id(other->profile)->slices;
        if (start < other->start + other->slices && other->start < start + profile->memory_slices)
            return false;
    }
    return slices <= COMPUTE_SLICES;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t handle, unsigned profile_id,
                                                                  nvmlGpuInstancePlacement_t *placements, unsigned *count)
{
    struct device *gpu;
    const struct profile *profile;
    nvmlReturn_t result = profile_on(handle, profile_id, &gpu, &profile);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; placements && i < profile->count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){profile->starts[i], profile->memory_slices};
    *count = profile->count;
    return NVML_SUCCESS;
}

/* How many more would fit, placed one after the other. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t handle, unsigned profile_id, unsigned *count)
{
    struct device *gpu;
    const struct profile *profile;
    nvmlReturn_t result = profile_on(handle, profile_id, &gpu, &profile);
    if (result != NVML_SUCCESS)
        return result;
    unsigned free_slices = COMPUTE_SLICES, places = 0;
    for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++)
        if (gpu[instance].present)
            free_slices -= profile_of_id(gpu[instance].profile)->slices;
    for (unsigned i = 0; i < profile->count; i++)
        places += place_is_free(gpu, profile, profile->starts[i]);
    *count = places < free_slices / profile->slices ? places : free_slices / profile->slices;
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlDevice_t handle, unsigned profile_id, const nvmlGpuInstancePlacement_t *placement,
                           nvmlGpuInstance_t *instance)
{
    struct device *gpu;
    const struct profile *profile;
    nvmlReturn_t result = profile_on(handle, profile_id, &gpu, &profile);
    if (result != NVML_SUCCESS)
        return result;
    struct device *made = NULL;
    state_lock();
    for (unsigned i = 0; i < profile->count; i++) {
        unsigned start = profile->starts[i];
        if ((placement && placement->start != start) || !place_is_free(gpu, profile, start))
            continue;
        for (made = gpu + 1; made->present;)
            made++;
        uint64_t skipped = gpu->skipped_ns;
        memset(made, 0, sizeof *made);
        made->present = 1;
        made->profile = profile_id;
        made->start = start;
        made->slices = profile->memory_slices;
        made->mem_bytes = profile_mib(gpu, profile) * MIB;
        made->skipped_ns = skipped;
        new_uuid(made->uuid, "MIG");
        break;
    }
    state_unlock();
    *instance = (nvmlGpuInstance_t)made;
    return made ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t handle, unsigned profile_id, nvmlGpuInstance_t *instance)
{
    return create(handle, profile_id, NULL, instance);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t handle, unsigned profile_id,
                                                             const nvmlGpuInstancePlacement_t *placement,
                                                             nvmlGpuInstance_t *instance)
{
    return create(handle, profile_id, placement, instance);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)instance, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (state->devices[device].compute_instance || state_used(state, device))
        return NVML_ERROR_IN_USE;
    state->devices[device].present = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t handle, unsigned profile_id, nvmlGpuInstance_t *instances,
                                              unsigned *count)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = enabled_gpu(handle, &state, &device);
    *count = 0;
    for (unsigned at = device + 1; result == NVML_SUCCESS && at <= device + MAX_INSTANCES; at++)
        if (state->devices[at].present && state->devices[at].profile == profile_id)
            instances[(*count)++] = (nvmlGpuInstance_t)nvml_handle(state, at);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t handle, unsigned id, nvmlGpuInstance_t *instance)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = enabled_gpu(handle, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (!id || id > MAX_INSTANCES || !state->devices[device + id].present)
        return NVML_ERROR_NOT_FOUND;
    *instance = (nvmlGpuInstance_t)nvml_handle(state, device + id);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)instance, &state, &device);
    if (result == NVML_SUCCESS)
        *info = (nvmlGpuInstanceInfo_t){
            .device = nvml_handle(state, device - device % DEVICES_PER_GPU),
            .id = device % DEVICES_PER_GPU,
            .profileId = state->devices[device].profile,
            .placement = {state->devices[device].start, state->devices[device].slices}};
    return result;
}

/* One compute instance fills its GPU instance; smaller ones are not offered. */
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned number,
                                                                 unsigned engine_profile,
                                                                 nvmlComputeInstanceProfileInfo_t *info)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)instance, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    const struct profile *profile = profile_of_id(state->devices[device].profile);
    if (engine_profile || number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (number != profile->number)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){.id = number,
                                               .sliceCount = profile->slices,
                                               .instanceCount = 1,
                                               .multiprocessorCount = profile_sms(profile),
                                               .sharedCopyEngineCount = profile->slices};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                         nvmlComputeInstance_t *compute_instance)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)instance, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (profile_of_id(state->devices[device].profile)->number != profile_id)
        return NVML_ERROR_NOT_SUPPORTED;
    if (state->devices[device].compute_instance)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    state->devices[device].compute_instance = 1;
    *compute_instance = (nvmlComputeInstance_t)instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                       nvmlComputeInstance_t *compute_instances, unsigned *count)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)instance, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    *count = state->devices[device].compute_instance &&
             profile_of_id(state->devices[device].profile)->number == profile_id;
    if (*count)
        compute_instances[0] = (nvmlComputeInstance_t)instance;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute_instance, nvmlComputeInstanceInfo_t *info)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)compute_instance, &state, &device);
    if (result == NVML_SUCCESS) {
        const struct profile *profile = profile_of_id(state->devices[device].profile);
        *info = (nvmlComputeInstanceInfo_t){.device = nvml_handle(state, device - device % DEVICES_PER_GPU),
                                            .gpuInstance = (nvmlGpuInstance_t)compute_instance,
                                            .profileId = profile->number,
                                            .placement = {0, profile->slices}};
    }
    return result;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute_instance)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = instance_of((nvmlDevice_t)compute_instance, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (state_used(state, device))
        return NVML_ERROR_IN_USE;
    state->devices[device].compute_instance = 0;
    return NVML_SUCCESS;
}
