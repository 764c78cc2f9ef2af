#include "driver.h"

#include <stdio.h>
#include <string.h>

struct state *gpu_state;
struct process *gpu_process;
pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned visible[MAX_GPUS];
static unsigned visible_count;

/* A process sees each GPU, or of one in MIG mode the first instance that it may use: as CUDA does. */
static void find_devices(void)
{
    visible_count = 0;
    for (unsigned gpu = 0; gpu < gpu_state->gpus; gpu++) {
        unsigned device = gpu * DEVICES_PER_GPU;
        if (!gpu_state->devices[device].mig_enabled) {
            if (device_is_visible(gpu_state, device))
                visible[visible_count++] = device;
            continue;
        }
        for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++)
            if (gpu_state->devices[device + instance].compute_instance && device_is_visible(gpu_state, device + instance)) {
                visible[visible_count++] = device + instance;
                break;
            }
    }
}

/* A child of a process that used the driver cannot use it, as is so of the real one. */
EXPORT CUresult cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (state_was_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&driver_lock);
    CUresult result = CUDA_SUCCESS;
    if (!gpu_process) {
        gpu_state = state_open();
        if (gpu_state)
            find_devices();
        if (!gpu_state || !visible_count)
            result = CUDA_ERROR_NO_DEVICE;
        else if (!(gpu_process = state_claim(gpu_state)))
            result = CUDA_ERROR_SYSTEM_NOT_READY;
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

__thread bool in_host_function;

/* CUDA documents of cuLaunchHostFunc() that a host function must not use it, and may be refused with this error. */
CUresult driver_status(void)
{
    if (in_host_function)
        return CUDA_ERROR_NOT_PERMITTED;
    return gpu_process && !state_was_forked() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

unsigned device_count(void)
{
    return visible_count;
}

/* Kinds of locations that this driver does not know are those of a later one: memory of the device that is named. */
CUresult device_of_location(const CUmemLocation *location, unsigned *device)
{
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *device = NOT_ON_A_DEVICE;
        return driver_status();
    default:
        return device_of(location->id & 0xff, device);
    }
}

CUresult device_of(CUdevice ordinal, unsigned *device)
{
    *device = 0;
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (ordinal < 0 || (unsigned)ordinal >= visible_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *device = visible[ordinal];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 12080;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
};

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error) {
            *name = errors[i].name;
            return CUDA_SUCCESS;
        }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error) {
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    *count = (int)visible_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    unsigned found;
    CUresult result = device_of(ordinal, &found);
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return result;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "Fake GPU");
    return result;
}

/* The first version gives the GPU's, also for an instance. */
static CUresult uuid_of(CUuuid *uuid, CUdevice ordinal, bool of_instance)
{
    unsigned device, byte, at = 0;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (gpu_state->mute)
        return CUDA_ERROR_UNKNOWN;
    const char *text = gpu_state->devices[of_instance ? device : device - device % DEVICES_PER_GPU].uuid + 4;
    for (; at < 16 && sscanf(text, "%2x", &byte) == 1; at++) {
        uuid->bytes[at] = (char)byte;
        text += 2;
        text += *text == '-';
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    return uuid_of(uuid, ordinal, false);
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    return uuid_of(uuid, ordinal, true);
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result != CUDA_SUCCESS)
        return result;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 132;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = 2048;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = (int)(device / DEVICES_PER_GPU) + 1;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        snprintf(id, (size_t)length, "0000:%02X:00.0", device / DEVICES_PER_GPU + 1);
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    unsigned device;
    CUresult result = device_of(ordinal, &device);
    if (result == CUDA_SUCCESS)
        *bytes = gpu_state->devices[device].mem_bytes;
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice ordinal)
{
    size_t all;
    CUresult result = cuDeviceTotalMem_v2(&all, ordinal);
    if (result == CUDA_SUCCESS)
        *bytes = all > 0xffffffffu ? 0xffffffffu : (unsigned)all;
    return result;
}

/* The driver's internal functions, by which its own tools pass every hook: here, one table with its length. */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    static const size_t empty_table[1] = {sizeof(size_t)};
    static const CUuuid known = {"fake-gpu-table-"};
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = memcmp(id, &known, sizeof known) == 0 ? empty_table : NULL;
    return *table ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
