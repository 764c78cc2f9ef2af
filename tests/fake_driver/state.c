#define _GNU_SOURCE
#include "state.h"

#include "clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef FAKE_GPU_STATE
#define FAKE_GPU_STATE "/var/lib/fake-gpu/state"
#endif
#ifndef FAKE_GPU_VISIBLE
#define FAKE_GPU_VISIBLE "/var/lib/fake-gpu/visible"
#endif

enum { LAUNCH_NS = 2000, FIRST_EXPORT = 1 << 20 }; /* what a launch takes of the processor */
static const uint64_t MAGIC = 0x31757067656b6166; /* "fakegpu1" */
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct state *_Atomic mapped;
static struct process *mine;
static int descriptor = -1;
static bool forked;
static unsigned held[MAX_EXPORTS]; /* by this process */

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A lock of the open file, not of the process: both libraries of one process, and all its threads, hold their own. */
static bool lock_byte(int command, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, command, &lock) == 0;
}

static bool slot_is_locked(unsigned slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + (off_t)slot, .l_len = 1};
    return fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void state_lock(void)
{
    pthread_mutex_lock(&process_lock);
    while (!lock_byte(F_OFD_SETLKW, F_WRLCK, 0)) {
    }
}

void state_unlock(void)
{
    lock_byte(F_OFD_SETLK, F_UNLCK, 0);
    pthread_mutex_unlock(&process_lock);
}

static void before_fork(void)
{
    pthread_mutex_lock(&process_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&process_lock);
}

/* The child shares the open file, whose locks would outlive its parent. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&process_lock, NULL);
    forked = forked || mine != NULL;
    mine = NULL;
    memset(held, 0, sizeof held);
    if (descriptor >= 0)
        close(descriptor);
    descriptor = open(FAKE_GPU_STATE, O_RDWR | O_CLOEXEC);
}

static void map_state(void)
{
    descriptor = open(FAKE_GPU_STATE, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return;
    state_lock();
    bool is_new = lseek(descriptor, 0, SEEK_END) < (off_t)sizeof(struct state);
    if (is_new && (fchmod(descriptor, 0666) != 0 || ftruncate(descriptor, sizeof(struct state)) != 0)) {
        state_unlock();
        return;
    }
    /* Mapped through an opening of its own: a forked child keeps the mapping, and with it that opening and its locks. */
    int file = open(FAKE_GPU_STATE, O_RDWR | O_CLOEXEC);
    struct state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (state != MAP_FAILED && state->magic != MAGIC)
        state_reset(state, &DEFAULT_SETTINGS);
    state_unlock();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    if (state != MAP_FAILED)
        mapped = state;
}

struct state *state_open(void)
{
    if (!mapped) {
        pthread_mutex_lock(&open_lock);
        if (!mapped)
            map_state();
        pthread_mutex_unlock(&open_lock);
    }
    return mapped;
}

