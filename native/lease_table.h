/* What the containers on one GPU share to take turns on it: a copy of the file that all of them write (lease_file.h).

   Nobody keeps the file for longer than a look at it. A lock held by a process that is stopped would hold up every
   container, and who holds one cannot be told across pid namespaces. Instead the grant is one word: which account has the
   GPU and since when. Who changes it from what they saw charges for the turn and chooses who is next; whatever else is in
   the table is advice that the next turn corrects. Times are CLOCK_MONOTONIC nanoseconds. */
#pragma once
#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The agent puts each GPU's file on a file system of this size (plugins/module_utils/muster_agent/gpus/fgpu_state.py), and
   libraries of another layout at another path. */
#define LEASE_FILE_MOST (64u << 10)
#define LEASE_ACCOUNTS 256
#define LEASE_MEMBERS 256
#define MILLISECOND 1000000ull
#define LEASE_TURN (20 * MILLISECOND)         /* the least that an account with work gets at a time */
#define LEASE_SILENCE (100 * MILLISECOND)     /* who says nothing for so long is not waited for */
#define LEASE_DRAIN_LIMIT (200 * MILLISECOND) /* nor is work that goes on for so long after its turn */

/* A container. Its processes have their turns together. */
struct lease_account {
    uint64_t id; /* 0: free. Never free again, so that a search may end at the first free one */
    uint32_t share_milli;
    uint32_t hard;
    uint64_t virtual_ns;    /* contended time, divided by the share: the lowest that waits is next */
    uint64_t floor_ns;      /* virtual_ns is raised to it with the next grant: no credit is saved up while idle */
    uint64_t used_ns;       /* all time that it held the GPU */
    uint64_t waiting_since; /* 0: does not wait */
    uint64_t eligible_at;   /* hard: not before */
    uint64_t heartbeat;     /* of any process that waits, or holds the GPU while others wait */
};

/* A process that launches under a grant. Worth something while `grant` is the table's. */
struct lease_member {
    uint64_t grant;
    uint64_t heartbeat;
};

struct lease_table {
    uint64_t layout;
    uint64_t clock_ns; /* the virtual time of the latest grant: where a newcomer to an idle GPU starts */
    uint64_t grant;
    uint32_t changes; /* futex in the file: grants and waiters */
    uint32_t unused;
    struct lease_account accounts[LEASE_ACCOUNTS];
    struct lease_member members[LEASE_MEMBERS];
};

/* A grant: the time in units of 64 ns, one bit that says that the turn is over but not yet drained, the account. */
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
/* From then to now; what a tenant scribbled into the table may lie in the future. */
static inline uint64_t elapsed(uint64_t then, uint64_t now)
{
    return now > then ? now - then : 0;
}

/* The index of this container's account, made if there is none: where all are taken, in the place of the stalest. */
unsigned lease_table_join(struct lease_table *table, uint64_t id, uint64_t now);

/* Says that the account waits. True: it did not until now. */
bool lease_table_wait(struct lease_table *table, unsigned account, uint64_t now);

/* Whether anybody but `account` waits and may have the GPU now; *virtual_ns: the lowest of theirs. */
bool lease_table_contended(const struct lease_table *table, unsigned account, uint64_t now, uint64_t *virtual_ns);

/* virtual_ns of the account that holds the GPU, with what it is charged for its turn so far. */
uint64_t lease_table_running(const struct lease_table *table, uint64_t grant, uint64_t now);

/* A place among those who launch under `grant`, near *member where that is one. NULL: the turn is over. */
struct lease_member *lease_table_enter(struct lease_table *table, struct lease_member *near, uint64_t grant,
                                       uint64_t now);

enum members { MEMBERS_NONE, MEMBERS_SILENT, MEMBERS_ALIVE };
/* Of those who launch under a grant. */
enum members lease_table_members(const struct lease_table *table, uint64_t grant, uint64_t now);

/* Ends the turn: nobody enters any more. False: it had ended. */
bool lease_table_close(struct lease_table *table, uint64_t grant);

/* From `grant` (closing, or nobody's) to who is next, if anybody. False: it is another's by now, or nobody waits. */
bool lease_table_hand_over(struct lease_table *table, uint64_t grant, uint64_t now);

/* For work that outlasted the account's turn. */
void lease_table_charge(struct lease_table *table, unsigned account, uint64_t ns);

/* Takes back what the holder, if it is not `account`, will be charged for this time. */
void lease_table_excuse(struct lease_table *table, unsigned account, uint64_t since, uint64_t now);

/* Has those who wait for changes look. */
void lease_table_ring(struct lease_table *table);

int futex_wait(void *word, uint32_t seen, uint64_t timeout_ns, bool shared);
void futex_wake(void *word, bool shared);
uint64_t monotonic_ns(void);
