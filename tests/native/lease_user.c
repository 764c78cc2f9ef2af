/* A process that launches on a pretended GPU through a lease: what test_lease.py runs several of at a time.

   lease_user DEVICE TABLE KERNEL SHARE fair|hard|none [start=NS] [run=NS] [kernel=NS[,NS...]] [later=NS]
              [every=N gap=NS] [threads=N] [least=N] [rank=N rounds=N [pairs]] [fork] [closes] [limit=SHARE]
              [best-effort]
   DEVICE is a file that all processes on this GPU map; it executes kernels in the order of their launches. `start` is
   an instant of CLOCK_MONOTONIC. With `later`, kernels take so long in the second half of the run. `every` waits for the
   GPU after every N launches and then for `gap`. With `least`, it goes on beyond `run` until so many launches have
   finished. With `rank`, each kernel is one half of a rendezvous: it ends when the
   process of rank ^ 1 has launched its own, on whatever device. With `pairs`, this process launches both halves.
   With `closes`, it closes all files after its first launch, as daemons do, and opens DEVICE.own in their place.
   Writes how long the device worked for it, in nanoseconds, and how many launches that were; with `fork`, a child works
   beside it and writes a line of its own. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../fake_driver/clock.h"
#include "lease.h"
#include "lease_table.h"

#define DEPTH 1024
#define LAUNCH_NS 2000 /* what a launch takes of the processor */

struct device {
    _Atomic uint64_t busy_until;
    _Atomic uint64_t arrived[4];
};

struct launched {
    uint64_t end, ns;
};

static struct device *device;
static struct lease *lease;
static uint64_t start, kernels[8], later, gap;
static _Atomic uint64_t run = 1000 * MILLISECOND;
static unsigned kernel_count, every, threads = 1, least, rank, rounds;
static bool pairs;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct launched queue[DEPTH]; /* guarded by mutex, as all that follow */
static uint64_t first, last, busy, launches, round_number;

