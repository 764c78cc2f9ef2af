#include "nvml.h"

#include <stdio.h>
#include <string.h>

static struct state *machine;
static _Atomic int initialised;

struct state *nvml_state(nvmlReturn_t *result)
{
    *result = initialised ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    return initialised ? machine : NULL;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    machine = state_open();
    if (!machine)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    initialised++;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    initialised--;
    return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t give_text(char *to, unsigned length, const char *text)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return initialised ? give_text(version, length, machine->driver_version) : NVML_ERROR_UNINITIALIZED;
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    char own[sizeof "12." + sizeof machine->driver_version];
    if (!initialised)
        return NVML_ERROR_UNINITIALIZED;
    snprintf(own, sizeof own, "12.%s", machine->driver_version);
    return give_text(version, length, own);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 12080;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* A container that may see only an instance sees the GPU around it. */
static bool gpu_is_visible(const struct state *state, unsigned gpu)
{
    if (state->devices[gpu * DEVICES_PER_GPU].health.gone)
        return false;
    if (device_is_visible(state, gpu * DEVICES_PER_GPU))
        return true;
    for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++)
        if (device_is_visible(state, gpu * DEVICES_PER_GPU + instance))
            return true;
    return false;
}

nvmlDevice_t nvml_handle(struct state *state, unsigned device)
{
    return (nvmlDevice_t)&state->devices[device];
}

nvmlReturn_t nvml_device(nvmlDevice_t handle, bool instances, struct state **state, unsigned *device)
{
    nvmlReturn_t result;
    *device = 0;
    *state = nvml_state(&result);
    if (result != NVML_SUCCESS)
        return result;
    const struct device *first = (*state)->devices, *asked = (const struct device *)handle;
    if (asked < first || asked >= first + MAX_DEVICES || !asked->present)
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = (unsigned)(asked - first);
    if (first[*device - *device % DEVICES_PER_GPU].health.lost)
        return NVML_ERROR_GPU_IS_LOST;
    return *device % DEVICES_PER_GPU && !instances ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t result;
    const struct state *state = nvml_state(&result);
    if (!state)
        return result;
    *count = 0;
    for (unsigned gpu = 0; gpu < state->gpus; gpu++)
        *count += gpu_is_visible(state, gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
    nvmlReturn_t result;
    struct state *state = nvml_state(&result);
    if (!state)
        return result;
    for (unsigned gpu = 0; gpu < state->gpus; gpu++)
        if (gpu_is_visible(state, gpu) && index-- == 0) {
            *handle = nvml_handle(state, gpu * DEVICES_PER_GPU);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *handle)
{
    nvmlReturn_t result;
    struct state *state = nvml_state(&result);
    if (!state)
        return result;
    for (unsigned device = 0; device < MAX_DEVICES; device++) {
        bool visible = device % DEVICES_PER_GPU ? device_is_visible(state, device)
                                                : gpu_is_visible(state, device / DEVICES_PER_GPU);
        if (visible && state->devices[device].present && !strcmp(state->devices[device].uuid, uuid)) {
            *handle = nvml_handle(state, device);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *handle)
{
    nvmlReturn_t result;
    struct state *state = nvml_state(&result);
    if (!state)
        return result;
    for (unsigned gpu = 0; gpu < state->gpus; gpu++) {
        char id[32];
        snprintf(id, sizeof id, "%08X:%02X:00.0", 0, gpu + 1);
        /* Domains of four digits are taken too. */
        if (gpu_is_visible(state, gpu) && (!strcmp(id, bus_id) || !strcmp(id + 4, bus_id))) {
            *handle = nvml_handle(state, gpu * DEVICES_PER_GPU);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t handle, unsigned *index)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    *index = 0;
    if (device % DEVICES_PER_GPU) {
        for (unsigned before = device - device % DEVICES_PER_GPU + 1; before < device; before++)
            *index += state->devices[before].compute_instance && device_is_visible(state, before);
        return NVML_SUCCESS;
    }
    for (unsigned gpu = 0; gpu < device / DEVICES_PER_GPU; gpu++)
        *index += gpu_is_visible(state, gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t handle, unsigned *minor)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *minor = device / DEVICES_PER_GPU;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t handle, char *name, unsigned length)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    return result == NVML_SUCCESS ? give_text(name, length, "Fake GPU") : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t handle, char *uuid, unsigned length)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    return result == NVML_SUCCESS ? give_text(uuid, length, state->devices[device].uuid) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t handle, nvmlPciInfo_t *pci)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    unsigned bus = (device / DEVICES_PER_GPU + 1) % 256;
    *pci = (nvmlPciInfo_t){.bus = bus, .pciDeviceId = 0xfa6e10de};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", bus);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", bus);
    return NVML_SUCCESS;
}

/* Of a GPU whose instances are all that the container may see, the memory is not the container's to read. */
static nvmlReturn_t memory_of(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (!device_is_visible(state, device))
        return NVML_ERROR_NO_PERMISSION;
    uint64_t total = state->devices[device].mem_bytes, used = state_used(state, device);
    *memory = (nvmlMemory_t){.total = total, .free = used < total ? total - used : 0, .used = used};
    return NVML_SUCCESS;
}

/* What a driver keeps for itself: of the whole device. Here it is a part of what is free. */
enum { RESERVED_BYTES = 128 << 20 };

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory)
{
    return memory ? memory_of(handle, memory) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory)
{
    if (!memory)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlMemory_t first;
    nvmlReturn_t result = memory_of(handle, &first);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){.version = nvmlMemory_v2,
                                    .total = first.total,
                                    .free = first.free,
                                    .used = first.used,
                                    .reserved = RESERVED_BYTES};
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t handle, nvmlBAR1Memory_t *memory)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *memory = (nvmlBAR1Memory_t){256ull << 20, 256ull << 20, 0};
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle, nvmlUtilization_t *utilization)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    if (result != NVML_SUCCESS)
        return result;
    if (state->devices[device].mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t total = state->devices[device].mem_bytes;
    utilization->gpu = device_now(&state->devices[device]) < state->devices[device].busy_until ? 100 : 0;
    utilization->memory = total ? (unsigned)(state_used(state, device) * 100 / total) : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t handle, int sensor, unsigned *celsius)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *celsius = 40;
    return sensor ? NVML_ERROR_INVALID_ARGUMENT : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t handle, unsigned *milliwatts)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *milliwatts = 75000;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t handle, unsigned *mode)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *mode = 1;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t handle, int *major, int *minor)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    *major = 9;
    *minor = 0;
    return result;
}
