#include "nvml.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_FOUND = MAX_PROCESSES };

/* The last number of NSpid is the pid that the process has in its own namespace, where it wrote it to the state. */
static bool is_process(unsigned pid, const struct process *asked)
{
    char path[64], line[1024];
    bool same = false;
    snprintf(path, sizeof path, "/proc/%u/status", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, "NSpid:", 6)) {
            const char *last = strrchr(line, '\t');
            same = last && atoi(last + 1) == asked->pid;
            break;
        }
    fclose(file);
    if (!same)
        return false;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return false;
    bool is_read = fgets(line, sizeof line, file);
    fclose(file);
    return is_read && start_ticks_in(line) == asked->start_ticks;
}

/* The process's pid in the reader's namespace; 0 where that cannot see it. */
static unsigned visible_pid(const struct process *asked)
{
    DIR *all = opendir("/proc");
    unsigned found = 0;
    for (struct dirent *entry; all && !found && (entry = readdir(all));)
        if (isdigit((unsigned char)entry->d_name[0])) {
            unsigned pid = (unsigned)atoi(entry->d_name);
            if (is_process(pid, asked))
                found = pid;
        }
    if (all)
        closedir(all);
    return found;
}

static nvmlReturn_t list(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t found[MAX_FOUND])
{
    struct state *state;
    unsigned device;
    nvmlReturn_t result = nvml_device(handle, true, &state, &device);
    *count = 0;
    if (result != NVML_SUCCESS)
        return result;
    unsigned last = device % DEVICES_PER_GPU ? device : device + MAX_INSTANCES;
    state_lock();
    state_reap(state);
    state_unlock();
    for (unsigned part = device; part <= last; part++)
        for (unsigned slot = 0; slot < state->slots && *count < MAX_FOUND; slot++) {
            const struct process *process = &state->processes[slot];
            if (process->state != SLOT_ALIVE || !(process->contexts[part] || process->used_bytes[part]))
                continue;
            unsigned pid = visible_pid(process);
            if (!pid)
                continue;
            bool instance = part % DEVICES_PER_GPU;
            found[(*count)++] = (nvmlProcessInfo_t){.pid = pid,
                                                    .usedGpuMemory = process->used_bytes[part],
                                                    .gpuInstanceId = instance ? part % DEVICES_PER_GPU : 0xffffffffu,
                                                    .computeInstanceId = instance ? 0 : 0xffffffffu};
        }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *infos)
{
    nvmlProcessInfo_t found[MAX_FOUND];
    unsigned room = *count;
    nvmlReturn_t result = list(handle, count, found);
    if (result != NVML_SUCCESS)
        return result;
    if (*count > room || (*count && !infos))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(infos ? infos : found, found, *count * sizeof *found);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t handle, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    nvmlProcessInfo_t found[MAX_FOUND];
    unsigned room = *count;
    nvmlReturn_t result = list(handle, count, found);
    if (result != NVML_SUCCESS)
        return result;
    if (*count > room || (*count && !infos))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){found[i].pid, found[i].usedGpuMemory};
    return NVML_SUCCESS;
}

static nvmlReturn_t none(nvmlDevice_t handle, unsigned *count)
{
    struct state *state;
    unsigned device;
    *count = 0;
    return nvml_device(handle, true, &state, &device);
}

#define LISTS_NONE(NAME, INFO)                                                                                         \
    EXPORT nvmlReturn_t NAME(nvmlDevice_t handle, unsigned *count, INFO *infos)                                        \
    {                                                                                                                  \
        (void)infos;                                                                                                   \
        return none(handle, count);                                                                                    \
    }
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
LISTS_NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
LISTS_NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* One sample for each process that the device is busy with: it is divided among them. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long last_seen)
{
    struct state *state;
    unsigned device, pids[MAX_FOUND], busy = 0, room = *count;
    nvmlReturn_t result = nvml_device(handle, false, &state, &device);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result != NVML_SUCCESS)
        return result;
    if (last_seen > (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000)
        return NVML_ERROR_NOT_FOUND; /* samples of microseconds to come; all others are taken for recent */
    if (state->devices[device].mig_enabled)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned slot = 0; slot < state->slots; slot++) {
        const struct process *process = &state->processes[slot];
        bool works = process->state == SLOT_ALIVE &&
                     process_served_ns(state, process, device) < process->launched_ns[device];
        unsigned pid = works ? visible_pid(process) : 0;
        if (pid)
            pids[busy++] = pid;
    }
    *count = busy;
    if (!busy)
        return NVML_ERROR_NOT_FOUND;
    if (busy > room || !samples)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < busy; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){.pid = pids[i], .smUtil = 100 / busy, .memUtil = 50 / busy};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle, nvmlProcessesUtilizationInfo_v1_t *info)
{
    nvmlProcessUtilizationSample_t samples[MAX_FOUND];
    unsigned count = MAX_FOUND, room = info->processSamplesCount;
    nvmlReturn_t result = nvmlDeviceGetProcessUtilization(handle, samples, &count, info->lastSeenTimeStamp);
    if (result != NVML_SUCCESS)
        return result;
    info->processSamplesCount = count;
    if (count > room || !info->procUtilArray)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < count; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = samples[i].pid, .smUtil = samples[i].smUtil, .memUtil = samples[i].memUtil};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle, nvmlProcessDetailList_v1_t *details)
{
    nvmlProcessInfo_t found[MAX_FOUND];
    unsigned count, room = details->numProcArrayEntries;
    nvmlReturn_t result = list(handle, &count, found);
    if (result != NVML_SUCCESS)
        return result;
    details->numProcArrayEntries = count;
    if (count > room || (count && !details->procArray))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < count; i++)
        details->procArray[i] = (nvmlProcessDetail_v1_t){found[i].pid, found[i].usedGpuMemory, found[i].gpuInstanceId,
                                                         found[i].computeInstanceId, 0};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, unsigned type, unsigned long long last_seen,
                                         unsigned *value_type, unsigned *count, void *samples)
{
    (void)type, (void)last_seen, (void)samples;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    return none(handle, count);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    bool read = fgets(name, (int)length, file);
    fclose(file);
    if (!read)
        return NVML_ERROR_NOT_FOUND;
    name[strcspn(name, "\n")] = '\0';
    return NVML_SUCCESS;
}