void new_uuid(char *text, const char *prefix)
{
    unsigned char b[16] = {0};
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (random >= 0) {
        if (read(random, b, sizeof b) != sizeof b)
            memset(b, 0, sizeof b);
        close(random);
    }
    sprintf(text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, b[0], b[1], b[2],
            b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

void state_reset(struct state *state, const struct settings *settings)
{
    memset(state, 0, sizeof *state);
    state->gpus = settings->gpus;
    state->mute = settings->mute;
    strcpy(state->driver_version, "999.1");
    state->context_bytes = settings->context_bytes;
    state->free_delay_ns = settings->free_delay_ns;
    state->host_bytes = settings->host_bytes;
    for (unsigned gpu = 0; gpu < settings->gpus; gpu++) {
        struct device *device = &state->devices[gpu * DEVICES_PER_GPU];
        device->present = 1;
        device->mem_bytes = settings->mem_bytes;
        device->mig_capable = settings->mig_capable;
        new_uuid(device->uuid, "GPU");
    }
    state->magic = MAGIC;
}

static uint64_t unserved_ns(const struct state *state, const struct process *process, unsigned device)
{
    uint64_t now = device_now(&state->devices[device]), unserved = 0;
    uint64_t last = process->launches, first = last > QUEUE_DEPTH ? last - QUEUE_DEPTH : 0;
    for (uint64_t number = first; number < last; number++) {
        const struct launch *launch = &process->queue[number % QUEUE_DEPTH];
        if (launch->device == device && launch->finish > now) {
            uint64_t left = launch->finish - now;
            unserved += left < launch->duration_ns ? left : launch->duration_ns;
        }
    }
    return unserved;
}

uint64_t process_served_ns(const struct state *state, const struct process *process, unsigned device)
{
    uint64_t launched = process->launched_ns[device];
    if (process->state != SLOT_ALIVE)
        return launched;
    uint64_t unserved = unserved_ns(state, process, device);
    return unserved < launched ? launched - unserved : 0;
}

static void end_slot(struct state *state, struct process *process)
{
    for (unsigned device = 0; device < MAX_DEVICES; device++) {
        uint64_t unserved = unserved_ns(state, process, device);
        process->launched_ns[device] -= unserved < process->launched_ns[device] ? unserved : process->launched_ns[device];
        state->devices[device].skipped_ns += unserved;
        process->contexts[device] = 0;
        process->used_bytes[device] = 0;
        process->managed_bytes[device] = 0;
    }
    process->state = SLOT_DEAD;
}

static bool export_is_locked(int number)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = FIRST_EXPORT + number, .l_len = 1};
    return held[number] || fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void state_reap(struct state *state)
{
    for (int number = 0; number < MAX_EXPORTS; number++)
        if (state->exports[number].used && !export_is_locked(number))
            state->exports[number].used = 0;
    for (unsigned slot = 0; slot < state->slots; slot++) {
        struct process *process = &state->processes[slot];
        if (process->state == SLOT_ALIVE && process != mine && !slot_is_locked(slot)) {
            process->died_ns = now_ns();
            process->state = SLOT_DYING;
        }
        if (process->state == SLOT_DYING && now_ns() - process->died_ns >= state->free_delay_ns)
            end_slot(state, process);
    }
}

/* Field 22 of stat; the command before it may hold blanks and parentheses. */
static uint64_t own_start_ticks(void)
{
    char text[1024] = "";
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    unsigned long long ticks = 0;
    const char *rest = length > 0 ? strrchr(text, ')') : NULL;
    if (rest)
        sscanf(rest + 1, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &ticks);
    return ticks;
}

/* Where the control groups of version 2 are mounted depends on the host; a limit names the directory below that. */
static void own_group(char group[MOST_GROUP])
{
    char line[2 * MOST_GROUP];
    group[0] = '\0';
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "0::", 3)) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(group, MOST_GROUP, "%.255s", line + 3);
        }
    if (file)
        fclose(file);
}

static bool is_within(const struct process *process, const struct limit *limit)
{
    static const char *const mounts[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
    const char *group = limit->group;
    for (unsigned i = 0; i < 2 && group == limit->group; i++)
        if (!strncmp(group, mounts[i], strlen(mounts[i])))
            group += strlen(mounts[i]);
    size_t length = strlen(group);
    return length && !strncmp(process->group, group, length) && strchr("/", process->group[length]);
}

uint64_t state_used_in(const struct state *state, const struct limit *limit)
{
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < state->slots; slot++)
        if (is_within(&state->processes[slot], limit))
            sum += state->processes[slot].used_bytes[limit->device];
    return sum;
}

/* Whether the process, with what it has just added, keeps to the limits of its control group and of those above. */
static bool keeps_limits(const struct state *state, const struct process *process, unsigned device)
{
    for (unsigned i = 0; i < MAX_LIMITS; i++) {
        const struct limit *limit = &state->limits[i];
        if (limit->group[0] && limit->device == device && is_within(process, limit) &&
            state_used_in(state, limit) > limit->hard_bytes)
            return false;
    }
    return true;
}

