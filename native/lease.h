/* The compute lease: containers that launch on one GPU take turns on it (lease_table.h). */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "process.h"

/* The part of a lease that every launch reads. */
struct lease {
    _Atomic uint64_t grant;  /* the table's grant, as this process read it last */
    _Atomic uint64_t open;   /* the grant under which this process launches */
    _Atomic int64_t credits; /* launches that are allowed before the next drain */
};

/* Waits until the GPU has finished this process's work. Called on a thread of the lease. False: a wait is not allowed
   now. */
typedef bool (*lease_drain)(void *argument);

/* What a container may have of a GPU's time, in thousandths. `limit_milli`: never more than that; 0: all that is free.
   `best_effort`: only while no guaranteed container needs the GPU. */
struct lease_terms {
    unsigned share_milli, limit_milli;
    bool best_effort;
};

/* Returns a lease that takes part in the file at `path` as `kernel`, on these terms. NULL, with one line on stderr: the
   file cannot be used. */
struct lease *lease_open(const char *path, const char *kernel, struct lease_terms terms, lease_drain drain,
                         void *argument);

bool lease_wait(struct lease *lease);

/* Returns once this container has its turn; called before each launch. False: it cannot wait, since the process has no
   threads or open files left. The turn may end between this check and the launch, so that a launch is late. That is
   rare, and cheaper for all than counting every launch in and out. */
static inline bool lease_before_launch(struct lease *lease)
{
    process_check();
    uint64_t grant = atomic_load_explicit(&lease->grant, memory_order_relaxed);
    if (__builtin_expect(grant == atomic_load_explicit(&lease->open, memory_order_relaxed), 1) &&
        __builtin_expect(atomic_fetch_sub_explicit(&lease->credits, 1, memory_order_relaxed) > 0, 1))
        return true;
    return lease_wait(lease);
}
