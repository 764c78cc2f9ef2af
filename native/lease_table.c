#include "lease_table.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LAYOUT 0x31657361656c7566ull
/* A container that was kept from launching by a busy processor is not robbed of its share for it. */
#define CREDIT_TURNS 2

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared)
{
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
    syscall(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, timeout_ns == UINT64_MAX ? NULL : &timeout,
            NULL, 0);
}

void futex_wake(_Atomic uint32_t *word, bool shared)
{
    syscall(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void lease_table_ring(struct lease_table *table)
{
    atomic_fetch_add(&table->changes, 1);
    futex_wake(&table->changes, true);
}

struct lease_table *lease_table_map(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    struct lease_table *table = MAP_FAILED;
    off_t length = lseek(file, 0, SEEK_END);
    if (length >= (off_t)sizeof *table || ftruncate(file, sizeof *table) == 0)
        table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int error = errno;
    close(file);
    errno = error;
    if (table == MAP_FAILED)
        return NULL;
    uint64_t layout = 0; /* a new file is all zeroes, which is a table in which nobody is */
    if (!atomic_compare_exchange_strong(&table->layout, &layout, LAYOUT) && layout != LAYOUT) {
        munmap(table, sizeof *table);
        errno = EPROTO;
        return NULL;
    }
    return table;
}

static bool unused(const struct lease_table *table, unsigned index, uint64_t now)
{
    const struct lease_account *account = &table->accounts[index];
    return grant_account(atomic_load(&table->grant)) != index && atomic_load(&account->waiting_since) == 0 &&
           elapsed(atomic_load(&account->heartbeat), now) > LEASE_SILENCE;
}

static unsigned claim(struct lease_table *table, unsigned index, uint64_t old, uint64_t id, uint64_t now)
{
    struct lease_account *account = &table->accounts[index];
    if (atomic_compare_exchange_strong(&account->id, &old, id)) {
        atomic_store(&account->eligible_at, 0);
        atomic_store(&account->used_ns, 0);
        atomic_store(&account->heartbeat, now);
        return index;
    }
    return old == id ? index : 0; /* another process of this container was quicker */
}

unsigned lease_table_join(struct lease_table *table, uint64_t id, uint64_t now)
{
    unsigned index = 0;
    for (unsigned i = 1; i < LEASE_ACCOUNTS; i++)
        if (atomic_load(&table->accounts[i].id) == id)
            return i;
    for (unsigned i = 1; i < LEASE_ACCOUNTS && index == 0; i++)
        if (atomic_load(&table->accounts[i].id) == 0)
            index = claim(table, i, 0, id, now);
    for (unsigned i = 1; i < LEASE_ACCOUNTS && index == 0; i++)
        if (unused(table, i, now))
            index = claim(table, i, atomic_load(&table->accounts[i].id), id, now);
    return index;
}

static uint64_t weighted(const struct lease_account *account, uint64_t ns)
{
    uint32_t share = atomic_load(&account->share_milli);
    return ns * 1000 / (share == 0 ? 1 : share);
}

/* Calls for the part of the table that has been used. */
#define EACH_ACCOUNT(table, i)                                                                                         \
    for (unsigned i = 1; i < LEASE_ACCOUNTS && atomic_load(&(table)->accounts[i].id) != 0; i++)

static bool waits(const struct lease_account *account, uint64_t now)
{
    return atomic_load(&account->waiting_since) != 0 &&
           elapsed(atomic_load(&account->heartbeat), now) <= LEASE_SILENCE && atomic_load(&account->eligible_at) <= now;
}

static uint64_t starts_at(const struct lease_account *account)
{
    uint64_t virtual_ns = atomic_load(&account->virtual_ns), floor_ns = atomic_load(&account->floor_ns);
    return virtual_ns > floor_ns ? virtual_ns : floor_ns;
}

bool lease_table_contended(const struct lease_table *table, unsigned account, uint64_t now, uint64_t *virtual_ns)
{
    bool contended = false;
    *virtual_ns = UINT64_MAX;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *other = &table->accounts[i];
        if (i == account || !waits(other, now))
            continue;
        contended = true;
        if (starts_at(other) < *virtual_ns)
            *virtual_ns = starts_at(other);
    }
    return contended;
}

/* The part of a turn for which somebody waited. The rest is free: nobody lost anything by it. */
static uint64_t contended_ns(const struct lease_table *table, uint64_t grant, uint64_t now)
{
    uint64_t first = now;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *other = &table->accounts[i];
        uint64_t since = atomic_load(&other->waiting_since);
        if (i != grant_account(grant) && waits(other, now) && since < first)
            first = since;
    }
    return elapsed(first > grant_since(grant) ? first : grant_since(grant), now);
}

uint64_t lease_table_running(const struct lease_table *table, uint64_t grant, uint64_t now)
{
    const struct lease_account *holder = &table->accounts[grant_account(grant)];
    return atomic_load(&holder->virtual_ns) + weighted(holder, contended_ns(table, grant, now));
}

bool lease_table_wait(struct lease_table *table, unsigned index, uint64_t now)
{
    struct lease_account *account = &table->accounts[index];
    atomic_store(&account->heartbeat, now);
    if (atomic_load(&account->waiting_since) != 0)
        return false;
    uint64_t grant = atomic_load(&table->grant), lowest;
    unsigned holder = grant_account(grant);
    if (!lease_table_contended(table, index, now, &lowest))
        lowest = atomic_load(&table->clock_ns);
    if (holder != 0 && holder != index) {
        uint64_t running = lease_table_running(table, grant, now);
        if (running < lowest)
            lowest = running;
    }
    uint64_t credit = weighted(account, CREDIT_TURNS * LEASE_TURN), none = 0;
    atomic_store(&account->floor_ns, elapsed(credit, lowest));
    return atomic_compare_exchange_strong(&account->waiting_since, &none, now);
}

