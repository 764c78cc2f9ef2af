/* NVML's processes and utilisation: of a limited GPU a container sees its own processes, by its usage table, and how
   busy they keep the GPU, by the driver's samples of them. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "bounds.h"
#include "nvml_proxy.h"
#include "usage.h"

enum { MOST_SAMPLES = 2048 };
#define WINDOW_US 5000000ull /* as in the agent's report, so that `muster top` and nvidia-smi agree */
#define NO_INSTANCE 0xffffffffu

static struct {
    __typeof__(&nvmlDeviceGetComputeRunningProcesses) nvmlDeviceGetComputeRunningProcesses;
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v2) nvmlDeviceGetComputeRunningProcesses_v2;
    __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) nvmlDeviceGetComputeRunningProcesses_v3;
    __typeof__(&nvmlDeviceGetGraphicsRunningProcesses) nvmlDeviceGetGraphicsRunningProcesses;
    __typeof__(&nvmlDeviceGetGraphicsRunningProcesses_v2) nvmlDeviceGetGraphicsRunningProcesses_v2;
    __typeof__(&nvmlDeviceGetGraphicsRunningProcesses_v3) nvmlDeviceGetGraphicsRunningProcesses_v3;
    __typeof__(&nvmlDeviceGetMPSComputeRunningProcesses) nvmlDeviceGetMPSComputeRunningProcesses;
    __typeof__(&nvmlDeviceGetMPSComputeRunningProcesses_v2) nvmlDeviceGetMPSComputeRunningProcesses_v2;
    __typeof__(&nvmlDeviceGetMPSComputeRunningProcesses_v3) nvmlDeviceGetMPSComputeRunningProcesses_v3;
    __typeof__(&nvmlDeviceGetRunningProcessDetailList) nvmlDeviceGetRunningProcessDetailList;
    __typeof__(&nvmlDeviceGetUtilizationRates) nvmlDeviceGetUtilizationRates;
    __typeof__(&nvmlDeviceGetProcessUtilization) nvmlDeviceGetProcessUtilization;
    __typeof__(&nvmlDeviceGetProcessesUtilizationInfo) nvmlDeviceGetProcessesUtilizationInfo;
    __typeof__(&nvmlDeviceGetSamples) nvmlDeviceGetSamples;
    __typeof__(&nvmlDeviceGetDynamicPstatesInfo) nvmlDeviceGetDynamicPstatesInfo;
    __typeof__(&nvmlDeviceGetAccountingPids) nvmlDeviceGetAccountingPids;
    __typeof__(&nvmlDeviceGetAccountingStats) nvmlDeviceGetAccountingStats;
    __typeof__(&nvmlDeviceGetEncoderSessions) nvmlDeviceGetEncoderSessions;
    __typeof__(&nvmlDeviceGetFBCSessions) nvmlDeviceGetFBCSessions;
    __typeof__(&nvmlGpmSampleGet) nvmlGpmSampleGet;
} real;

__attribute__((constructor(200))) static void find_real_functions(void)
{
#define FIND(function) *(real_function *)&real.function = nvml_real(#function)
    FIND(nvmlDeviceGetComputeRunningProcesses);
    FIND(nvmlDeviceGetComputeRunningProcesses_v2);
    FIND(nvmlDeviceGetComputeRunningProcesses_v3);
    FIND(nvmlDeviceGetGraphicsRunningProcesses);
    FIND(nvmlDeviceGetGraphicsRunningProcesses_v2);
    FIND(nvmlDeviceGetGraphicsRunningProcesses_v3);
    FIND(nvmlDeviceGetMPSComputeRunningProcesses);
    FIND(nvmlDeviceGetMPSComputeRunningProcesses_v2);
    FIND(nvmlDeviceGetMPSComputeRunningProcesses_v3);
    FIND(nvmlDeviceGetRunningProcessDetailList);
    FIND(nvmlDeviceGetUtilizationRates);
    FIND(nvmlDeviceGetProcessUtilization);
    FIND(nvmlDeviceGetProcessesUtilizationInfo);
    FIND(nvmlDeviceGetSamples);
    FIND(nvmlDeviceGetDynamicPstatesInfo);
    FIND(nvmlDeviceGetAccountingPids);
    FIND(nvmlDeviceGetAccountingStats);
    FIND(nvmlDeviceGetEncoderSessions);
    FIND(nvmlDeviceGetFBCSessions);
    FIND(nvmlGpmSampleGet);
}

struct own {
    unsigned count;
    struct usage_process processes[USAGE_MOST_PROCESSES];
};

