#include "lease_table.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bounds.h"

/* The turns of credit that a container keeps while it does not wait. With them a container that a busy processor kept
   from launching does not lose its share. */
#define CREDIT_TURNS 2

int futex_wait(void *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
    return (int)syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen,
                        timeout_ns == UINT64_MAX ? NULL : &timeout, NULL, 0);
}

void futex_wake(void *word, bool shared)
{
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void lease_table_ring(struct lease_table *table)
{
    table->changes++;
}

/* Returns the nanoseconds since a heartbeat. One from the future, which a tenant may have written, counts as none. */
static uint64_t silence(uint64_t heartbeat, uint64_t now)
{
    return heartbeat <= now + LEASE_SILENCE ? elapsed(heartbeat, now) : UINT64_MAX;
}

static unsigned claim(struct lease_table *table, unsigned index, uint64_t id, uint64_t now)
{
    struct lease_account *account = &table->accounts[index];
    account->id = id;
    account->eligible_at = 0;
    account->used_ns = 0;
    account->heartbeat = now;
    return index;
}

unsigned lease_table_join(struct lease_table *table, uint64_t id, uint64_t now)
{
    unsigned stalest = 0;
    for (unsigned i = 1; i < LEASE_ACCOUNTS; i++)
        if (table->accounts[i].id == id)
            return i;
    for (unsigned i = 1; i < LEASE_ACCOUNTS; i++) {
        const struct lease_account *account = &table->accounts[i];
        if (account->id == 0)
            return claim(table, i, id, now);
        if (grant_account(table->grant) == i)
            continue;
        if (stalest == 0 || silence(account->heartbeat, now) > silence(table->accounts[stalest].heartbeat, now))
            stalest = i;
    }
    table->accounts[stalest].waiting_since = 0;
    return claim(table, stalest, id, now);
}

static uint64_t weighted(const struct lease_account *account, uint64_t ns)
{
    uint32_t share = account->share_milli;
    return ns * 1000 / (share == 0 ? 1 : share);
}

/* Returns in how much time an account may hold the GPU for `ns`, if it has a limit. That is no less than its share. */
static uint64_t spread(const struct lease_account *account, uint64_t ns)
{
    bool lower = account->limit_milli < account->share_milli;
    return lower ? weighted(account, ns) : ns * 1000 / account->limit_milli;
}

/* Loops over the used part of the table. */
#define EACH_ACCOUNT(table, i)                                                                                         \
    for (unsigned i = 1; i < LEASE_ACCOUNTS && (table)->accounts[i].id != 0; i++)

static bool waits(const struct lease_account *account, uint64_t now)
{
    return account->waiting_since != 0 &&
           silence(account->heartbeat, now) <= LEASE_SILENCE && account->eligible_at <= now;
}

static bool same_class(const struct lease_account *one, const struct lease_account *other)
{
    return (one->best_effort != 0) == (other->best_effort != 0);
}

bool lease_table_class_waits(const struct lease_table *table, bool best_effort, uint64_t now)
{
    EACH_ACCOUNT(table, i)
        if ((table->accounts[i].best_effort != 0) == best_effort && waits(&table->accounts[i], now))
            return true;
    return false;
}

uint64_t lease_table_rest(const struct lease_table *table, uint64_t now)
{
    uint64_t rest = UINT64_MAX;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *account = &table->accounts[i];
        /* One that has reached its limit waits without a need: since its last turn. */
        bool limited = account->waiting_since != 0 && account->eligible_at > now;
        uint64_t since = silence(limited ? account->waiting_since : account->heartbeat, now);
        if (account->best_effort == 0)
            rest = least(rest, since);
    }
    return rest;
}

static uint64_t starts_at(const struct lease_account *account)
{
    return greatest(account->virtual_ns, account->floor_ns);
}

bool lease_table_contended(const struct lease_table *table, unsigned account, uint64_t now, uint64_t *virtual_ns)
{
    bool contended = false;
    *virtual_ns = UINT64_MAX;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *other = &table->accounts[i];
        if (i == account || !same_class(other, &table->accounts[account]) || !waits(other, now))
            continue;
        contended = true;
        *virtual_ns = least(*virtual_ns, starts_at(other));
    }
    return contended;
}

/* Returns the part of a turn during which another account waited. The rest is free of charge, since it cost no other
   account anything. To a guaranteed account those of best effort are none. */
static uint64_t contended_ns(const struct lease_table *table, uint64_t grant, uint64_t now)
{
    uint64_t first = now;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *other = &table->accounts[i];
        uint64_t since = other->waiting_since;
        bool counts = other->best_effort == 0 || table->accounts[grant_account(grant)].best_effort != 0;
        if (i != grant_account(grant) && counts && waits(other, now))
            first = least(first, since);
    }
    return elapsed(greatest(first, grant_since(grant)), now);
}

uint64_t lease_table_running(const struct lease_table *table, uint64_t grant, uint64_t now)
{
    const struct lease_account *holder = &table->accounts[grant_account(grant)];
    return holder->virtual_ns + weighted(holder, contended_ns(table, grant, now));
}

