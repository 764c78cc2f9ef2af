#include "lease_turn.h"

#include "bounds.h"

#define LEAST_PATIENCE (PATIENCE / 16)
#define WATCH (1 * MILLISECOND)       /* how often the holder reads the table, while others wait */
#define SHORT_TURN (LEASE_TURN / 4)
#define NEARLY (LEASE_TURN / 8)       /* a turn may end so much early, if that saves a drain */
#define SOLITUDE (1000 * MILLISECOND) /* so long after others waited, more of them are expected */
#define STUCK (1000 * MILLISECOND)    /* a CUDA kernel that runs for so long may wait for another one's launch */
#define FIRST_CREDITS 1
/* What work of best effort may cost guaranteed containers. A batch lasts no longer than a twentieth of the time for
   which they have not needed the GPU. So they lose at most a twentieth of their own pauses. They leave the GPU to it only
   in pauses so long that the change of turns costs less than that, too. */
#define BEST_EFFORT_PART 20
#define BEST_EFFORT_PAUSE (5 * MILLISECOND)
#define BEST_EFFORT_BATCH (LEASE_TURN / 4)
#define BEST_EFFORT_FIRST (MILLISECOND / 4) /* what a launch is taken for before one was measured */
#define BEST_EFFORT_WATCH (BEST_EFFORT_FIRST / 2)
#define DRIVER_DEPTH 1024             /* launches that the driver queues before it blocks the caller */
#define UNLIMITED (INT64_MAX / 2)

/* --- how many launches before the next drain --- */

int64_t lease_launches(struct process_lease *lease)
{
    int64_t left = atomic_load(&lease->gate.credits);
    return lease->credits_given - (left > 0 ? left : 0);
}

static bool limited(const struct process_lease *lease)
{
    return atomic_load(&lease->gate.credits) < UNLIMITED / 2;
}

/* Sets the credits; the count of lease_launches() goes on. */
static void give_credits(struct process_lease *lease, int64_t credits)
{
    int64_t left = atomic_exchange(&lease->gate.credits, credits);
    lease->credits_given += credits - (left > 0 ? left : 0);
}

void lease_wake_launches(struct process_lease *lease)
{
    atomic_fetch_add(&lease->turns, 1);
    futex_wake(&lease->turns, false);
}

/* Returns whether the turn is not to last longer than others, even alone: its work on the GPU must end soon. */
static bool strict(const struct process_lease *lease)
{
    return lease->terms.limit_milli != 0 || lease->terms.best_effort;
}

/* Allows a batch of best effort, or notes in `batch_at` when one may begin. */
static void give_best_effort(struct process_lease *lease, uint64_t now)
{
    uint64_t rest = lease_table_rest(lease->table, now) / BEST_EFFORT_PART;
    uint64_t launch_ns = lease->launch_ns != 0 ? lease->launch_ns : BEST_EFFORT_FIRST;
    if (launch_ns > rest) {
        lease->batch_at = now + (launch_ns - rest) * BEST_EFFORT_PART;
        give_credits(lease, 0);
        return;
    }
    int64_t credits = (int64_t)(least(rest, BEST_EFFORT_BATCH) / launch_ns);
    int64_t most = lease->launch_ns == 0 ? FIRST_CREDITS : 2 * lease->batch_credits;
    lease->batch_at = 0;
    lease->batch_credits = credits < 1 ? 1 : credits < most ? credits : most;
    give_credits(lease, lease->batch_credits);
    lease_wake_launches(lease);
}

/* Allows a batch of launches. While others wait, the batch fills the rest of the turn. Alone, it is as large as a
   newcomer may be made to wait for; for short kernels the driver's own queue is limit enough. A batch is at most twice
   the last one, since the next kernels may take longer. */
static void give_batch(struct process_lease *lease, bool contended, uint64_t now)
{
    uint64_t held = elapsed(grant_since(lease->entered), now), rest = LEASE_DRAIN_LIMIT;
    lease->contended = contended;
    lease->batch_since = now;
    lease->batch_launches = lease_launches(lease);
    if (lease->terms.best_effort) {
        give_best_effort(lease, now);
        return;
    }
    if (contended)
        rest = held + LEASE_TURN / 4 < LEASE_TURN ? LEASE_TURN - held : LEASE_TURN / 2;
    int64_t credits = lease->launch_ns == 0 ? FIRST_CREDITS : (int64_t)(rest / lease->launch_ns) + 1;
    if (lease->batch_credits != 0 && credits > 2 * lease->batch_credits)
        credits = 2 * lease->batch_credits;
    lease->batch_credits = credits;
    give_credits(lease, !contended && credits >= DRIVER_DEPTH ? UNLIMITED : credits);
    lease_wake_launches(lease);
}