struct lease_member *lease_table_enter(struct lease_table *table, struct lease_member *near, uint64_t grant,
                                       uint64_t now)
{
    unsigned first = near != NULL ? (unsigned)(near - table->members) : 0;
    struct lease_member *member = NULL;
    for (unsigned i = 0; i < LEASE_MEMBERS && member == NULL; i++) {
        struct lease_member *place = &table->members[(first + i) % LEASE_MEMBERS];
        uint64_t old = atomic_load(&place->grant);
        if (old != grant && atomic_compare_exchange_strong(&place->grant, &old, grant))
            member = place;
    }
    if (member == NULL) /* more processes than places: this one is not waited for */
        member = &table->members[first];
    atomic_store(&member->heartbeat, now);
    /* Whoever closes the turn looks at the members afterwards: either it sees this one, or this one the end. */
    return atomic_load(&table->grant) == grant ? member : NULL;
}

enum members lease_table_members(const struct lease_table *table, uint64_t grant, uint64_t now)
{
    enum members members = MEMBERS_NONE;
    for (unsigned i = 0; i < LEASE_MEMBERS; i++) {
        const struct lease_member *member = &table->members[i];
        if (atomic_load(&member->grant) != (grant & ~GRANT_CLOSING))
            continue;
        if (elapsed(atomic_load(&member->heartbeat), now) <= LEASE_SILENCE)
            return MEMBERS_ALIVE;
        members = MEMBERS_SILENT;
    }
    return members;
}

bool lease_table_close(struct lease_table *table, uint64_t grant)
{
    bool closed = atomic_compare_exchange_strong(&table->grant, &grant, grant | GRANT_CLOSING);
    if (closed)
        lease_table_ring(table);
    return closed;
}

static void raise_to(_Atomic uint64_t *value, uint64_t least)
{
    uint64_t now = atomic_load(value);
    while (now < least && !atomic_compare_exchange_weak(value, &now, least))
        ;
}

/* Hard: since it became active the account may use its share of the time and one turn. */
static uint64_t eligible_after(const struct lease_account *account, uint64_t grant, uint64_t now)
{
    if (!atomic_load(&account->hard))
        return 0;
    return atomic_load(&account->eligible_at) + weighted(account, elapsed(grant_since(grant), now));
}

bool lease_table_hand_over(struct lease_table *table, uint64_t grant, uint64_t now)
{
    unsigned last = grant_account(grant), next = 0;
    struct lease_account *holder = &table->accounts[last];
    uint64_t lowest = UINT64_MAX;
    uint64_t charge = last != 0 ? weighted(holder, contended_ns(table, grant, now)) : 0;
    uint64_t eligible_at = last != 0 ? eligible_after(holder, grant, now) : 0;
    EACH_ACCOUNT(table, i)
    {
        const struct lease_account *account = &table->accounts[i];
        uint64_t virtual_ns = starts_at(account);
        if (i == last) {
            virtual_ns = atomic_load(&account->virtual_ns) + charge;
            if (eligible_at > now)
                continue;
        }
        if (waits(account, now) && virtual_ns < lowest) {
            lowest = virtual_ns;
            next = i;
        }
    }
    if (last == 0 && next == 0)
        return false;
    uint64_t waiting_since = atomic_load(&table->accounts[next].waiting_since);
    if (!atomic_compare_exchange_strong(&table->grant, &grant, next == 0 ? 0 : grant_of(next, now)))
        return false;
    if (last != 0) {
        atomic_fetch_add(&holder->virtual_ns, charge);
        atomic_fetch_add(&holder->used_ns, elapsed(grant_since(grant), now));
        atomic_store(&holder->eligible_at, eligible_at);
    }
    if (next != 0) {
        struct lease_account *account = &table->accounts[next];
        raise_to(&account->virtual_ns, atomic_load(&account->floor_ns));
        raise_to(&table->clock_ns, atomic_load(&account->virtual_ns));
        raise_to(&account->eligible_at, elapsed(weighted(account, LEASE_TURN), waiting_since));
        atomic_compare_exchange_strong(&account->waiting_since, &waiting_since, 0);
    }
    lease_table_ring(table);
    return true;
}

void lease_table_charge(struct lease_table *table, unsigned account, uint64_t ns)
{
    atomic_fetch_add(&table->accounts[account].virtual_ns, weighted(&table->accounts[account], ns));
    atomic_fetch_add(&table->accounts[account].used_ns, ns);
}

void lease_table_excuse(struct lease_table *table, unsigned account, uint64_t since, uint64_t now)
{
    uint64_t grant = atomic_load(&table->grant);
    unsigned index = grant_account(grant);
    if (index == 0 || index == account)
        return;
    uint64_t contended = contended_ns(table, grant, now), late = elapsed(since, now);
    uint64_t excused = weighted(&table->accounts[index], contended < late ? contended : late);
    uint64_t before = atomic_load(&table->accounts[index].virtual_ns);
    while (!atomic_compare_exchange_weak(&table->accounts[index].virtual_ns, &before, elapsed(excused, before)))
        ;
}
