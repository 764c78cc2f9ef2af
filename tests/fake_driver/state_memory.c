/* Memory of the devices: what processes use of it, the limits of control groups, and what managed memory gives up. */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t state_inode(const char *directory)
{
    struct stat found = {0};
    int file = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0 || syscall(SYS_fstat, file, &found) != 0)
        found.st_ino = 0;
    close(file);
    return found.st_ino;
}

void state_drop_limits(struct state *state)
{
    for (unsigned i = 0; i < MAX_LIMITS; i++)
        if (state->limits[i].group[0] && state_inode(state->limits[i].group) != state->limits[i].inode)
            memset(&state->limits[i], 0, sizeof state->limits[i]);
}

static bool is_within(const struct process *process, const struct limit *limit)
{
    static const char *const mounts[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
    const char *group = limit->group;
    for (unsigned i = 0; i < 2 && group == limit->group; i++)
        if (!strncmp(group, mounts[i], strlen(mounts[i])))
            group += strlen(mounts[i]);
    size_t length = strlen(group);
    return length && !strncmp(process->group, group, length) && strchr("/", process->group[length]);
}

uint64_t state_used_in(const struct state *state, const struct limit *limit)
{
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < state->slots; slot++)
        if (is_within(&state->processes[slot], limit))
            sum += state->processes[slot].used_bytes[limit->device];
    return sum;
}

/* Whether the process, with what it has just added, keeps to the limits of its control group and of those above. */
static bool keeps_limits(const struct state *state, const struct process *process, unsigned device)
{
    for (unsigned i = 0; i < MAX_LIMITS; i++) {
        const struct limit *limit = &state->limits[i];
        if (limit->group[0] && limit->device == device && is_within(process, limit) &&
            state_used_in(state, limit) > limit->hard_bytes)
            return false;
    }
    return true;
}

static uint64_t sum_used(const struct state *state, unsigned device)
{
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < state->slots; slot++)
        sum += state->processes[slot].used_bytes[device];
    for (unsigned number = 0; number < MAX_EXPORTS; number++)
        if (state->exports[number].used && state->exports[number].device == device)
            sum += state->exports[number].bytes;
    return sum;
}

/* Moves managed memory to the host, as much as is missing; under state_lock. */
static void evict(struct state *state, unsigned device, uint64_t missing)
{
    for (unsigned slot = 0; slot < state->slots && missing; slot++) {
        struct process *process = &state->processes[slot];
        uint64_t moved = process->managed_bytes[device] < missing ? process->managed_bytes[device] : missing;
        moved = moved < state->host_bytes ? moved : state->host_bytes;
        process->managed_bytes[device] -= moved;
        process->used_bytes[device] -= moved;
        state->host_bytes -= moved;
        missing -= moved;
    }
}

bool state_reserve(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    uint64_t total = state->devices[device].mem_bytes;
    if (bytes > total)
        return false;
    /* The last to add sees what all others have added, so that the sum never passes the total unseen. */
    process->used_bytes[device] += bytes;
    if (sum_used(state, device) <= total && keeps_limits(state, process, device))
        return true;
    process->used_bytes[device] -= bytes;
    state_lock();
    state_reap(state);
    uint64_t used = sum_used(state, device);
    if (used + bytes > total)
        evict(state, device, used + bytes - total);
    bool fits = false;
    for (unsigned attempt = 0; attempt < 3 && !fits; attempt++) {
        process->used_bytes[device] += bytes;
        fits = sum_used(state, device) <= total && keeps_limits(state, process, device);
        if (!fits) {
            process->used_bytes[device] -= bytes;
            sched_yield();
        }
    }
    state_unlock();
    return fits;
}

void state_release(struct process *process, unsigned device, uint64_t bytes)
{
    process->used_bytes[device] -= bytes;
}

bool state_reserve_managed(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    bool on_device = state->host_bytes == 0 || bytes <= state->devices[device].mem_bytes - sum_used(state, device);
    if (on_device && !state_reserve(state, process, device, bytes))
        return false;
    state_lock();
    bool fits = on_device || bytes <= state->host_bytes;
    if (on_device)
        process->managed_bytes[device] += bytes;
    else if (fits)
        state->host_bytes -= bytes;
    state_unlock();
    return fits;
}

void state_release_managed(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    state_lock();
    uint64_t on_device = process->managed_bytes[device] < bytes ? process->managed_bytes[device] : bytes;
    process->managed_bytes[device] -= on_device;
    process->used_bytes[device] -= on_device;
    state->host_bytes += bytes - on_device;
    state_unlock();
}

uint64_t state_used(struct state *state, unsigned device)
{
    state_lock();
    state_reap(state);
    uint64_t used = sum_used(state, device);
    if (device % DEVICES_PER_GPU == 0)
        for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++)
            used += sum_used(state, device + instance);
    state_unlock();
    return used;
}
