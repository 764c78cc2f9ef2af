/* The driver's own limits of memory, for each control group (NVML 13.5). */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The limit of a control group on a device; with `make`, a free place where there is none yet. */
static struct limit *limit_of(struct state *state, unsigned device, const char *group, bool make)
{
    struct limit *free = NULL;
    state_drop_limits(state);
    for (unsigned i = 0; i < MAX_LIMITS; i++) {
        struct limit *limit = &state->limits[i];
        if (limit->group[0] == '\0')
            free = free ? free : limit;
        else if (limit->device == device && !strcmp(limit->group, group))
            return limit;
    }
    if (!make || !free)
        return NULL;
    free->device = device;
    free->inode = state_inode(group);
    snprintf(free->group, sizeof free->group, "%s", group);
    return free;
}

static nvmlReturn_t look(nvmlDevice_t handle, const char *group, struct state **state, unsigned *device)
{
    nvmlReturn_t result = nvml_device(handle, false, state, device);
    if (result != NVML_SUCCESS)
        return result;
    if (!group || strlen(group) >= sizeof(*state)->limits[0].group)
        return NVML_ERROR_INVALID_ARGUMENT;
    return access(group, F_OK) == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t handle, nvmlSetMemoryLimits_v1_t *limits)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = limits ? look(handle, limits->nameSpace, &state, &device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    if (geteuid() != 0)
        return NVML_ERROR_NO_PERMISSION;
    state_lock();
    bool none = limits->softLimit == 0 && limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX;
    struct limit *limit = limit_of(state, device, limits->nameSpace, !none);
    if (limit && none)
        memset(limit, 0, sizeof *limit);
    else if (limit) {
        limit->soft_bytes = limits->softLimit;
        limit->hard_bytes = limits->hardLimit;
    }
    state_unlock();
    return limit || none ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t handle, nvmlGetMemoryLimits_v1_t *limits)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = limits ? look(handle, limits->nameSpace, &state, &device) : NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return result;
    state_lock();
    state_reap(state);
    const struct limit *limit = limit_of(state, device, limits->nameSpace, false);
    limits->softLimit = limit ? limit->soft_bytes : 0;
    limits->hardLimit = limit ? limit->hard_bytes : NVML_DEVICE_MEMORY_LIMIT_MAX;
    limits->currentUsed = limit ? state_used_in(state, limit) : 0;
    state_unlock();
    return NVML_SUCCESS;
}
