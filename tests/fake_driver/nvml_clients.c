/* What nvidia-smi, nvitop and gpustat ask beside what the tests are about. */
#include "nvml.h"

#include <stddef.h>

/* These GPUs have none of it. A client then shows N/A; one that finds no function at all shows an error. */
#define UNSUPPORTED(function)                                                                                          \
    EXPORT nvmlReturn_t function(void);                                                                                \
    EXPORT nvmlReturn_t function(void)                                                                                 \
    {                                                                                                                  \
        return NVML_ERROR_NOT_SUPPORTED;                                                                               \
    }
#include "unsupported.def"

/* What all processes do, in the place of the structures that a driver has for it. */
static nvmlReturn_t tell(nvmlDevice_t handle, void *told)
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    if (result == NVML_SUCCESS)
        *(unsigned *)told = 1;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, void *info)
{
    return tell(device, info);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    *count = 1;
    return tell(device, pids);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, void *stats)
{
    return pid != 0 ? tell(device, stats) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned *count, void *sessions)
{
    *count = 1;
    return tell(device, sessions);
}

EXPORT nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned *count, void *sessions)
{
    *count = 1;
    return tell(device, sessions);
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, void *sample)
{
    return tell(device, sample);
}

/* An event set in which nothing ever happens. */
EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    static char only;
    *set = (nvmlEventSet_t)&only;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* nvidia-smi also calls functions by their places in a table that NVIDIA does not describe, such as for its list of
   processes. In nvidia-smi 535 one is called before each answer and must not fail; what the others give it can do
   without. */
enum { PLACES = 512, BEFORE_EACH_ANSWER = 26 };

static nvmlReturn_t absent(void)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t fine(void)
{
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *uuid)
{
    static const void *places[PLACES];
    (void)uuid;
    for (int place = 1; place < PLACES; place++)
        places[place] = place == BEFORE_EACH_ANSWER ? (const void *)fine : (const void *)absent;
    /* It begins with its size. */
    places[0] = (const void *)sizeof places;
    *table = places;
    return NVML_SUCCESS;
}
