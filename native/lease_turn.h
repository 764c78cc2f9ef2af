/* One process's part in a lease: what it does when its container's turn comes, goes on and ends. Every function is
   called with the mutex held, and between a taking of the file and its giving back. */
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
/* For so long without a launch and without work on the GPU a process is not idle yet. Less, down to the least, for one
   whose pauses have been found to be long: the GPU rests while the others are made to wait. */
#define PATIENCE (2 * MILLISECOND)

/* A keeper thread watches the table for this process; a drainer waits for the GPU, for as long as that takes. All is
   guarded by `mutex` but what is atomic. */
struct process_lease {
    struct lease gate;
    struct process_lease *next;
    struct lease_file file;
    struct lease_table *table;        /* a copy of the file as this process saw it last */
    uint64_t id;
    unsigned account, share_milli;
    bool hard;
    lease_drain drain;
    void *argument;
    pthread_mutex_t mutex;
    bool keeping, draining, stopping;
    _Atomic uint32_t kicks;           /* futex: the keeper, while it has nothing to watch in the table */
    _Atomic uint32_t drains_asked;    /* futex: the drainer */
    _Atomic uint32_t turns;           /* futex: launches that wait */
    _Atomic uint32_t in_driver;       /* futex: the drainer is in drain() */
    uint32_t drains_done;
    uint64_t drain_since;
    unsigned nudges;                  /* launches that were let through for a drain that did not end */
    unsigned blocked;                 /* launches that wait */
    uint64_t blocked_since;

    struct lease_member *member;
    uint64_t entered;                 /* the grant under which `member` is; 0: this process is out */
    uint64_t leaving;                 /* the grant that it leaves when drain number `leaving_drain` is done */
    uint32_t leaving_drain;
    uint64_t late_since;              /* the GPU went to the next before that was done */
    uint64_t closing, closing_since;  /* the grant that was seen to close, and when */

    bool contended;                   /* the credits were given for a turn among others */
    uint64_t contended_at;            /* when others last waited; 0: never */
    int64_t credits_given;
    int64_t launches_seen;            /* at the latest look */
    uint64_t idle_since;              /* 0: it is not known to be idle */
    uint64_t patience, rested_since;  /* how long it may be before others go on; since when they did for that */
    int64_t batch_launches, batch_credits; /* a batch: the launches between two drains */
    uint64_t batch_since, launch_ns;  /* what one costs, from the latest batch */
};

/* Does what the table asks of this process. Answers until when there is nothing to do unless the table changes. */
uint64_t lease_step(struct process_lease *lease, uint64_t now);

/* The GPU has done what this process had launched, `launches` in all, when drain `number` began; or is thought to have,
   if it could not be waited for. */
void lease_drained(struct process_lease *lease, uint32_t number, int64_t launches, bool waited, uint64_t now);

/* How long the GPU is thought to need for that yet, by what launches have cost before. */
uint64_t lease_estimated_rest(const struct process_lease *lease, int64_t launches, uint64_t now);

void lease_ask_for_drain(struct process_lease *lease);
int64_t lease_launches(struct process_lease *lease);
void lease_wake_launches(struct process_lease *lease);
