/* One process's part in a lease: what it does when its container's turn comes, goes on and ends. Every function is
   called with the mutex held, between lease_file_take() and lease_file_give(). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lease.h"
#include "lease_file.h"
#include "lease_table.h"

#define NEVER UINT64_MAX
#define SHUT UINT64_MAX /* no grant */
#define WAITER_WATCH (25 * MILLISECOND)
/* How long a process may be without a launch and without work on the GPU before it counts as idle. The GPU rests
   meanwhile, so a process whose pauses have been long gets less time, down to LEAST_PATIENCE. */
#define PATIENCE (2 * MILLISECOND)

/* The lease of a process on one GPU. Its keeper thread watches the table; its drainer thread waits for the GPU, for as
   long as that takes. `mutex` guards all fields that are not atomic. */
struct process_lease {
    struct lease gate;
    struct process_lease *next;
    struct lease_file file;
    struct lease_table *table;        /* a copy of the file as this process read it last */
    uint64_t id;
    unsigned account;
    struct lease_terms terms;
    lease_drain drain;
    void *argument;
    pthread_mutex_t mutex;
    bool keeping, draining, stopping;
    bool watching;                    /* the keeper looks at the table; otherwise it waits for a kick */
    _Atomic uint32_t kicks;           /* futex: the keeper, while it has nothing to watch in the table */
    _Atomic uint32_t drains_requested; /* futex: the drainer */
    _Atomic uint32_t turns;           /* futex: launches that wait */
    _Atomic uint32_t in_driver;       /* futex: the drainer is in drain() */
    uint32_t drains_done;
    uint64_t drain_since;
    unsigned nudges;                  /* launches that were allowed since a drain did not end */
    unsigned blocked;                 /* launches that wait */
    uint64_t blocked_since;

    struct lease_member *member;
    uint64_t entered;                 /* the grant under which this process launches, as `member`; 0: none */
    uint64_t leaving;                 /* the grant that it leaves once drain number `leaving_drain` is done */
    uint32_t leaving_drain;
    uint64_t late_since;              /* when another grant came although that drain was not done; 0: it did not */
    uint64_t closing, closing_since;  /* the grant that was found closing, and when */

    bool contended;                   /* the credits are for a turn while others wait */
    uint64_t contended_at;            /* when others last waited; 0: never */
    int64_t credits_given;
    int64_t launches_seen;            /* at the latest check for idleness */
    uint64_t idle_since;              /* 0: it is not known to be idle */
    uint64_t patience, rested_since;  /* how long it may be idle; since when it was, if it left for that */
    int64_t batch_launches, batch_credits; /* a batch: the launches between two drains */
    uint64_t batch_since, launch_ns;  /* when the batch began; what one launch of the latest took */
    uint64_t batch_at;                /* best effort: when the next batch may begin; 0: it has begun */
};

/* Does what is due for this process. Returns until when nothing else is, unless the table changes. */
uint64_t lease_step(struct process_lease *lease, uint64_t now);

/* Notes the end of drain `number`: the GPU has done the `launches` that this process had made when the drain began. If
   it could not be waited for, `waited` is false, and the work is assumed to be done. */
void lease_drained(struct process_lease *lease, uint32_t number, int64_t launches, bool waited, uint64_t now);

/* Returns the nanoseconds that the GPU is expected to need for these launches yet, by the cost of earlier ones. */
uint64_t lease_estimated_rest(const struct process_lease *lease, int64_t launches, uint64_t now);

void lease_request_drain(struct process_lease *lease);
int64_t lease_launches(struct process_lease *lease);
void lease_wake_launches(struct process_lease *lease);
