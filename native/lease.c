#include "lease_turn.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bounds.h"

static struct process_lease *leases;

/* Gives this container an account in the table. It may have lost one: another container may have wiped the table, or
   taken over the account while this one was silent. */
static void join(struct process_lease *lease)
{
    struct lease_account *accounts = lease->table->accounts;
    if (lease->account == 0 || accounts[lease->account].id != lease->id)
        lease->account = lease_table_join(lease->table, lease->id, monotonic_ns());
    accounts[lease->account].share_milli = lease->terms.share_milli;
    accounts[lease->account].limit_milli = (uint16_t)lease->terms.limit_milli;
    accounts[lease->account].best_effort = lease->terms.best_effort;
}

/* Reads and locks the file. This process changes its copy of the table only between take() and give(). False: the file
   cannot be read, and the last copy is used. */
static bool take(struct process_lease *lease)
{
    bool taken = lease_file_take(&lease->file, lease->table);
    if (lease->blocked != 0 || lease->entered != 0)
        join(lease);
    return taken;
}

static void give(struct process_lease *lease, bool taken)
{
    atomic_store(&lease->gate.grant, lease->table->grant);
    if (taken)
        lease_file_give(&lease->file, lease->table);
}

/* --- the threads --- */

static void *keep(void *argument)
{
    struct process_lease *lease = argument;
    pthread_mutex_lock(&lease->mutex);
    while (!lease->stopping) {
        bool taken = take(lease);
        uint32_t kick = atomic_load(&lease->kicks), change = lease->table->changes;
        uint64_t now = monotonic_ns(), until = lease_step(lease, now);
        give(lease, taken);
        bool watching = lease->watching = lease->blocked != 0 || lease->entered != 0;
        pthread_mutex_unlock(&lease->mutex);
        if (watching)
            lease_file_wait(&lease->file, change, until == NEVER ? NEVER : elapsed(now, until));
        else
            futex_wait(&lease->kicks, kick, NEVER, false);
        pthread_mutex_lock(&lease->mutex);
    }
    pthread_mutex_unlock(&lease->mutex);
    return NULL;
}

static void *drain(void *argument)
{
    struct process_lease *lease = argument;
    pthread_mutex_lock(&lease->mutex);
    while (!lease->stopping) {
        uint32_t number = atomic_load(&lease->drains_requested);
        if (number == lease->drains_done) {
            pthread_mutex_unlock(&lease->mutex);
            futex_wait(&lease->drains_requested, number, NEVER, false);
            pthread_mutex_lock(&lease->mutex);
            continue;
        }
        int64_t count = lease_launches(lease);
        atomic_store(&lease->in_driver, 1);
        pthread_mutex_unlock(&lease->mutex);
        bool waited = lease->drain(lease->argument);
        atomic_store(&lease->in_driver, 0);
        futex_wake(&lease->in_driver, false);
        pthread_mutex_lock(&lease->mutex);
        uint64_t rest = waited ? 0 : lease_estimated_rest(lease, count, monotonic_ns());
        if (rest != 0) {
            pthread_mutex_unlock(&lease->mutex);
            futex_wait(&lease->drains_requested, number, rest, false);
            pthread_mutex_lock(&lease->mutex);
        }
        bool taken = take(lease);
        lease_drained(lease, number, count, waited, monotonic_ns());
        give(lease, taken);
    }
    pthread_mutex_unlock(&lease->mutex);
    return NULL;
}

static bool start_thread(struct process_lease *lease, void *(*run)(void *))
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* the application's signals are for its own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, run, lease);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        pthread_detach(thread);
    else
        fprintf(stderr, "muster fgpu: no thread for the compute lease: %s\n", strerror(error));
    return error == 0;
}

static void kick(struct process_lease *lease)
{
    atomic_fetch_add(&lease->kicks, 1);
    futex_wake(&lease->kicks, false);
}