struct process *state_claim(struct state *state)
{
    if (mine || forked)
        return mine;
    state_lock();
    state_reap(state);
    unsigned chosen = MAX_PROCESSES;
    for (unsigned slot = 0; slot < MAX_PROCESSES; slot++) {
        struct process *process = &state->processes[slot];
        /* A free one may belong to a process that was there before the devices were made anew. */
        if (process->state == SLOT_FREE && !slot_is_locked(slot)) {
            chosen = slot;
            break;
        }
        /* The slots of the dead tell what they were given: the longest dead goes first. */
        if (process->state == SLOT_DEAD && (chosen == MAX_PROCESSES || process->died_ns < state->processes[chosen].died_ns))
            chosen = slot;
    }
    if (chosen < MAX_PROCESSES && lock_byte(F_OFD_SETLK, F_WRLCK, 1 + (off_t)chosen)) {
        mine = &state->processes[chosen];
        memset(mine, 0, sizeof *mine);
        mine->pid = getpid();
        mine->start_ticks = own_start_ticks();
        own_group(mine->group);
        mine->state = SLOT_ALIVE;
        if (state->slots <= chosen)
            state->slots = chosen + 1;
    }
    state_unlock();
    return mine;
}

bool state_was_forked(void)
{
    return forked;
}

static uint64_t sum_used(const struct state *state, unsigned device)
{
    uint64_t sum = 0;
    for (unsigned slot = 0; slot < state->slots; slot++)
        sum += state->processes[slot].used_bytes[device];
    for (unsigned number = 0; number < MAX_EXPORTS; number++)
        if (state->exports[number].used && state->exports[number].device == device)
            sum += state->exports[number].bytes;
    return sum;
}

/* Moves managed memory to the host, as much as is missing; under state_lock. */
static void evict(struct state *state, unsigned device, uint64_t missing)
{
    for (unsigned slot = 0; slot < state->slots && missing; slot++) {
        struct process *process = &state->processes[slot];
        uint64_t moved = process->managed_bytes[device] < missing ? process->managed_bytes[device] : missing;
        moved = moved < state->host_bytes ? moved : state->host_bytes;
        process->managed_bytes[device] -= moved;
        process->used_bytes[device] -= moved;
        state->host_bytes -= moved;
        missing -= moved;
    }
}

bool state_reserve(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    uint64_t total = state->devices[device].mem_bytes;
    if (bytes > total)
        return false;
    /* Whoever adds last sees what all others added, so that the sum never passes the total unseen. */
    process->used_bytes[device] += bytes;
    if (sum_used(state, device) <= total && keeps_limits(state, process, device))
        return true;
    process->used_bytes[device] -= bytes;
    state_lock();
    state_reap(state);
    uint64_t used = sum_used(state, device);
    if (used + bytes > total)
        evict(state, device, used + bytes - total);
    bool fits = false;
    for (unsigned attempt = 0; attempt < 3 && !fits; attempt++) {
        process->used_bytes[device] += bytes;
        fits = sum_used(state, device) <= total && keeps_limits(state, process, device);
        if (!fits) {
            process->used_bytes[device] -= bytes;
            sched_yield();
        }
    }
    state_unlock();
    return fits;
}

void state_release(struct process *process, unsigned device, uint64_t bytes)
{
    process->used_bytes[device] -= bytes;
}

bool state_reserve_managed(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    bool on_device = state->host_bytes == 0 || bytes <= state->devices[device].mem_bytes - sum_used(state, device);
    if (on_device && !state_reserve(state, process, device, bytes))
        return false;
    state_lock();
    bool fits = on_device || bytes <= state->host_bytes;
    if (on_device)
        process->managed_bytes[device] += bytes;
    else if (fits)
        state->host_bytes -= bytes;
    state_unlock();
    return fits;
}

void state_release_managed(struct state *state, struct process *process, unsigned device, uint64_t bytes)
{
    state_lock();
    uint64_t on_device = process->managed_bytes[device] < bytes ? process->managed_bytes[device] : bytes;
    process->managed_bytes[device] -= on_device;
    process->used_bytes[device] -= on_device;
    state->host_bytes += bytes - on_device;
    state_unlock();
}

static void hold(int number)
{
    if (held[number]++ == 0)
        lock_byte(F_OFD_SETLK, F_RDLCK, FIRST_EXPORT + number);
}

