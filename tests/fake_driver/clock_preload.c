/* Preloaded into a program, this puts it on the clock in the file that FAKE_CLOCK names: what it and its libraries ask
   the C library about time, and every wait of theirs, goes by that clock. A thread takes part from its first wait on,
   so a program that only reads the time holds nobody up. */
#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SECOND 1000000000ull
#define YIELD 20000
/* The function of this name that would be found without this file. */
#define REAL(function) ((__typeof__(&function))real(#function))

static struct clock *world;
static uint32_t process; /* its number; 0: no thread takes part yet */
static __thread struct place {
    struct clock_thread *thread;
    uint32_t ticket;
} self;

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("FAKE_CLOCK");
    if (path && !(world = clock_map(path))) {
        perror(path);
        exit(1);
    }
}

/* After all exit handlers of the program and its libraries. */
__attribute__((destructor)) static void leave(void)
{
    if (process)
        clock_remove(world, process);
    world = NULL;
}

static struct place added(uint32_t to)
{
    struct clock_thread *thread = clock_add(world, to);
    if (!thread) {
        fputs("fake clock: too many threads\n", stderr);
        exit(1);
    }
    return (struct place){thread, clock_ticket(thread)};
}

static void wait_for_turn(void)
{
    clock_turn(self.thread, self.ticket, -1);
}

static struct clock_thread *this_thread(void)
{
    if (!self.thread) {
        self = added(process);
        process = clock_process(self.thread);
        clock_name(world, process, getpid());
        wait_for_turn();
    }
    return self.thread;
}

static void wait_until(uint64_t instant)
{
    clock_rest(world, this_thread(), 0, instant, NULL, 0);
    wait_for_turn();
}

EXPORT void clock_spend(uint64_t ns)
{
    if (world)
        clock_work(world, this_thread(), ns);
}

/* --- time --- */

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * SECOND + (uint64_t)time->tv_nsec;
}

EXPORT int clock_gettime(clockid_t id, struct timespec *time)
{
    if (!world || (id != CLOCK_MONOTONIC && id != CLOCK_MONOTONIC_RAW && id != CLOCK_MONOTONIC_COARSE))
        return (int)REAL(syscall)(SYS_clock_gettime, id, time);
    uint64_t now = clock_now(world);
    *time = (struct timespec){(time_t)(now / SECOND), (long)(now % SECOND)};
    return 0;
}

EXPORT int clock_nanosleep(clockid_t id, int flags, const struct timespec *time, struct timespec *left)
{
    if (!world)
        return REAL(clock_nanosleep)(id, flags, time, left);
    wait_until(flags & TIMER_ABSTIME ? ns_of(time) : clock_now(world) + ns_of(time));
    return 0;
}

EXPORT int nanosleep(const struct timespec *time, struct timespec *left)
{
    return world ? clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) : REAL(nanosleep)(time, left);
}

EXPORT int usleep(useconds_t us)
{
    return nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000L}, NULL);
}

EXPORT int sched_yield(void)
{
    if (!world)
        return REAL(sched_yield)();
    wait_until(clock_now(world) + YIELD);
    return 0;
}

/* --- futexes --- */

/* The same for a word in a file in whatever process maps it. */
static uint64_t shared_key(uint64_t address)
{
    static __thread struct {
        uint64_t address, key;
    } known[8];
    static __thread unsigned count;
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].address == address)
            return known[i].key;
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long first, end, offset, major, minor, inode;
    uint64_t key = 0;
    char line[512];
    while (maps && !key && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %lx %lx:%lx %lu", &first, &end, &offset, &major, &minor, &inode) == 6 &&
            address >= first && address < end)
            key = 1ull << 63 | (inode & 0xffffff) << 32 | ((offset + address - first) & 0xffffffff);
    if (maps)
        fclose(maps);
    known[count].address = address;
    known[count++ % (sizeof known / sizeof known[0])].key = key;
    return key;
}

static long futex(uint64_t address, int operation, uint32_t value, const struct timespec *timeout)
{
    bool private = operation & FUTEX_PRIVATE_FLAG;
    uint64_t key = private ? (uint64_t)process << 48 | address : shared_key(address);
    operation &= ~FUTEX_PRIVATE_FLAG;
    if (operation == FUTEX_WAKE)
        return clock_wake(world, key);
    if (operation != FUTEX_WAIT) {
        errno = ENOSYS;
        return -1;
    }
    struct clock_thread *thread = this_thread();
    uint64_t deadline = timeout ? clock_now(world) + ns_of(timeout) : CLOCK_NEVER;
    if (!clock_rest(world, thread, key, deadline, (const _Atomic uint32_t *)address, value)) {
        errno = EAGAIN;
        return -1;
    }
    wait_for_turn();
    errno = ETIMEDOUT;
    return clock_timed_out(thread) ? -1 : 0;
}

EXPORT long syscall(long number, ...)
{
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        words[i] = va_arg(rest, long);
    va_end(rest);
    if (!world || number != SYS_futex)
        return REAL(syscall)(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    return futex((uint64_t)words[0], (int)words[1], (uint32_t)words[2], (const struct timespec *)words[3]);
}

/* --- threads and processes --- */

struct start {
    void *(*run)(void *);
    void *argument;
    struct place place;
};

static void *run_thread(void *argument)
{
    struct start start = *(struct start *)argument;
    free(argument);
    self = start.place;
    wait_for_turn();
    void *result = start.run(start.argument);
    clock_leave(world, self.thread);
    return result;
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (!world)
        return REAL(pthread_create)(thread, attributes, run, argument);
    this_thread();
    struct start *start = malloc(sizeof *start);
    struct place place = added(process);
    *start = (struct start){run, argument, place};
    int error = REAL(pthread_create)(thread, attributes, run_thread, start);
    if (error)
        clock_leave(world, place.thread);
    else
        clock_name_thread(place.thread, (uint64_t)*thread);
    return error;
}

static void wait_for_end(uint64_t key)
{
    clock_rest(world, this_thread(), key, CLOCK_NEVER, NULL, 0);
    wait_for_turn();
}

EXPORT int pthread_join(pthread_t thread, void **result)
{
    uint64_t key = world ? clock_thread_end(world, process, (uint64_t)thread) : 0;
    if (key)
        wait_for_end(key);
    return REAL(pthread_join)(thread, result);
}

EXPORT pid_t fork(void)
{
    if (!world)
        return REAL(fork)();
    this_thread();
    struct place child = added(0);
    pid_t pid = REAL(fork)();
    if (pid == 0) {
        self = child;
        wait_for_turn();
        process = clock_process(child.thread);
    } else if (pid > 0) {
        clock_name(world, clock_process(child.thread), pid);
    } else {
        clock_leave(world, child.thread);
    }
    return pid;
}

EXPORT pid_t waitpid(pid_t pid, int *status, int options)
{
    uint32_t other = world && pid > 0 && !(options & WNOHANG) ? clock_find(world, pid) : 0;
    if (other)
        wait_for_end(clock_process_end(other));
    return REAL(waitpid)(pid, status, options);
}