static void sleep_until(uint64_t instant)
{
    struct timespec until = {(time_t)(instant / 1000000000ull), (long)(instant % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static void take_finished(uint64_t now)
{
    now = now < start + run ? now : start + run;
    while (first < last && queue[first % DEPTH].end <= now) {
        busy += queue[first % DEPTH].ns;
        launches++;
        first++;
    }
}

static bool synchronize(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&mutex);
    uint64_t end = last > first ? queue[(last - 1) % DEPTH].end : 0, target = round_number;
    pthread_mutex_unlock(&mutex);
    if (end != 0)
        sleep_until(end);
    while (rounds != 0 && atomic_load(&device->arrived[rank ^ 1]) < target)
        sleep_until(monotonic_ns() + MILLISECOND);
    return true;
}

static void launch(uint64_t ns)
{
    if (lease != NULL && !lease_before_launch(lease))
        exit(3);
    if (clock_spend)
        clock_spend(LAUNCH_NS);
    pthread_mutex_lock(&mutex);
    uint64_t now = monotonic_ns(), until = atomic_load(&device->busy_until), end;
    take_finished(now);
    while (last - first == DEPTH && now < start + run) { /* as a driver does, the call waits for room */
        uint64_t half = queue[(first + DEPTH / 2) % DEPTH].end;
        pthread_mutex_unlock(&mutex);
        sleep_until(half);
        pthread_mutex_lock(&mutex);
        now = monotonic_ns();
        take_finished(now);
    }
    if (last - first == DEPTH) {
        pthread_mutex_unlock(&mutex);
        return;
    }
    do
        end = (until > now ? until : now) + ns;
    while (!atomic_compare_exchange_weak(&device->busy_until, &until, end));
    queue[last++ % DEPTH] = (struct launched){end, ns};
    pthread_mutex_unlock(&mutex);
}

static bool goes_on(void)
{
    uint64_t now = monotonic_ns();
    if (now < start + run)
        return true;
    pthread_mutex_lock(&mutex);
    bool too_few = launches < least;
    if (too_few)
        run = now - start + MILLISECOND;
    pthread_mutex_unlock(&mutex);
    return too_few;
}

static void *work(void *unused)
{
    (void)unused;
    sleep_until(start);
    for (unsigned i = 0; goes_on(); i++) {
        launch(later != 0 && monotonic_ns() > start + run / 2 ? later : kernels[i % kernel_count]);
        if (every != 0 && (i + 1) % every == 0) {
            synchronize(NULL);
            sleep_until(monotonic_ns() + gap);
        }
    }
    return NULL;
}

static void arrive(unsigned as)
{
    if (!lease_before_launch(lease))
        exit(3);
    pthread_mutex_lock(&mutex);
    round_number += as == rank;
    launches++;
    pthread_mutex_unlock(&mutex);
    atomic_fetch_add(&device->arrived[as], 1);
}

static void meet(void)
{
    sleep_until(start);
    for (unsigned i = 0; i < rounds; i++) {
        arrive(rank);
        if (pairs)
            arrive(rank ^ 1);
        synchronize(NULL);
    }
}

static void report(void)
{
    pthread_mutex_lock(&mutex);
    take_finished(start + run);
    printf("%llu %llu\n", (unsigned long long)busy, (unsigned long long)launches);
    pthread_mutex_unlock(&mutex);
    fflush(stdout);
}

static void close_files(const char *path)
{
    char own[4096];
    snprintf(own, sizeof own, "%s.own", path);
    launch(kernels[0]);
    for (int file = 3; file < 64; file++)
        close(file);
    for (int file = 3; file < 16; file++)
        if (open(own, O_RDWR | O_CREAT, 0666) < 0)
            exit(5);
}

static void work_beside_a_child(void)
{
    int status = -1;
    launch(kernels[0]); /* forked while it holds the GPU */
    pid_t child = fork();
    if (child == 0)
        first = last = busy = launches = 0;
    work(NULL);
    if (child == 0) {
        report();
        exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        exit(4);
}

static uint64_t value(const char *argument, const char *name)
{
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 && argument[length] == '=' ? strtoull(argument + length + 1, NULL, 10)
                                                                           : 0;
}

int main(int count, char **arguments)
{
    bool forks = false, closes = false;
    if (count < 6)
        return 2;
    int file = open(arguments[1], O_RDWR | O_CREAT, 0666);
    if (file < 0 || ftruncate(file, sizeof *device) != 0)
        return 2;
    device = mmap(NULL, sizeof *device, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (strcmp(arguments[5], "none") != 0) {
        struct lease_terms terms = {.share_milli = (unsigned)atoi(arguments[4])};
        terms.limit_milli = strcmp(arguments[5], "hard") == 0 ? terms.share_milli : 0;
        for (int i = 6; i < count; i++) {
            unsigned limit = (unsigned)value(arguments[i], "limit");
            terms.limit_milli = limit != 0 ? limit : terms.limit_milli;
            terms.best_effort = terms.best_effort || strcmp(arguments[i], "best-effort") == 0;
        }
        lease = lease_open(arguments[2], arguments[3], terms, synchronize, NULL);
        if (lease == NULL)
            return 1;
    }
    start = monotonic_ns();
    for (int i = 6; i < count; i++) {
        char *argument = arguments[i];
        start = value(argument, "start") ? value(argument, "start") : start;
        run = value(argument, "run") ? value(argument, "run") : run;
        every = value(argument, "every") ? (unsigned)value(argument, "every") : every;
        later = value(argument, "later") ? value(argument, "later") : later;
        gap = value(argument, "gap") ? value(argument, "gap") : gap;
        threads = value(argument, "threads") ? (unsigned)value(argument, "threads") : threads;
        least = value(argument, "least") ? (unsigned)value(argument, "least") : least;
        rank = value(argument, "rank") ? (unsigned)value(argument, "rank") : rank;
        rounds = value(argument, "rounds") ? (unsigned)value(argument, "rounds") : rounds;
        pairs = pairs || strcmp(argument, "pairs") == 0;
        forks = forks || strcmp(argument, "fork") == 0;
        closes = closes || strcmp(argument, "closes") == 0;
        if (strncmp(argument, "kernel=", 7) == 0)
            for (char *at = argument + 7; *at != '\0' && kernel_count < 8; at += *at == ',')
                kernels[kernel_count++] = strtoull(at, &at, 10);
    }
    pthread_t others[8];
    if (closes)
        close_files(arguments[1]);
    if (forks) {
        work_beside_a_child();
    } else if (rounds != 0) {
        meet();
    } else {
        for (unsigned i = 1; i < threads; i++)
            pthread_create(&others[i], NULL, work, NULL);
        work(NULL);
        for (unsigned i = 1; i < threads; i++)
            pthread_join(others[i], NULL);
    }
    report();
    return 0;
}