/* --- this process under a grant --- */

void lease_request_drain(struct process_lease *lease)
{
    uint32_t number = atomic_load(&lease->drains_requested);
    if (number == lease->drains_done) {
        lease->drain_since = monotonic_ns();
        atomic_store(&lease->drains_requested, ++number);
        futex_wake(&lease->drains_requested, false);
    }
}

static bool drain_goes_on(struct process_lease *lease)
{
    return atomic_load(&lease->drains_requested) != lease->drains_done;
}

/* Charges this process's account for work that outlasts its turn, until it ends. */
static void charge_late_work(struct process_lease *lease, uint64_t now)
{
    if (lease->late_since == 0)
        return;
    lease_table_charge(lease->table, lease->account, elapsed(lease->late_since, now));
    lease->late_since = now;
}

/* Charges this process, instead of the container whose turn it is, for the time of its late work. After STUCK the
   holder is charged again: the work may wait for launches of this process, which needs another turn for them. */
static void excuse_holder(struct process_lease *lease, uint64_t now)
{
    if (elapsed(lease->drain_since, now) >= STUCK)
        return;
    lease_table_excuse(lease->table, lease->account, lease->late_since, now);
    charge_late_work(lease, now);
}

static void learn_patience(struct process_lease *lease)
{
    bool pause_was_long = elapsed(lease->rested_since, lease->blocked_since) > PATIENCE;
    if (lease->rested_since == 0)
        return;
    lease->patience = pause_was_long ? lease->patience / 2 : lease->patience * 2;
    lease->patience = least(greatest(lease->patience, LEAST_PATIENCE), PATIENCE);
    lease->rested_since = 0;
}

static void enter(struct process_lease *lease, uint64_t grant, uint64_t now)
{
    struct lease_member *member = lease->member;
    /* Its last work outlasted its turn and still runs. What that costs is known only when it is done. */
    bool late = lease->late_since != 0;
    uint64_t virtual_ns;
    if (lease->leaving == grant)
        return;
    if (lease->entered != grant) {
        member = lease_table_enter(lease->table, member, grant, now);
        if (member == NULL)
            return;
        charge_late_work(lease, now);
        lease->late_since = 0;
        learn_patience(lease);
        lease->member = member;
        lease->entered = grant;
        lease->leaving = 0;
    }
    lease->idle_since = 0;
    lease->batch_at = 0;
    atomic_store(&lease->gate.open, grant);
    if (late) {
        lease->contended = true;
        lease->contended_at = now;
        give_credits(lease, 0);
        return;
    }
    if (strict(lease) || lease_table_contended(lease->table, lease->account, now, &virtual_ns))
        lease->contended_at = now;
    give_batch(lease, lease->contended_at != 0 && elapsed(lease->contended_at, now) < SOLITUDE, now);
}

static void leave(struct process_lease *lease)
{
    atomic_store(&lease->gate.open, SHUT);
    lease->leaving = lease->entered;
    /* A drain that has begun already may miss the latest launches, so wait for the one after it. */
    lease->leaving_drain = lease->drains_done + (drain_goes_on(lease) ? 2 : 1);
    lease_request_drain(lease);
}

static void left(struct process_lease *lease, uint64_t now)
{
    uint64_t grant = lease->leaving;
    if (lease->entered == grant) {
        if (lease->member->grant == grant)
            lease->member->grant = 0;
        lease->entered = 0;
        /* Nobody watches the turn of a container that has left: those who wait would do so for LEASE_SILENCE. */
        if (lease->blocked == 0 && lease_table_members(lease->table, grant, now) == MEMBERS_NONE)
            lease_table_close(lease->table, grant);
    }
    lease->leaving = 0;
    charge_late_work(lease, now);
    lease->late_since = 0;
}

/* --- what this process does about the table; each function returns until when nothing else is due --- */

static uint64_t close_turn(struct process_lease *lease, uint64_t grant, uint64_t now)
{
    if (lease->closing != grant) {
        lease->closing = grant;
        lease->closing_since = now;
    }
    bool mine = grant_account(grant) == lease->account;
    if (mine) {
        if (lease->entered == (grant & ~GRANT_CLOSING)) {
            lease->member->heartbeat = now;
            if (lease->leaving != lease->entered)
                leave(lease);
        }
        if (lease->blocked != 0)
            lease_table_wait(lease->table, lease->account, now);
    }
    bool late = elapsed(lease->closing_since, now) >= LEASE_DRAIN_LIMIT;
    if (late || lease_table_members(lease->table, grant, now) != MEMBERS_ALIVE) {
        lease_table_hand_over(lease->table, grant, now);
        return lease_step(lease, now);
    }
    return now + WAITER_WATCH;
}