static nvmlReturn_t own_processes(int gpu, struct own *own)
{
    return usage_processes(gpu, own->processes, &own->count) == USAGE_GRANTED ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

static bool is_own(const struct own *own, unsigned pid)
{
    for (unsigned i = own->count; i-- > 0;)
        if (own->processes[i].pid == (int32_t)pid)
            return true;
    return false;
}

/* Sets *count to what there is. Returns NVML_SUCCESS if the caller has room for it. */
static nvmlReturn_t make_room(unsigned *count, unsigned there, const void *entries)
{
    unsigned room = *count;
    *count = there;
    return there > 0 && (entries == NULL || there > room) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t list_v1(int gpu, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    struct own own;
    nvmlReturn_t result = own_processes(gpu, &own);
    if (result == NVML_SUCCESS)
        result = make_room(count, own.count, infos);
    for (unsigned i = 0; result == NVML_SUCCESS && i < own.count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){(unsigned)own.processes[i].pid, own.processes[i].bytes};
    return result;
}

static nvmlReturn_t list_v2(int gpu, unsigned *count, nvmlProcessInfo_t *infos)
{
    struct own own;
    nvmlReturn_t result = own_processes(gpu, &own);
    if (result == NVML_SUCCESS)
        result = make_room(count, own.count, infos);
    for (unsigned i = 0; result == NVML_SUCCESS && i < own.count; i++)
        infos[i] = (nvmlProcessInfo_t){(unsigned)own.processes[i].pid, own.processes[i].bytes, NO_INSTANCE, NO_INSTANCE};
    return result;
}

/* All processes of a container stand in the list of those that compute. */
static nvmlReturn_t list_none(unsigned *count)
{
    *count = 0;
    return NVML_SUCCESS;
}

/* Begins a hook: of a GPU that is not limited the driver answers. Of a limited one `gpu` is its number from here on, and
   `output` is somewhere to write to. */
#define BEGIN_OF_LIMITED(function, output, ...)                   \
    int gpu;                                                      \
    nvmlReturn_t result = nvml_limited_gpu(device, &gpu);         \
    if (result != NVML_SUCCESS)                                   \
        return result;                                            \
    if (gpu < 0)                                                  \
        return real.function(device, __VA_ARGS__);                \
    if ((output) == NULL)                                         \
        return NVML_ERROR_INVALID_ARGUMENT

#define LIST(function, info, of_limited)                                          \
    HOOK nvmlReturn_t function(nvmlDevice_t device, unsigned *count, info *infos) \
    {                                                                             \
        BEGIN_OF_LIMITED(function, count, count, infos);                          \
        return of_limited;                                                        \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, list_v1(gpu, count, infos))
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, list_v2(gpu, count, infos))
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, list_v2(gpu, count, infos))
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, list_none(count))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, list_none(count))
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, list_none(count))
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, list_none(count))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, list_none(count))
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, list_none(count))

HOOK nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    struct own own;
    BEGIN_OF_LIMITED(nvmlDeviceGetRunningProcessDetailList, list, list);
    if (list->version != nvmlProcessDetailList_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = own_processes(gpu, &own);
    if (list->mode != NVML_PROCESS_MODE_COMPUTE && list->mode != NVML_PROCESS_MODE_ALL)
        own.count = 0;
    if (result == NVML_SUCCESS)
        result = make_room(&list->numProcArrayEntries, own.count, list->procArray);
    for (unsigned i = 0; result == NVML_SUCCESS && i < own.count; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){(unsigned)own.processes[i].pid, own.processes[i].bytes,
                                                      NO_INSTANCE, NO_INSTANCE, 0};
    return result;
}

/* Writes the driver's samples of the container's processes; `samples` has room for MOST_SAMPLES. */
static nvmlReturn_t own_samples(nvmlDevice_t device, int gpu, unsigned long long last_seen,
                                nvmlProcessUtilizationSample_t *samples, unsigned *count)
{
    struct own own;
    unsigned all = MOST_SAMPLES;
    nvmlReturn_t result = own_processes(gpu, &own);
    *count = 0;
    if (result != NVML_SUCCESS)
        return result;
    result = real.nvmlDeviceGetProcessUtilization(device, samples, &all, last_seen);
    if (result == NVML_ERROR_NOT_FOUND) /* nothing ran since */
        return NVML_SUCCESS;
    for (unsigned i = 0; result == NVML_SUCCESS && i < least(all, MOST_SAMPLES); i++)
        if (samples[i].pid != 0 && samples[i].smUtil <= 100 && is_own(&own, samples[i].pid))
            samples[(*count)++] = samples[i];
    return result;
}

