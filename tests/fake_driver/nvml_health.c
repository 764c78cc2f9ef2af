/* What NVML tells of a GPU's health: as `fakegpu ail` has set it. */
#include "nvml.h"

#include <stddef.h>

static nvmlReturn_t health(nvmlDevice_t handle, const struct health **found)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    *found = result == NVML_SUCCESS ? &state->devices[device].health : NULL;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t handle, unsigned type, unsigned counter,
                                                unsigned long long *count)
{
    const struct health *of;
    nvmlReturn_t result = health(handle, &of);
    if (result == NVML_SUCCESS)
        *count = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && counter == NVML_VOLATILE_ECC ? of->ecc_errors : 0;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t handle, unsigned *corrected, unsigned *uncorrected,
                                              unsigned *pending, unsigned *failed)
{
    const struct health *of;
    nvmlReturn_t result = health(handle, &of);
    if (result != NVML_SUCCESS)
        return result;
    *corrected = *uncorrected = 0;
    *pending = of->remap_pending;
    *failed = of->remap_failed;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    const struct health *of;
    nvmlReturn_t result = health(handle, &of);
    if (result == NVML_SUCCESS)
        *reasons = of->clock_reasons;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t handle, unsigned long long *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t handle, int count, nvmlFieldValue_t *values)
{
    const struct health *of;
    nvmlReturn_t result = health(handle, &of);
    for (int i = 0; result == NVML_SUCCESS && i < count; i++) {
        bool known = values[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;
        values[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.uiVal = of->recovery;
    }
    return result;
}