static bool turn_is_over(struct process_lease *lease, uint64_t grant, uint64_t now, uint64_t lowest, uint64_t *over_at)
{
    uint64_t held = elapsed(grant_since(grant), now);
    bool drained = lease->blocked != 0 && atomic_load(&lease->gate.credits) <= 0 && !drain_goes_on(lease);
    /* An account came later that would have had this turn. The turn is short then, or bursts would get little. */
    bool overtaken = lowest < lease->table->accounts[lease->account].virtual_ns;
    uint64_t turn = overtaken ? SHORT_TURN : LEASE_TURN;
    if (held + (drained ? NEARLY : 0) < turn) {
        *over_at = grant_since(grant) + turn;
        return false;
    }
    uint64_t running = lease_table_running(lease->table, grant, now);
    if (strict(lease) || running > lowest)
        return true;
    *over_at = now + (lowest - running) / 1000 * lease->terms.share_milli + 1000;
    return false;
}

/* Ends this process's turn early if it has no work for the GPU, while others wait. A drain with the gate open shows
   that the GPU is done; if no launch follows within `patience`, the process leaves. */
static void look_for_idleness(struct process_lease *lease, uint64_t now, uint64_t patience)
{
    int64_t count = lease_launches(lease);
    bool changed = count != lease->launches_seen;
    lease->launches_seen = count;
    if (lease->blocked != 0 || changed || lease->leaving != 0) {
        lease->idle_since = 0;
    } else if (lease->idle_since == 0) {
        lease_request_drain(lease);
    } else if (elapsed(lease->idle_since, now) >= patience) {
        lease->rested_since = lease->idle_since;
        leave(lease);
    }
}

/* Returns whether nobody uses the turn: the process for which it came has ended, or all have left. */
static bool unused(const struct process_lease *lease, uint64_t grant, uint64_t now)
{
    return lease->entered != grant && elapsed(grant_since(grant), now) > PATIENCE &&
           lease_table_members(lease->table, grant, now) == MEMBERS_NONE;
}

/* A turn while no other account of the class waits: it may last. */
static uint64_t hold_alone(struct process_lease *lease, uint64_t grant, uint64_t now)
{
    struct lease_account *account = &lease->table->accounts[lease->account];
    uint64_t next = NEVER;
    bool solitude = elapsed(lease->contended_at, now) >= SOLITUDE;
    if (lease->entered == grant && lease->contended && !solitude) {
        next = lease->contended_at + SOLITUDE;
    } else {
        if (lease->entered == grant && lease->contended)
            give_batch(lease, false, now);
        /* A CUDA kernel may wait for another that this process has yet to launch. */
        if (lease->blocked != 0 && drain_goes_on(lease) && elapsed(lease->drain_since, now) > LEASE_DRAIN_LIMIT) {
            give_credits(lease, UNLIMITED);
            lease_wake_launches(lease);
        }
    }
    if (!lease_table_class_waits(lease->table, true, now))
        return next;
    if (lease->entered == grant) {
        lease->member->heartbeat = now;
        look_for_idleness(lease, now, BEST_EFFORT_PAUSE);
        /* Those of best effort count their time since then. */
        uint64_t needed = lease->idle_since != 0 ? lease->idle_since : now;
        account->heartbeat = greatest(account->heartbeat, needed);
    }
    if (unused(lease, grant, now)) {
        lease_table_close(lease->table, grant);
        return lease_step(lease, now);
    }
    return least(now + BEST_EFFORT_PAUSE / 2, next);
}

static uint64_t hold(struct process_lease *lease, uint64_t grant, uint64_t now)
{
    struct lease_account *account = &lease->table->accounts[lease->account];
    uint64_t lowest, over_at;
    bool contended = lease_table_contended(lease->table, lease->account, now, &lowest) || strict(lease);
    if (lease->terms.best_effort && lease_table_class_waits(lease->table, false, now)) {
        lease_table_close(lease->table, grant);
        return lease_step(lease, now);
    }
    if (lease->blocked != 0 && atomic_load(&lease->gate.open) != grant)
        enter(lease, grant, now);
    if (!contended)
        return hold_alone(lease, grant, now);
    lease->contended_at = now;
    account->heartbeat = now;
    if (lease->entered == grant) {
        lease->member->heartbeat = now;
        if (!lease->contended || (lease->batch_at != 0 && lease->batch_at <= now))
            give_batch(lease, true, now);
        look_for_idleness(lease, now, lease->patience);
        if (lease->blocked != 0 && drain_goes_on(lease) && elapsed(lease->drain_since, now) > STUCK << lease->nudges) {
            lease->nudges++;
            give_credits(lease, 1);
            lease_wake_launches(lease);
        }
    }
    if (unused(lease, grant, now) || turn_is_over(lease, grant, now, lowest, &over_at)) {
        lease_table_close(lease->table, grant);
        return lease_step(lease, now);
    }
    uint64_t idle_at = lease->idle_since != 0 ? lease->idle_since + lease->patience : NEVER;
    /* A drain that begins soon after a batch of best effort finds the GPU at work, and so measures it. */
    bool unmeasured = lease->terms.best_effort && lease->idle_since == 0 && lease->batch_at == 0 && !drain_goes_on(lease);
    uint64_t watch = unmeasured ? BEST_EFFORT_WATCH : WATCH;
    uint64_t batch_at = lease->batch_at != 0 ? lease->batch_at : NEVER;
    return least(least(now + watch, over_at), least(idle_at, batch_at));
}

