/* The devices' time: what is queued, when it ends, and what of it each process was served. */
#define _GNU_SOURCE
#include "clock.h"
#include "state_file.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#ifndef FAKE_GPU_VISIBLE
#define FAKE_GPU_VISIBLE "/var/lib/fake-gpu/visible"
#endif

enum { LAUNCH_NS = 2000 }; /* what a launch takes of the processor */

uint64_t device_now(const struct device *device)
{
    return now_ns() + device->skipped_ns;
}

void device_wait(const struct device *device, uint64_t finish)
{
    for (;;) {
        uint64_t now = device_now(device);
        if (now >= finish)
            return;
        uint64_t left = finish - now;
        /* Sleeping ends some 60 µs late; no longer than 5 ms, for the work before ours may die with its process. */
        if (left > 200000) {
            uint64_t nap = left - 100000 < 5000000 ? left - 100000 : 5000000;
            nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
        } else {
            sched_yield();
        }
    }
}

uint64_t device_enqueue(struct state *state, struct process *process, unsigned device, uint64_t duration_ns,
                        uint64_t not_before)
{
    struct device *hardware = &state->devices[device];
    uint64_t number = process->launches;
    struct launch *launch = &process->queue[number % QUEUE_DEPTH];
    if (number >= QUEUE_DEPTH)
        device_wait(&state->devices[launch->device], launch->finish);
    if (clock_spend)
        clock_spend(LAUNCH_NS);
    uint64_t busy_until = hardware->busy_until, finish;
    do {
        uint64_t start = device_now(hardware);
        start = start < busy_until ? busy_until : start;
        start = start < not_before ? not_before : start;
        finish = start + duration_ns;
    } while (!atomic_compare_exchange_weak(&hardware->busy_until, &busy_until, finish));
    *launch = (struct launch){finish, duration_ns, device};
    process->launched_ns[device] += duration_ns;
    process->launches = number + 1;
    return finish;
}

uint64_t process_unserved_ns(const struct state *state, const struct process *process, unsigned device)
{
    uint64_t now = device_now(&state->devices[device]), unserved = 0;
    uint64_t last = process->launches, first = last > QUEUE_DEPTH ? last - QUEUE_DEPTH : 0;
    for (uint64_t number = first; number < last; number++) {
        const struct launch *launch = &process->queue[number % QUEUE_DEPTH];
        if (launch->device == device && launch->finish > now) {
            uint64_t left = launch->finish - now;
            unserved += left < launch->duration_ns ? left : launch->duration_ns;
        }
    }
    return unserved;
}

uint64_t process_served_ns(const struct state *state, const struct process *process, unsigned device)
{
    uint64_t launched = process->launched_ns[device];
    if (process->state != SLOT_ALIVE)
        return launched;
    uint64_t unserved = process_unserved_ns(state, process, device);
    return unserved < launched ? launched - unserved : 0;
}

bool device_is_visible(const struct state *state, unsigned device)
{
    const struct device *asked = &state->devices[device];
    if (!asked->present)
        return false;
    FILE *file = fopen(FAKE_GPU_VISIBLE, "re");
    if (!file)
        return true;
    const struct device *gpu = &state->devices[device - device % DEVICES_PER_GPU];
    bool visible = false;
    char line[128];
    while (!visible && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        visible = !strcmp(line, asked->uuid) || !strcmp(line, gpu->uuid);
    }
    fclose(file);
    return visible;
}
