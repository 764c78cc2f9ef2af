/* The inside of the container's usage table, for usage.c and shares.c. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "process.h"

#define USAGE_SLOTS 2048
#define USAGE_SHARES 512
#define SHARE_HOLDERS 8

struct slot {
    struct process owner; /* pid 0: free */
    uint64_t bytes[MAX_LIMITED_GPUS];
};

/* Memory that does not end with the process that made it (shares.h). */
struct share {
    uint32_t used;
    int32_t gpu;
    uint64_t bytes;
    uint64_t device, inode; /* of the file behind the descriptors; each of these has a lock on one byte of it */
    /* Without a file, `path` is empty and `inode` the name. */
    uint32_t exports;       /* how many descriptors there have been */
    uint32_t endless;       /* there have been more holders than places for them */
    char path[128];
    struct holder {
        struct process process; /* pid 0: free */
        uint32_t count;
    } holders[SHARE_HOLDERS];
};

struct table {
    _Atomic uint64_t magic; /* written last, when the table is whole */
    uint32_t version, slots;
    pthread_mutex_t mutex;
    uint64_t total[MAX_LIMITED_GPUS]; /* the sum over the slots and the shares */
    uint64_t reaped_ns[MAX_LIMITED_GPUS];
    uint32_t slots_used; /* all slots from this one on are free */
    uint32_t seed;       /* tells this container's locks from those of others on the same file */
    struct slot slot[USAGE_SLOTS];
    struct share share[USAGE_SHARES];
};

/* Returns the table, locked, with this process's slot in *mine. NULL: it cannot be used. */
struct table *usage_lock(struct slot **mine);
void usage_unlock(struct table *table);

/* Frees the shares that nobody has any more. `self`: this process. The sums are counted again afterwards. */
void shares_reap(struct table *table, const struct process *self);
