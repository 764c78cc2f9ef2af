/* The file of the state: it is mapped and locked, and each process has a slot of it. */
#define _GNU_SOURCE
#include "state_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const uint64_t MAGIC = 0x31757067656b6166; /* "fakegpu1" */
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static struct state *_Atomic mapped;
static struct process *mine;
static bool forked;
int state_descriptor = -1;

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool state_lock_byte(int command, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(state_descriptor, command, &lock) == 0;
}

bool state_byte_is_locked(off_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(state_descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool slot_is_locked(unsigned slot)
{
    return state_byte_is_locked(1 + (off_t)slot);
}

void state_lock(void)
{
    pthread_mutex_lock(&process_lock);
    while (!state_lock_byte(F_OFD_SETLKW, F_WRLCK, 0)) {
    }
}

void state_unlock(void)
{
    state_lock_byte(F_OFD_SETLK, F_UNLCK, 0);
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
    exports_after_fork();
    if (state_descriptor >= 0)
        close(state_descriptor);
    state_descriptor = open(FAKE_GPU_STATE, O_RDWR | O_CLOEXEC);
}

static void map_state(void)
{
    state_descriptor = open(FAKE_GPU_STATE, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (state_descriptor < 0)
        return;
    state_lock();
    bool is_new = lseek(state_descriptor, 0, SEEK_END) < (off_t)sizeof(struct state);
    if (is_new && (fchmod(state_descriptor, 0666) != 0 || ftruncate(state_descriptor, sizeof(struct state)) != 0)) {
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
    state->pool_block_bytes = settings->pool_block_bytes;
    for (unsigned gpu = 0; gpu < settings->gpus; gpu++) {
        struct device *device = &state->devices[gpu * DEVICES_PER_GPU];
        device->present = 1;
        device->mem_bytes = settings->mem_bytes;
        device->mig_capable = settings->mig_capable;
        new_uuid(device->uuid, "GPU");
    }
    state->magic = MAGIC;
}

static void end_slot(struct state *state, struct process *process)
{
    for (unsigned device = 0; device < MAX_DEVICES; device++) {
        uint64_t unserved = process_unserved_ns(state, process, device);
        process->launched_ns[device] -= unserved < process->launched_ns[device] ? unserved : process->launched_ns[device];
        state->devices[device].skipped_ns += unserved;
        process->contexts[device] = 0;
        process->used_bytes[device] = 0;
        process->managed_bytes[device] = 0;
    }
    process->state = SLOT_DEAD;
}

void state_reap(struct state *state)
{
    exports_reap(state);
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

/* Field 22; the command before it may hold blanks and parentheses. Digit by digit, since newer C libraries bind sscanf()
   and strtoull() to versions that older ones lack. */
uint64_t start_ticks_in(const char *stat)
{
    uint64_t ticks = 0;
    const char *field = strrchr(stat, ')');
    for (int blanks = 0; field && blanks < 20; blanks++)
        field = strchr(field + 1, ' ');
    while (field && *++field >= '0' && *field <= '9')
        ticks = 10 * ticks + (uint64_t)(*field - '0');
    return ticks;
}

static uint64_t own_start_ticks(void)
{
    char text[1024] = "";
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? start_ticks_in(text) : 0;
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
    if (chosen < MAX_PROCESSES && state_lock_byte(F_OFD_SETLK, F_WRLCK, 1 + (off_t)chosen)) {
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
