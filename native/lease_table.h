/* The table by which the containers on one GPU take turns: a copy of the file that all of them write (lease_file.h).

   Each process locks the file only while it reads and writes the table, not for its turn. If a stopped process kept the
   lock, every container would wait, and a lock's holder cannot be found across pid namespaces. So a turn is one word,
   the grant: the account that has the GPU, and since when. The process that replaces a grant charges the account for
   its turn and chooses the next one. All else in the table is advice, which the next turn corrects. Times are
   CLOCK_MONOTONIC nanoseconds. */
#pragma once
#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"

/* The agent gives each GPU's file a file system of this size (plugins/module_utils/muster_agent/gpus/fgpu_state.py).
   Libraries with another layout use a file at another path. */
#define LEASE_FILE_MOST (64u << 10)
#define LEASE_ACCOUNTS 256
#define LEASE_MEMBERS 256
#define MILLISECOND 1000000ull
#define LEASE_TURN (20 * MILLISECOND)         /* the least turn of an account that has work */
#define LEASE_SILENCE (100 * MILLISECOND)     /* a process without a heartbeat for so long is not waited for */
#define LEASE_DRAIN_LIMIT (200 * MILLISECOND) /* nor is work that goes on for so long after the end of its turn */

/* A container on the GPU. Its processes share its turns. */
struct lease_account {
    uint64_t id; /* 0: free. A used account is never freed, so a search may end at the first free one */
    uint32_t share_milli;
    uint16_t limit_milli; /* the most that it may have of the time; 0: all. Older libraries write 1 for the share */
    uint16_t best_effort; /* it has only the time that no guaranteed account needs */
    uint64_t virtual_ns;    /* contended time, divided by the share; the waiting account with the lowest is next */
    uint64_t floor_ns;      /* virtual_ns is raised to it with the next grant: an idle account saves up no credit */
    uint64_t used_ns;       /* all time that it held the GPU */
    uint64_t waiting_since; /* 0: does not wait */
    uint64_t eligible_at;   /* the earliest next turn, if there is a limit */
    uint64_t heartbeat;     /* the latest of its processes that wait, or hold the GPU while others wait */
};

/* A process that launches under a grant. It is out of date unless `grant` is the table's. */
struct lease_member {
    uint64_t grant;
    uint64_t heartbeat;
};

struct lease_table {
    uint64_t layout;
    uint64_t clock_ns; /* the virtual time of the latest grant, at which an account starts on an idle GPU */
    uint64_t grant;
    uint32_t changes; /* futex in the file: counts changes of the grant and of waiting accounts */
    uint32_t unused;
    struct lease_account accounts[LEASE_ACCOUNTS];
    struct lease_member members[LEASE_MEMBERS];
};

/* A grant, from its top bits down: the time in units of 64 ns; a bit for a turn that is over but not yet drained; the
   account. */
#define GRANT_CLOSING 256ull
static inline unsigned grant_account(uint64_t grant)
{
    return grant % LEASE_ACCOUNTS;
}
static inline uint64_t grant_since(uint64_t grant)
{
    return grant >> 10 << 6;
}
static inline uint64_t grant_of(unsigned account, uint64_t now)
{
    return now >> 6 << 10 | account;
}
static inline bool grant_closing(uint64_t grant)
{
    return (grant & GRANT_CLOSING) != 0;
}
/* Returns the nanoseconds from `then` to `now`; 0 if `then` lies in the future, as a tenant may have written it. */
static inline uint64_t elapsed(uint64_t then, uint64_t now)
{
    return now > then ? now - then : 0;
}

/* Returns the index of this container's account. A new account takes a free place, or the stalest one's. */
unsigned lease_table_join(struct lease_table *table, uint64_t id, uint64_t now);

/* Notes that the account waits. True: it did not wait before. */
bool lease_table_wait(struct lease_table *table, unsigned account, uint64_t now);

/* Returns whether another account of its class waits and may have the GPU now; *virtual_ns is the lowest virtual_ns
   among those. */
bool lease_table_contended(const struct lease_table *table, unsigned account, uint64_t now, uint64_t *virtual_ns);

/* Returns whether an account of this class waits and may have the GPU now. */
bool lease_table_class_waits(const struct lease_table *table, bool best_effort, uint64_t now);

/* Returns for how long no guaranteed account has needed the GPU; UINT64_MAX: there is none. */
uint64_t lease_table_rest(const struct lease_table *table, uint64_t now);

/* Returns virtual_ns of the account that holds the GPU, with the charge for its turn so far. */
uint64_t lease_table_running(const struct lease_table *table, uint64_t grant, uint64_t now);

/* Returns a place among the processes that launch under `grant`; the search for one starts at `near`, unless that is
   NULL. Returns NULL if the turn is over. */
struct lease_member *lease_table_enter(struct lease_table *table, struct lease_member *near, uint64_t grant,
                                       uint64_t now);

enum members { MEMBERS_NONE, MEMBERS_SILENT, MEMBERS_ALIVE };
/* Returns whether processes launch under a grant, and whether one of them has a recent heartbeat. */
enum members lease_table_members(const struct lease_table *table, uint64_t grant, uint64_t now);

/* Ends the turn, so that no process enters it any more. False: it had ended already. */
bool lease_table_close(struct lease_table *table, uint64_t grant);

/* Replaces `grant`, which is closing or has no account, by one for the next account, or for none if none waits. False:
   the grant has changed meanwhile, or there is nothing to replace. */
bool lease_table_hand_over(struct lease_table *table, uint64_t grant, uint64_t now);

/* Charges an account for work that outlasted its turn. */
void lease_table_charge(struct lease_table *table, unsigned account, uint64_t ns);

/* Takes back the holder's charge for the time from `since` to `now`, unless the holder is `account`. */
void lease_table_excuse(struct lease_table *table, unsigned account, uint64_t since, uint64_t now);

/* Counts a change, so that processes that wait for one wake once the file is written. */
void lease_table_ring(struct lease_table *table);

int futex_wait(void *word, uint32_t seen, uint64_t timeout_ns, bool shared);
void futex_wake(void *word, bool shared);
