/* One GPU's compute, shared by turns between the containers that launch on it (lease_table.h). */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "process.h"

/* The part of a lease that every launch looks at. */
struct lease {
    _Atomic uint64_t grant;  /* the table's, as this process saw it last */
    _Atomic uint64_t open;   /* the grant under which this process launches */
    _Atomic int64_t credits; /* launches until the next look at how much the GPU has before it */
};

/* Waits until the GPU has done what this process gave it. Called on a thread of the lease. False: it must not be waited
   for now. */
typedef bool (*lease_drain)(void *argument);

/* A lease that takes part in the file at `path` as `kernel`, with `share_milli` thousandths of the GPU; `hard`: never
   more than that. NULL, and one line on stderr, where the file cannot be used. */
struct lease *lease_open(const char *path, const char *kernel, unsigned share_milli, bool hard, lease_drain drain,
                         void *argument);

bool lease_wait(struct lease *lease);

/* Before a launch: returns when this container has its turn. False: it cannot wait, since the process can have no more
   threads or open files. Between the look and the launch the turn may end, so that a launch is late: rarer, and cheaper for all, than
   counting every launch in and out. */
static inline bool lease_before_launch(struct lease *lease)
{
    process_check();
    uint64_t grant = atomic_load_explicit(&lease->grant, memory_order_relaxed);
    if (__builtin_expect(grant == atomic_load_explicit(&lease->open, memory_order_relaxed), 1) &&
        __builtin_expect(atomic_fetch_sub_explicit(&lease->credits, 1, memory_order_relaxed) > 0, 1))
        return true;
    return lease_wait(lease);
}