bool lease_wait(struct lease *gate)
{
    struct process_lease *lease = (struct process_lease *)gate;
    pthread_mutex_lock(&lease->mutex);
    lease->keeping = lease->keeping || start_thread(lease, keep);
    lease->draining = lease->draining || start_thread(lease, drain);
    bool ready = lease->keeping && lease->draining;
    if (ready && lease->blocked++ == 0)
        lease->blocked_since = monotonic_ns();
    while (ready && !lease->stopping) {
        uint32_t turn = atomic_load(&lease->turns);
        if (!take(lease)) {
            fprintf(stderr, "muster fgpu: %s: %s: no launch without the compute lease\n", lease->file.path,
                    strerror(errno));
            ready = false;
            lease->blocked--;
            break;
        }
        uint32_t change = lease->table->changes;
        uint64_t now = monotonic_ns(), patience = WAITER_WATCH;
        lease_step(lease, now);
        give(lease, true);
        uint64_t grant = lease->table->grant;
        if (grant == atomic_load(&gate->open)) {
            if (atomic_fetch_sub(&gate->credits, 1) > 0) {
                /* The GPU was free, and the keeper sleeps: from now on others may wait for the end of this turn. */
                if (!lease->watching)
                    kick(lease);
                break;
            }
            if (lease->batch_at != 0)
                patience = least(elapsed(now, lease->batch_at), patience);
            else if (lease->leaving == 0)
                lease_request_drain(lease);
        }
        kick(lease);
        pthread_mutex_unlock(&lease->mutex);
        /* Wait for the turn on the file itself. If the keeper woke this thread instead, the GPU would be idle for one
           more switch of threads. */
        if (grant_account(grant) != lease->account || grant_closing(grant))
            lease_file_wait(&lease->file, change, WAITER_WATCH);
        else
            futex_wait(&lease->turns, turn, patience, false);
        pthread_mutex_lock(&lease->mutex);
    }
    if (ready)
        lease->blocked--;
    pthread_mutex_unlock(&lease->mutex);
    return ready;
}

/* --- the life of a lease --- */

static void close_lease(struct process_lease *lease)
{
    pthread_mutex_lock(&lease->mutex);
    lease->stopping = true;
    atomic_store(&lease->gate.open, SHUT);
    if (lease->entered != 0) {
        bool taken = take(lease);
        uint64_t grant = lease->entered, now = monotonic_ns();
        if (lease->member->grant == grant)
            lease->member->grant = 0;
        lease->table->accounts[lease->account].heartbeat = now;
        if (lease_table_members(lease->table, grant, now) == MEMBERS_NONE) {
            lease_table_close(lease->table, grant);
            lease_table_hand_over(lease->table, grant | GRANT_CLOSING, now);
        }
        lease->entered = 0;
        give(lease, taken);
    }
    /* The lease's own threads may sleep to the end. The program's may be waited for before. */
    lease_wake_launches(lease);
    pthread_mutex_unlock(&lease->mutex);
    futex_wait(&lease->in_driver, 1, LEASE_DRAIN_LIMIT, false);
}

static void close_all(void)
{
    process_check();
    for (struct process_lease *lease = leases; lease != NULL; lease = lease->next)
        close_lease(lease);
}

/* Resets a lease in a forked child, which has none of its parent's threads and turns. */
static void forget(struct process_lease *lease)
{
    struct process_lease fresh = {
        .gate = {.open = SHUT},
        .next = lease->next,
        .file = lease->file,
        .table = lease->table,
        .id = lease->id,
        .account = lease->account,
        .terms = lease->terms,
        .drain = lease->drain,
        .argument = lease->argument,
        .patience = PATIENCE,
        .mutex = PTHREAD_MUTEX_INITIALIZER,
    };
    memcpy(lease, &fresh, sizeof fresh);
}

static void forget_all(void)
{
    for (struct process_lease *lease = leases; lease != NULL; lease = lease->next) {
        lease_file_forget(&lease->file);
        forget(lease);
    }
}

static uint64_t id_of(const char *kernel)
{
    uint64_t id = 14695981039346656037ull; /* FNV-1a */
    for (; *kernel != '\0'; kernel++)
        id = (id ^ (unsigned char)*kernel) * 1099511628211ull;
    return id != 0 ? id : 1;
}

struct lease *lease_open(const char *path, const char *kernel, struct lease_terms terms, lease_drain drain,
                         void *argument)
{
    struct process_lease *lease = calloc(1, sizeof *lease);
    struct lease_table *table = calloc(1, sizeof *table);
    if (lease == NULL || table == NULL || !lease_file_open(&lease->file, path)) {
        fprintf(stderr, "muster fgpu: %s: %s: a compute lease is needed to launch on this GPU\n", path, strerror(errno));
        free(table);
        free(lease);
        return NULL;
    }
    lease->table = table;
    lease->id = id_of(kernel);
    lease->terms = terms;
    lease->drain = drain;
    lease->argument = argument;
    lease->next = leases;
    forget(lease);
    if (leases == NULL) {
        process_on_fork(forget_all);
        atexit(close_all); /* registered later than the driver's own handler, hence run before it */
    }
    leases = lease;
    return &lease->gate;
}
