#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 512 };
#define PROCESS_END (1ull << 62)
#define THREAD_END (1ull << 61)
#define BEGINNING 1000000000000ull /* not 0, which means "never" in many places */
#define LEAST_DELAY 5000           /* from an event to the first instruction of the thread that it wakes */
#define DELAYS 20000

struct clock_thread {
    _Atomic uint32_t turn; /* futex: equals `ticket` while the thread runs */
    uint32_t ticket;       /* no two threads ever have the same one; 0: a free place */
    uint32_t process;
    int32_t pid;
    bool timed_out;
    uint64_t handle;
    uint64_t key;
    uint64_t wakes_at;
    uint64_t frozen_until;
};

struct clock {
    uint32_t ready; /* set last */
    uint32_t tickets, processes;
    uint32_t places;  /* none at or above this one was ever taken */
    uint32_t running; /* the ticket of the thread that runs; 0: all wait */
    pthread_mutex_t mutex;
    _Atomic uint64_t now;
    uint64_t random;
    struct clock_thread threads[MAX_THREADS];
};

/* The program's own may be replaced by ours. */
static long machine_futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(dlopen("libc.so.6", RTLD_LAZY), "syscall");
    return real(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static void lock(struct clock *clock)
{
    if (pthread_mutex_lock(&clock->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&clock->mutex);
}

static void unlock(struct clock *clock)
{
    pthread_mutex_unlock(&clock->mutex);
}

void clock_seed(struct clock *clock, uint64_t seed)
{
    clock->random = (seed + 1) * 0x9e3779b97f4a7c15ull; /* not 0, where xorshift stays */
}

static void make(struct clock *clock)
{
    pthread_mutexattr_t shared;
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&clock->mutex, &shared);
    clock->now = BEGINNING;
    clock_seed(clock, 0);
    clock->ready = 1;
}

struct clock *clock_map(const char *path)
{
    struct clock *clock = MAP_FAILED;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return NULL;
    if (flock(file, LOCK_EX) == 0 && ftruncate(file, sizeof *clock) == 0)
        clock = mmap(NULL, sizeof *clock, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (clock != MAP_FAILED && !clock->ready)
        make(clock);
    flock(file, LOCK_UN);
    close(file);
    return clock != MAP_FAILED ? clock : NULL;
}

uint64_t clock_now(const struct clock *clock)
{
    return atomic_load(&clock->now);
}

static uint64_t after_a_delay(struct clock *clock, uint64_t instant)
{
    clock->random ^= clock->random << 13;
    clock->random ^= clock->random >> 7;
    clock->random ^= clock->random << 17;
    return instant == CLOCK_NEVER ? CLOCK_NEVER : instant + LEAST_DELAY + clock->random % DELAYS;
}

static uint64_t runs_at(const struct clock_thread *thread)
{
    if (!thread->ticket || thread->wakes_at == CLOCK_NEVER)
        return CLOCK_NEVER;
    return thread->wakes_at > thread->frozen_until ? thread->wakes_at : thread->frozen_until;
}

/* The thread that is next to run, of those that wait. */
static struct clock_thread *next_of(struct clock *clock)
{
    struct clock_thread *next = NULL;
    for (uint32_t i = 0; i < clock->places; i++) {
        struct clock_thread *thread = &clock->threads[i];
        if (runs_at(thread) != CLOCK_NEVER && (!next || runs_at(thread) < runs_at(next)))
            next = thread;
    }
    return next;
}

static void run_next(struct clock *clock)
{
    struct clock_thread *next = next_of(clock);
    clock->running = next ? next->ticket : 0;
    if (!next)
        return;
    if (clock->now < runs_at(next))
        clock->now = runs_at(next);
    next->timed_out = next->key != 0;
    next->key = 0;
    next->wakes_at = CLOCK_NEVER; /* it does not wait */
    atomic_store(&next->turn, next->ticket);
    machine_futex(&next->turn, FUTEX_WAKE, INT32_MAX, NULL); /* threads of an ended process may still sleep there */
}

static void run_next_if_all_wait(struct clock *clock)
{
    if (!clock->running)
        run_next(clock);
}

struct clock_thread *clock_add(struct clock *clock, uint32_t process)
{
    struct clock_thread *thread = NULL;
    lock(clock);
    for (uint32_t i = 0; i < MAX_THREADS && !thread; i++)
        if (!clock->threads[i].ticket) {
            thread = &clock->threads[i];
            clock->places = clock->places > i ? clock->places : i + 1;
        }
    if (thread) {
        *thread = (struct clock_thread){.ticket = ++clock->tickets,
                                        .process = process ? process : ++clock->processes,
                                        .wakes_at = after_a_delay(clock, clock->now)};
        run_next_if_all_wait(clock);
    }
    unlock(clock);
    return thread;
}

uint32_t clock_process(const struct clock_thread *thread)
{
    return thread->process;
}

uint32_t clock_ticket(const struct clock_thread *thread)
{
    return thread->ticket;
}

#define EACH_THREAD_OF(clock, number, thread)                                                                          \
    for (struct clock_thread *thread = (clock)->threads; thread < (clock)->threads + (clock)->places; thread++)        \
        if (thread->ticket && thread->process == (number))

void clock_name(struct clock *clock, uint32_t process, int32_t pid)
{
    lock(clock);
    EACH_THREAD_OF(clock, process, thread)
        thread->pid = pid;
    unlock(clock);
}

void clock_name_thread(struct clock_thread *thread, uint64_t handle)
{
    thread->handle = handle;
}

bool clock_rest(struct clock *clock, struct clock_thread *thread, uint64_t key, uint64_t deadline,
                const _Atomic uint32_t *word, uint32_t expected)
{
    lock(clock);
    bool rests = !word || atomic_load(word) == expected;
    if (rests) {
        atomic_store(&thread->turn, 0);
        thread->key = key;
        thread->wakes_at = after_a_delay(clock, deadline);
        run_next(clock);
    }
    unlock(clock);
    return rests;
}

bool clock_turn(struct clock_thread *thread, uint32_t ticket, int milliseconds)
{
    struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    for (uint32_t turn; (turn = atomic_load(&thread->turn)) != ticket;)
        if (machine_futex(&thread->turn, FUTEX_WAIT, turn, milliseconds < 0 ? NULL : &limit) != 0 && errno == ETIMEDOUT)
            return atomic_load(&thread->turn) == ticket;
    return true;
}

bool clock_timed_out(const struct clock_thread *thread)
{
    return thread->timed_out;
}

void clock_work(struct clock *clock, struct clock_thread *thread, uint64_t ns)
{
    lock(clock);
    uint64_t until = clock->now + ns;
    struct clock_thread *next = next_of(clock);
    bool alone = !next || runs_at(next) > until;
    if (alone) {
        clock->now = until;
    } else {
        atomic_store(&thread->turn, 0);
        thread->wakes_at = until;
        run_next(clock);
    }
    unlock(clock);
    if (!alone)
        clock_turn(thread, thread->ticket, -1);
}

static unsigned wake(struct clock *clock, uint64_t key)
{
    unsigned count = 0;
    for (uint32_t i = 0; i < clock->places; i++)
        if (clock->threads[i].ticket && clock->threads[i].key == key) {
            clock->threads[i].key = 0;
            clock->threads[i].wakes_at = after_a_delay(clock, clock->now);
            count++;
        }
    return count;
}

unsigned clock_wake(struct clock *clock, uint64_t key)
{
    lock(clock);
    unsigned count = wake(clock, key);
    run_next_if_all_wait(clock);
    unlock(clock);
    return count;
}

static void remove_thread(struct clock *clock, struct clock_thread *thread)
{
    uint32_t ticket = thread->ticket;
    memset(thread, 0, sizeof *thread);
    wake(clock, THREAD_END | ticket);
    if (clock->running == ticket)
        clock->running = 0;
}

void clock_leave(struct clock *clock, struct clock_thread *thread)
{
    lock(clock);
    remove_thread(clock, thread);
    run_next_if_all_wait(clock);
    unlock(clock);
}

void clock_remove(struct clock *clock, uint32_t process)
{
    lock(clock);
    EACH_THREAD_OF(clock, process, thread)
        remove_thread(clock, thread);
    wake(clock, clock_process_end(process));
    run_next_if_all_wait(clock);
    unlock(clock);
}

void clock_freeze(struct clock *clock, uint32_t process, uint64_t until)
{
    lock(clock);
    EACH_THREAD_OF(clock, process, thread)
        thread->frozen_until = until;
    unlock(clock);
}

uint32_t clock_find(struct clock *clock, int32_t pid)
{
    uint32_t process = 0;
    lock(clock);
    for (uint32_t i = 0; i < clock->places; i++)
        if (clock->threads[i].ticket && clock->threads[i].pid == pid)
            process = clock->threads[i].process;
    unlock(clock);
    return process;
}

uint64_t clock_process_end(uint32_t process)
{
    return PROCESS_END | process;
}

uint64_t clock_thread_end(struct clock *clock, uint32_t process, uint64_t handle)
{
    uint64_t key = 0;
    lock(clock);
    EACH_THREAD_OF(clock, process, thread)
        if (thread->handle == handle)
            key = THREAD_END | thread->ticket;
    unlock(clock);
    return key;
}
