/* What the machine's fake GPUs hold: one file, mapped by every process that uses one, from any container.
   A process owns a slot of the file by a lock on one of its bytes, which the kernel drops when the process dies: pids
   mean nothing between pid namespaces. Memory in use is the sum over the slots, so a death can lose no bytes. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_GPUS = 8,
    MAX_INSTANCES = 7,
    DEVICES_PER_GPU = 1 + MAX_INSTANCES,
    MAX_DEVICES = MAX_GPUS * DEVICES_PER_GPU,
    MAX_PROCESSES = 128,
    QUEUE_DEPTH = 1024,
    MAX_EXPORTS = 640,
    MAX_LIMITS = 32,
    MOST_GROUP = 256,
};

/* What is wrong with a GPU: `fakegpu ail` sets it, NVML tells it. A lost one answers nothing, a gone one is not listed. */
struct health {
    uint64_t ecc_errors, clock_reasons;
    uint32_t remap_pending, remap_failed, recovery;
    uint32_t lost, gone;
};

/* A GPU (index gpu * DEVICES_PER_GPU), or one of its MIG instances (the indices behind it). Times are CLOCK_MONOTONIC ns;
   device time runs ahead of it by what the work of killed processes would have taken. */
struct device {
    uint32_t present;
    uint32_t profile, start, slices; /* MIG instance: profile, and its place in eighths of the GPU's memory */
    uint32_t compute_instance;
    uint32_t mig_capable, mig_enabled;
    uint64_t mem_bytes;
    _Atomic uint64_t busy_until, skipped_ns;
    char uuid[64];
    struct health health;
};

struct launch {
    uint64_t finish, duration_ns;
    uint64_t device;
};

enum process_state { SLOT_FREE, SLOT_ALIVE, SLOT_DYING, SLOT_DEAD };

struct process {
    _Atomic uint32_t state;
    int32_t pid; /* in its own pid namespace */
    char group[MOST_GROUP]; /* its control group of version 2, as it was when it began; "" where there is none */
    uint64_t start_ticks, died_ns;
    _Atomic uint32_t contexts[MAX_DEVICES];
    _Atomic uint64_t used_bytes[MAX_DEVICES];
    uint64_t managed_bytes[MAX_DEVICES]; /* of these, what may go to the host's memory; under state_lock */
    _Atomic uint64_t launched_ns[MAX_DEVICES];
    _Atomic uint64_t launches;
    struct launch queue[QUEUE_DEPTH];
};

/* Memory behind descriptors. As with the driver's own, it lives while a descriptor of it is open anywhere, or a process
   has a handle or a mapping; each of these holds a lock on a byte of the file. A descriptor is the file opened anew,
   whose offset is the number of the memory. */
struct exported {
    uint32_t used, device;
    uint64_t bytes;
    char properties[32];
};

/* What the processes of a control group may have of a device together; no group: free. */
struct limit {
    uint32_t device;
    uint64_t soft_bytes, hard_bytes, inode;
    char group[MOST_GROUP]; /* its directory */
};

struct state {
    uint64_t magic;
    uint32_t gpus;
    _Atomic uint32_t slots; /* slots at and above it were never used */
    uint64_t context_bytes, free_delay_ns;
    uint64_t host_bytes; /* how much managed memory the host takes when a device is full */
    uint64_t pool_block_bytes; /* by how much a pool grows at least, where there is room */
    uint64_t log_records; /* in the file beside the state that stands for the kernel's log */
    uint32_t mute; /* the driver fails to say the UUID of a device */
    char driver_version[32];
    struct device devices[MAX_DEVICES];
    struct process processes[MAX_PROCESSES];
    struct exported exports[MAX_EXPORTS];
    struct limit limits[MAX_LIMITS];
};

struct settings {
    uint32_t gpus, mig_capable, mute;
    uint64_t mem_bytes, context_bytes, free_delay_ns, host_bytes, pool_block_bytes;
};
#define DEFAULT_SETTINGS ((struct settings){2, 0, 0, 8ull << 30, 256ull << 20, 0, 0, 32ull << 20})

uint64_t now_ns(void);
/* The mapped state, made with the defaults where there is none; NULL where it cannot be opened. */
struct state *state_open(void);
void state_reset(struct state *state, const struct settings *settings);
void state_lock(void);
void state_unlock(void);
void new_uuid(char *text, const char *prefix);

/* NULL where all slots are taken. */
struct process *state_claim(struct state *state);
/* Whether this process was forked from one that had claimed a slot: the driver is of no use to it. */
bool state_was_forked(void);
/* Ends the slots of the dead; under state_lock. */
void state_reap(struct state *state);

bool state_reserve(struct state *state, struct process *process, unsigned device, uint64_t bytes);
void state_release(struct process *process, unsigned device, uint64_t bytes);
/* Managed memory: on the device, or on the host. What is on the device goes to the host for other memory. */
bool state_reserve_managed(struct state *state, struct process *process, unsigned device, uint64_t bytes);
void state_release_managed(struct state *state, struct process *process, unsigned device, uint64_t bytes);
/* Moves memory of this process behind descriptors. Returns its number, or -1. */
int state_export(struct state *state, struct process *process, unsigned device, uint64_t bytes);
/* Returns a new descriptor of it, or -1. */
int state_export_open(int number);
/* Whether there is memory of this number, which this process has from now on as well. */
bool state_import_number(struct state *state, int number);
/* Returns the number of the memory behind a descriptor, which this process has from now on as well, or -1. */
int state_import(struct state *state, int file);
void state_export_drop(int number);
/* Ends the limits whose control groups are gone, as the host sees it: another of the same name has none. Under state_lock. */
void state_drop_limits(struct state *state);
/* The number of a directory; 0 where there is none. */
uint64_t state_inode(const char *directory);
/* In use by the processes in a limit's control group. */
uint64_t state_used_in(const struct state *state, const struct limit *limit);
/* In use by the living; of a GPU with its instances. */
uint64_t state_used(struct state *state, unsigned device);

uint64_t device_now(const struct device *device);
/* Puts work on the device and returns the device time at which it ends; blocks while this process's queue is full. */
uint64_t device_enqueue(struct state *state, struct process *process, unsigned device, uint64_t duration_ns,
                        uint64_t not_before);
void device_wait(const struct device *device, uint64_t finish);
/* How much of what the process launched the device has served. */
uint64_t process_served_ns(const struct state *state, const struct process *process, unsigned device);
/* When the process began whose /proc/PID/stat this is, in clock ticks since the host's start; 0 where it says nothing. */
uint64_t start_ticks_in(const char *stat);

/* Which devices this container may see: in the order of the device list; all of them where nothing restricts it. */
bool device_is_visible(const struct state *state, unsigned device);