int state_export(struct state *state, unsigned device, uint64_t bytes)
{
    int number = -1;
    state_lock();
    state_reap(state);
    for (int i = 0; i < MAX_EXPORTS && number < 0; i++)
        if (!state->exports[i].used)
            number = i;
    if (number >= 0) {
        state->exports[number] = (struct exported){.device = device, .bytes = bytes};
        hold(number);
        mine->used_bytes[device] -= bytes;
        state->exports[number].used = 1;
    }
    state_unlock();
    return number;
}

int state_export_open(int number)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = FIRST_EXPORT + number, .l_len = 1};
    int file = open(FAKE_GPU_STATE, O_RDWR | O_CLOEXEC);
    if (file >= 0 && fcntl(file, F_OFD_SETLK, &lock) == 0 && lseek(file, number, SEEK_SET) == number)
        return file;
    close(file);
    return -1;
}

int state_import(struct state *state, int file)
{
    struct stat ours, theirs;
    /* System calls, since newer C libraries bind fstat() to a version that older ones lack. */
    if (syscall(SYS_fstat, descriptor, &ours) != 0 || syscall(SYS_fstat, file, &theirs) != 0 ||
        ours.st_ino != theirs.st_ino)
        return -1;
    off_t number = lseek(file, 0, SEEK_CUR);
    state_lock();
    bool there = number >= 0 && number < MAX_EXPORTS && state->exports[number].used;
    if (there)
        hold((int)number);
    state_unlock();
    return there ? (int)number : -1;
}

void state_export_drop(int number)
{
    if (--held[number] == 0)
        lock_byte(F_OFD_SETLK, F_UNLCK, FIRST_EXPORT + number);
}

uint64_t state_used(struct state *state, unsigned device)
{
    state_lock();
    state_reap(state);
    uint64_t used = sum_used(state, device);
    if (device % DEVICES_PER_GPU == 0)
        for (unsigned instance = 1; instance <= MAX_INSTANCES; instance++)
            used += sum_used(state, device + instance);
    state_unlock();
    return used;
}

uint64_t device_now(const struct device *device)
{
    return now_ns() + device->skipped_ns;
}

void device_wait(const struct device *device, uint64_t finish)
{
    for (;;) {
        uint64_t now = device_now(device);
        if (now >= finish)
            return;
        uint64_t left = finish - now;
        /* Sleeping ends some 60 µs late; no longer than 5 ms, for the work before ours may die with its process. */
        if (left > 200000) {
            uint64_t nap = left - 100000 < 5000000 ? left - 100000 : 5000000;
            nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
        } else {
            sched_yield();
        }
    }
}

uint64_t device_enqueue(struct state *state, struct process *process, unsigned device, uint64_t duration_ns,
                        uint64_t not_before)
{
    struct device *hardware = &state->devices[device];
    uint64_t number = process->launches;
    struct launch *launch = &process->queue[number % QUEUE_DEPTH];
    if (number >= QUEUE_DEPTH)
        device_wait(&state->devices[launch->device], launch->finish);
    if (clock_spend)
        clock_spend(LAUNCH_NS);
    uint64_t busy_until = hardware->busy_until, finish;
    do {
        uint64_t start = device_now(hardware);
        start = start < busy_until ? busy_until : start;
        start = start < not_before ? not_before : start;
        finish = start + duration_ns;
    } while (!atomic_compare_exchange_weak(&hardware->busy_until, &busy_until, finish));
    *launch = (struct launch){finish, duration_ns, device};
    process->launched_ns[device] += duration_ns;
    process->launches = number + 1;
    return finish;
}

bool device_is_visible(const struct state *state, unsigned device)
{
    const struct device *asked = &state->devices[device];
    if (!asked->present)
        return false;
    FILE *file = fopen(FAKE_GPU_VISIBLE, "re");
    if (!file)
        return true;
    const struct device *gpu = &state->devices[device - device % DEVICES_PER_GPU];
    bool visible = false;
    char line[128];
    while (!visible && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        visible = !strcmp(line, asked->uuid) || !strcmp(line, gpu->uuid);
    }
    fclose(file);
    return visible;
}