bool lease_table_wait(struct lease_table *table, unsigned index, uint64_t now)
{
    struct lease_account *account = &table->accounts[index];
    account->heartbeat = now;
    if (account->waiting_since != 0)
        return false;
    uint64_t grant = table->grant, lowest;
    unsigned holder = grant_account(grant);
    if (!lease_table_contended(table, index, now, &lowest))
        lowest = table->clock_ns;
    if (holder != 0 && holder != index && same_class(&table->accounts[holder], account)) {
        lowest = least(lowest, lease_table_running(table, grant, now));
    }
    uint64_t credit = weighted(account, CREDIT_TURNS * LEASE_TURN);
    account->floor_ns = elapsed(credit, lowest);
    account->waiting_since = now;
    return true;
}

struct lease_member *lease_table_enter(struct lease_table *table, struct lease_member *near, uint64_t grant,
                                       uint64_t now)
{
    unsigned first = near != NULL ? (unsigned)(near - table->members) : 0;
    struct lease_member *member = NULL;
    for (unsigned i = 0; i < LEASE_MEMBERS && member == NULL; i++) {
        struct lease_member *place = &table->members[(first + i) % LEASE_MEMBERS];
        if (place->grant != grant) {
            place->grant = grant;
            member = place;
        }
    }
    if (member == NULL) /* more processes than places: this one takes another's, and may not be waited for */
        member = &table->members[first];
    member->heartbeat = now;
    return table->grant == grant ? member : NULL;
}

enum members lease_table_members(const struct lease_table *table, uint64_t grant, uint64_t now)
{
    enum members members = MEMBERS_NONE;
    for (unsigned i = 0; i < LEASE_MEMBERS; i++) {
        const struct lease_member *member = &table->members[i];
        if (member->grant != (grant & ~GRANT_CLOSING))
            continue;
        if (silence(member->heartbeat, now) <= LEASE_SILENCE)
            return MEMBERS_ALIVE;
        members = MEMBERS_SILENT;
    }
    return members;
}

bool lease_table_close(struct lease_table *table, uint64_t grant)
{
    if (table->grant != grant)
        return false;
    table->grant = grant | GRANT_CLOSING;
    lease_table_ring(table);
    return true;
}

static void raise_to(uint64_t *value, uint64_t bound)
{
    *value = greatest(*value, bound);
}

/* Returns when an account with a limit may have its next turn. Since it became active, it may use that part of the time
   and one turn more. 0: at any time. */
static uint64_t eligible_after(const struct lease_account *account, uint64_t grant, uint64_t now)
{
    if (account->limit_milli == 0)
        return 0;
    return account->eligible_at + spread(account, elapsed(grant_since(grant), now));
}

bool lease_table_hand_over(struct lease_table *table, uint64_t grant, uint64_t now)
{
    unsigned last = grant_account(grant), next = 0;
    struct lease_account *holder = &table->accounts[last];
    uint64_t lowest = 0;
    uint64_t charge = last != 0 ? weighted(holder, contended_ns(table, grant, now)) : 0;
    uint64_t eligible_at = last != 0 ? eligible_after(holder, grant, now) : 0;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *account = &table->accounts[i];
        uint64_t virtual_ns = starts_at(account);
        if (i == last) {
            virtual_ns = account->virtual_ns + charge;
            if (eligible_at > now)
                continue;
        }
        const struct lease_account *chosen = &table->accounts[next];
        bool first = next == 0 || (same_class(account, chosen) ? virtual_ns < lowest : account->best_effort == 0);
        if (waits(account, now) && first) {
            lowest = virtual_ns;
            next = i;
        }
    }
    if (table->grant != grant || (last == 0 && next == 0))
        return false;
    uint64_t waiting_since = table->accounts[next].waiting_since;
    table->grant = next == 0 ? 0 : grant_of(next, now);
    if (last != 0) {
        holder->virtual_ns += charge;
        holder->used_ns += elapsed(grant_since(grant), now);
        holder->eligible_at = eligible_at;
    }
    if (next != 0) {
        struct lease_account *account = &table->accounts[next];
        raise_to(&account->virtual_ns, account->floor_ns);
        raise_to(&table->clock_ns, account->virtual_ns);
        if (account->limit_milli != 0)
            raise_to(&account->eligible_at, elapsed(spread(account, LEASE_TURN), waiting_since));
        account->waiting_since = 0;
    }
    lease_table_ring(table);
    return true;
}

void lease_table_charge(struct lease_table *table, unsigned account, uint64_t ns)
{
    table->accounts[account].virtual_ns += weighted(&table->accounts[account], ns);
    table->accounts[account].used_ns += ns;
}

void lease_table_excuse(struct lease_table *table, unsigned account, uint64_t since, uint64_t now)
{
    uint64_t grant = table->grant;
    unsigned index = grant_account(grant);
    if (index == 0 || index == account)
        return;
    uint64_t contended = contended_ns(table, grant, now), late = elapsed(since, now);
    uint64_t excused = weighted(&table->accounts[index], least(contended, late));
    table->accounts[index].virtual_ns = elapsed(excused, table->accounts[index].virtual_ns);
}
