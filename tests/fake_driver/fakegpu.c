/* fakegpu init [--gpus N] [--mem BYTES] [--context BYTES] [--free-delay-ms N] [--mig] [--host BYTES] [--pool-block BYTES]: the
   machine's fake GPUs, anew; with --host, managed memory that has no room on its GPU is in the host's memory
   fakegpu status: the devices, who used them, and the limits of control groups, as JSON
   fakegpu driver VERSION: the version that the driver says it has
   fakegpu ail GPU SYMPTOM VALUE: a symptom of a GPU. An `xid` goes into the file STATE.kmsg, as the kernel's log has it;
   the others are ecc (errors), remap-pending, remap-failed, clocks (NVML's bits), recovery (NVML's action), lost, gone */
#include "clock.h"
#include "state.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *message)
{
    fprintf(stderr, "fakegpu: %s\n", message);
    return 1;
}

static int init(struct state *state, int count, char **words)
{
    struct settings settings = DEFAULT_SETTINGS;
    static const struct option options[] = {
        {"gpus", required_argument, NULL, 'g'},          {"mem", required_argument, NULL, 'm'},
        {"context", required_argument, NULL, 'c'},       {"free-delay-ms", required_argument, NULL, 'd'},
        {"mig", no_argument, NULL, 'i'},                 {"mute", no_argument, NULL, 'u'},
        {"host", required_argument, NULL, 'h'},          {"pool-block", required_argument, NULL, 'p'},
        {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(count, words, "", options, NULL)) != -1;)
        switch (option) {
        case 'h':
            settings.host_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'p':
            settings.pool_block_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'g':
            settings.gpus = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            settings.mem_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'c':
            settings.context_bytes = strtoull(optarg, NULL, 10);
            break;
        case 'd':
            settings.free_delay_ns = strtoull(optarg, NULL, 10) * 1000000;
            break;
        case 'i':
            settings.mig_capable = 1;
            break;
        case 'u':
            settings.mute = 1;
            break;
        default:
            return 2;
        }
    if (settings.gpus > MAX_GPUS || !settings.mem_bytes)
        return fail("--gpus takes 0 to 8, --mem a number of bytes");
    state_lock();
    state_reset(state, &settings);
    state_unlock();
    return 0;
}

static int status(struct state *state)
{
    if (clock_spend)
        clock_spend(1); /* from here on nobody else runs */
    state_lock();
    state_reap(state);
    state_drop_limits(state);
    state_unlock();
    const char *between = "";
    printf("{\"context_bytes\": %llu, \"devices\": [", (unsigned long long)state->context_bytes);
    for (unsigned device = 0; device < MAX_DEVICES; device++)
        if (state->devices[device].present) {
            printf("%s{\"uuid\": \"%s\", \"mem_bytes\": %llu, \"used_bytes\": %llu}", between, state->devices[device].uuid,
                   (unsigned long long)state->devices[device].mem_bytes,
                   (unsigned long long)state_used(state, device));
            between = ", ";
        }
    printf("], \"processes\": [");
    between = "";
    for (unsigned slot = 0; slot < state->slots; slot++) {
        const struct process *process = &state->processes[slot];
        if (process->state == SLOT_FREE)
            continue;
        printf("%s{\"slot\": %u, \"pid\": %d, \"alive\": %s, \"launches\": %llu, \"devices\": {", between, slot, process->pid,
               process->state == SLOT_ALIVE ? "true" : "false", (unsigned long long)process->launches);
        between = "";
        for (unsigned device = 0; device < MAX_DEVICES; device++)
            if (state->devices[device].present &&
                (process->used_bytes[device] || process->contexts[device] || process->launched_ns[device])) {
                printf("%s\"%s\": {\"used_bytes\": %llu, \"contexts\": %u, \"busy_ns\": %llu}", between,
                       state->devices[device].uuid, (unsigned long long)process->used_bytes[device],
                       process->contexts[device], (unsigned long long)process_served_ns(state, process, device));
                between = ", ";
            }
        printf("}}");
        between = ", ";
    }
    printf("], \"limits\": [");
    between = "";
    for (unsigned i = 0; i < MAX_LIMITS; i++)
        if (state->limits[i].group[0]) {
            printf("%s{\"uuid\": \"%s\", \"group\": \"%s\", \"hard_bytes\": %llu}", between,
                   state->devices[state->limits[i].device].uuid, state->limits[i].group,
                   (unsigned long long)state->limits[i].hard_bytes);
            between = ", ";
        }
    printf("]}\n");
    return 0;
}

static int log_xid(struct state *state, unsigned gpu, unsigned number)
{
    FILE *log = fopen(FAKE_GPU_STATE ".kmsg", "ae");
    if (!log)
        return fail("the log cannot be written");
    fprintf(log, "4,%llu,1000,-;NVRM: Xid (PCI:0000:%02x:00): %u, pid='<unknown>', name=<unknown>, as injected\n",
            (unsigned long long)++state->log_records, gpu + 1, number);
    return fclose(log) == 0 ? 0 : 1;
}

static int ail(struct state *state, unsigned gpu, const char *symptom, uint64_t value)
{
    if (gpu >= state->gpus)
        return fail("there is no such GPU");
    struct health *health = &state->devices[gpu * DEVICES_PER_GPU].health;
    if (!strcmp(symptom, "mute")) {
        state->mute = (uint32_t)value;
        return 0;
    }
    if (!strcmp(symptom, "xid"))
        return log_xid(state, gpu, (unsigned)value);
    if (!strcmp(symptom, "ecc"))
        health->ecc_errors = value;
    else if (!strcmp(symptom, "clocks"))
        health->clock_reasons = value;
    else if (!strcmp(symptom, "remap-pending"))
        health->remap_pending = (uint32_t)value;
    else if (!strcmp(symptom, "remap-failed"))
        health->remap_failed = (uint32_t)value;
    else if (!strcmp(symptom, "recovery"))
        health->recovery = (uint32_t)value;
    else if (!strcmp(symptom, "lost"))
        health->lost = (uint32_t)value;
    else if (!strcmp(symptom, "gone"))
        health->gone = (uint32_t)value;
    else
        return fail("there is no such symptom");
    return 0;
}

int main(int count, char **words)
{
    struct state *state = state_open();
    if (!state)
        return fail("the state cannot be opened: its directory must exist and be writable");
    if (count > 1 && !strcmp(words[1], "init"))
        return init(state, count - 1, words + 1);
    if (count > 1 && !strcmp(words[1], "status"))
        return status(state);
    if (count == 5 && !strcmp(words[1], "ail"))
        return ail(state, (unsigned)atoi(words[2]), words[3], strtoull(words[4], NULL, 0));
    if (count == 3 && !strcmp(words[1], "driver") && strlen(words[2]) < sizeof state->driver_version) {
        strcpy(state->driver_version, words[2]);
        return 0;
    }
    return fail("say init, status, driver or ail");
}