HOOK nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                  unsigned *count, unsigned long long last_seen)
{
    nvmlProcessUtilizationSample_t found[MOST_SAMPLES];
    unsigned there;
    BEGIN_OF_LIMITED(nvmlDeviceGetProcessUtilization, count, samples, count, last_seen);
    result = own_samples(device, gpu, last_seen, found, &there);
    if (result == NVML_SUCCESS)
        result = make_room(count, there, samples);
    if (result == NVML_SUCCESS && there == 0)
        return NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS)
        memcpy(samples, found, there * sizeof *found);
    return result;
}

HOOK nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    nvmlProcessUtilizationSample_t found[MOST_SAMPLES];
    unsigned there;
    BEGIN_OF_LIMITED(nvmlDeviceGetProcessesUtilizationInfo, info, info);
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = own_samples(device, gpu, info->lastSeenTimeStamp, found, &there);
    if (result == NVML_SUCCESS)
        result = make_room(&info->processSamplesCount, there, info->procUtilArray);
    if (result == NVML_SUCCESS && there == 0)
        return NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; result == NVML_SUCCESS && i < there; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            found[i].timeStamp, found[i].pid, found[i].smUtil, found[i].memUtil, found[i].encUtil, found[i].decUtil, 0, 0};
    return result;
}

/* The sum over the processes of the mean of each one's samples, as the agent counts it. */
static void add_up(const nvmlProcessUtilizationSample_t *samples, unsigned count, nvmlUtilization_t *rates)
{
    double gpu = 0, memory = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned same = 0;
        for (unsigned other = 0; other < count; other++)
            same += samples[other].pid == samples[i].pid;
        gpu += (double)samples[i].smUtil / same;
        memory += (double)(samples[i].memUtil <= 100 ? samples[i].memUtil : 0) / same;
    }
    rates->gpu = (unsigned)least((uint64_t)(gpu + 0.5), 100);
    rates->memory = (unsigned)least((uint64_t)(memory + 0.5), 100);
}

HOOK nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    nvmlProcessUtilizationSample_t found[MOST_SAMPLES];
    struct timespec now;
    unsigned count;
    BEGIN_OF_LIMITED(nvmlDeviceGetUtilizationRates, rates, rates);
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned long long since = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
    result = own_samples(device, gpu, since - WINDOW_US, found, &count);
    /* A driver that does not tell processes apart would tell of the neighbours too. */
    if (result != NVML_SUCCESS)
        return result == NVML_ERROR_FUNCTION_NOT_FOUND ? NVML_ERROR_NOT_SUPPORTED : result;
    add_up(found, count, rates);
    return NVML_SUCCESS;
}

HOOK nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long last_seen,
                                       unsigned *value_type, unsigned *count, void *samples)
{
    int gpu;
    nvmlReturn_t result = nvml_limited_gpu(device, &gpu);
    if (result != NVML_SUCCESS)
        return result;
    if (gpu >= 0 && (type == NVML_GPU_UTILIZATION_SAMPLES || type == NVML_MEMORY_UTILIZATION_SAMPLES))
        return NVML_ERROR_NOT_SUPPORTED;
    return real.nvmlDeviceGetSamples(device, type, last_seen, value_type, count, samples);
}

/* A function that tells of the whole GPU, and of all of its processes. */
#define OF_ALL(function, parameters, ...)                                               \
    HOOK nvmlReturn_t function parameters                                               \
    {                                                                                   \
        int gpu;                                                                        \
        nvmlReturn_t result = nvml_limited_gpu(device, &gpu);                           \
        if (result != NVML_SUCCESS)                                                     \
            return result;                                                              \
        return gpu >= 0 ? NVML_ERROR_NOT_SUPPORTED : real.function(device, __VA_ARGS__); \
    }

OF_ALL(nvmlDeviceGetDynamicPstatesInfo, (nvmlDevice_t device, void *info), info)
OF_ALL(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned *count, unsigned *pids), count, pids)
OF_ALL(nvmlDeviceGetAccountingStats, (nvmlDevice_t device, unsigned pid, void *stats), pid, stats)
OF_ALL(nvmlDeviceGetEncoderSessions, (nvmlDevice_t device, unsigned *count, void *sessions), count, sessions)
OF_ALL(nvmlDeviceGetFBCSessions, (nvmlDevice_t device, unsigned *count, void *sessions), count, sessions)
OF_ALL(nvmlGpmSampleGet, (nvmlDevice_t device, void *sample), sample)