static uint64_t wait_for_turn(struct process_lease *lease, uint64_t grant, uint64_t now)
{
    struct lease_table *table = lease->table;
    struct lease_account *account = &table->accounts[lease->account];
    uint64_t eligible_at = account->eligible_at;
    if (lease_table_wait(table, lease->account, now))
        lease_table_ring(table);
    if (grant_account(grant) == 0) {
        if (lease_table_hand_over(table, grant, now))
            return lease_step(lease, now);
    } else if (grant_closing(grant)) {
        return close_turn(lease, grant, now);
    } else {
        /* A holder that is alone writes no heartbeats. It begins to once this process waits, so count from then. */
        uint64_t since = greatest(grant_since(grant), lease->blocked_since);
        const struct lease_account *holder = &table->accounts[grant_account(grant)];
        if (elapsed(since, now) > LEASE_SILENCE && elapsed(holder->heartbeat, now) > LEASE_SILENCE &&
            lease_table_members(table, grant, now) != MEMBERS_ALIVE && lease_table_close(table, grant))
            return lease_step(lease, now);
    }
    return least(eligible_at > now ? eligible_at : NEVER, now + WAITER_WATCH);
}

uint64_t lease_step(struct process_lease *lease, uint64_t now)
{
    uint64_t grant = lease->table->grant;
    bool mine = grant_account(grant) == lease->account;
    bool late = lease->leaving != 0 && lease->leaving != (grant & ~GRANT_CLOSING);
    if (late && lease->late_since == 0)
        lease->late_since = now;
    if (late)
        excuse_holder(lease, now);
    if (lease->entered != 0 && lease->entered != (grant & ~GRANT_CLOSING) && lease->leaving != lease->entered)
        leave(lease); /* this process was silent for too long, and others have the GPU now */
    if (mine && grant_closing(grant))
        return close_turn(lease, grant, now);
    if (mine)
        return hold(lease, grant, now);
    uint64_t next = lease->blocked != 0 ? wait_for_turn(lease, grant, now) : NEVER;
    return least(late ? now + WATCH : NEVER, next);
}

uint64_t lease_estimated_rest(const struct process_lease *lease, int64_t count, uint64_t now)
{
    int64_t batch = count - lease->batch_launches;
    uint64_t rest = batch > 0 ? elapsed(now, lease->batch_since + (uint64_t)batch * lease->launch_ns) : 0;
    return least(rest, LEASE_DRAIN_LIMIT);
}

/* Notes what one launch of a batch took. If the GPU was done before the drain began, most of the time may have been
   another's: the process computed, or nobody looked. Best effort that took a kernel for so long would wait for pauses
   that never come, and measure none again. So to it that time is only the most that a launch can have taken. */
static void measure(struct process_lease *lease, int64_t batch, uint64_t now)
{
    uint64_t lasted = elapsed(lease->batch_since, now), launch_ns = lasted / (uint64_t)batch + 1;
    bool was_done = elapsed(lease->drain_since, now) < lasted / 2;
    if (!lease->terms.best_effort || !was_done || launch_ns < lease->launch_ns)
        lease->launch_ns = launch_ns;
}

void lease_drained(struct process_lease *lease, uint32_t number, int64_t count, bool waited, uint64_t now)
{
    int64_t batch = count - lease->batch_launches;
    if (batch > 0 && limited(lease) && waited)
        measure(lease, batch, now);
    lease->batch_launches = count;
    lease->batch_since = now;
    lease->drains_done = number;
    lease->nudges = 0;
    if (lease_launches(lease) == count)
        lease->idle_since = now;
    if (lease->leaving != 0) {
        if ((int32_t)(number - lease->leaving_drain) >= 0)
            left(lease, now);
        else
            lease_request_drain(lease);
    }
    lease_step(lease, now);
    if (lease->entered != 0 && lease->leaving == 0 && atomic_load(&lease->gate.credits) <= 0)
        give_batch(lease, lease->contended, now);
    lease_wake_launches(lease);
}
