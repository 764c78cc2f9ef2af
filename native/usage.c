#include "usage.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bounds.h"
#include "clock.h"
#include "usage_table.h"

#define TABLE_FILE FGPU_STATE "/usage"
#define MAGIC 0x656761737570476dull
#define VERSION 2
#define REAPED_LATELY_NS 1500000000ull

/* The agent puts each container's file on a file system of this size. */
static_assert(sizeof(struct table) <= 1u << 20, "the file system of a container's use has room for the table");
static_assert(USAGE_SLOTS <= USAGE_MOST_PROCESSES, "a caller has room for the processes of the table");

static struct table *_Atomic table;
static struct slot *mine; /* under the table's mutex */
static struct process self;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static bool refused; /* one line has said why */

static void forget(void)
{
    mine = NULL;
    pthread_mutex_init(&opening, NULL);
}

__attribute__((constructor(102))) static void watch_forks(void)
{
    process_on_fork(forget);
}

static struct table *refuse(const char *why)
{
    if (!refused)
        fprintf(stderr, "muster fgpu: the table of GPU memory in use, " TABLE_FILE ", cannot be used (%s): "
                        "no GPU memory is given; end the session and submit it again\n", why);
    refused = true;
    return NULL;
}

static const char *make(int file, struct table *mapped)
{
    pthread_mutexattr_t shared;
    int wrong = posix_fallocate(file, 0, sizeof *mapped); /* without room, fail here instead of by SIGBUS later */
    if (wrong != 0)
        return strerror(wrong);
    pthread_mutexattr_init(&shared);
    pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
    memset(mapped, 0, sizeof *mapped);
    pthread_mutex_init(&mapped->mutex, &shared);
    mapped->version = VERSION;
    mapped->slots = USAGE_SLOTS;
    mapped->seed = (uint32_t)(monotonic_ns() ^ (uint64_t)getpid() << 20);
    atomic_store(&mapped->magic, MAGIC);
    return NULL;
}

/* Maps the file, and makes the table if the container's first process has not, or was killed while it did. The file is
   locked meanwhile. Returns NULL, or the reason for a failure. */
static const char *map_file(int file, struct table **mapped)
{
    if (flock(file, LOCK_EX) != 0)
        return strerror(errno);
    off_t size = lseek(file, 0, SEEK_END);
    if (size != 0 && size != (off_t)sizeof **mapped)
        return "it has the wrong size";
    if (size == 0 && ftruncate(file, sizeof **mapped) != 0)
        return strerror(errno);
    *mapped = mmap(NULL, sizeof **mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (*mapped == MAP_FAILED)
        return strerror(errno);
    const char *wrong = NULL;
    if (atomic_load(&(*mapped)->magic) == 0)
        wrong = make(file, *mapped);
    else if ((*mapped)->magic != MAGIC || (*mapped)->version != VERSION || (*mapped)->slots != USAGE_SLOTS ||
             (*mapped)->slots_used > USAGE_SLOTS)
        wrong = "it is not a table of this library";
    if (wrong != NULL)
        munmap(*mapped, sizeof **mapped);
    return wrong;
}

static struct table *open_table(void)
{
    struct table *mapped = NULL;
    int file = open(TABLE_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return refuse(strerror(errno));
    (void)fchmod(file, 0666); /* for all users of the container; only the file's owner may change its mode */
    const char *wrong = map_file(file, &mapped);
    flock(file, LOCK_UN); /* close() alone would keep the lock as long as the mapping lives */
    close(file);
    if (wrong != NULL)
        return refuse(wrong);
    process_self(&self);
    return mapped;
}

static struct table *get_table(void)
{
    process_check();
    struct table *got = atomic_load_explicit(&table, memory_order_acquire);
    if (got != NULL)
        return got;
    pthread_mutex_lock(&opening);
    got = atomic_load(&table);
    if (got == NULL)
        atomic_store(&table, got = open_table());
    pthread_mutex_unlock(&opening);
    return got;
}

static void count_again(struct table *table)
{
    memset(table->total, 0, sizeof table->total);
    for (uint32_t i = 0; i < table->slots_used; i++)
        EACH_LIMITED_GPU(gpu)
            if (table->slot[i].owner.pid != 0)
                table->total[gpu] += table->slot[i].bytes[gpu];
    FOR_EACH(share, table->share)
        if (share->used)
            table->total[share->gpu] += share->bytes;
}

static bool lock(struct table *table)
{
    int wrong = pthread_mutex_lock(&table->mutex);
    if (wrong == EOWNERDEAD) {
        /* The mutex's owner was killed while it updated the sums. The slots are right, so add them up again. */
        count_again(table);
        wrong = pthread_mutex_consistent(&table->mutex);
    }
    if (wrong != 0)
        refuse(strerror(wrong));
    return wrong == 0;
}

static void unlock(struct table *table)
{
    pthread_mutex_unlock(&table->mutex);
}

static void reap(struct table *table)
{
    int cancel;
    /* A thread that is cancelled while it reads /proc would keep the lock. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    uint32_t used = 0;
    for (uint32_t i = 0; i < table->slots_used; i++) {
        struct slot *slot = &table->slot[i];
        if (slot->owner.pid == 0)
            continue;
        if (slot == mine || process_alive(&slot->owner, &self)) {
            used = i + 1;
            continue;
        }
        EACH_LIMITED_GPU(gpu)
            if (slot->bytes[gpu] != 0)
                table->reaped_ns[gpu] = monotonic_ns();
        slot->owner.pid = 0;
    }
    table->slots_used = used;
    shares_reap(table, &self);
    count_again(table);
    pthread_setcancelstate(cancel, NULL);
}

static bool claim(struct table *table)
{
    if (mine != NULL)
        return true;
    process_self(&self);
    reap(table);
    FOR_EACH(slot, table->slot) {
        if (slot->owner.pid != 0)
            continue;
        uint32_t i = (uint32_t)(slot - table->slot);
        struct process owner = self;
        owner.pid = 0;
        memset(slot->bytes, 0, sizeof slot->bytes);
        slot->owner = owner;
        if (i >= table->slots_used)
            table->slots_used = i + 1;
        atomic_signal_fence(memory_order_seq_cst);
        slot->owner.pid = self.pid; /* last, since a slot counts once its pid is set */
        mine = slot;
        return true;
    }
    return false;
}

struct table *usage_lock(struct slot **slot)
{
    struct table *table = get_table();
    if (table == NULL || !lock(table))
        return NULL;
    if (claim(table)) {
        *slot = mine;
        return table;
    }
    unlock(table);
    return NULL;
}

void usage_unlock(struct table *table)
{
    unlock(table);
}

static void add(struct table *table, int gpu, uint64_t bytes)
{
    mine->bytes[gpu] += bytes;
    table->total[gpu] += bytes;
}

static bool fits(const struct table *table, int gpu, uint64_t bytes)
{
    uint64_t cap = limits_get()->gpus[gpu].mem_bytes, total = table->total[gpu];
    return total <= cap && bytes <= cap - total;
}

/* Returns whether the bytes fit, if need be without what processes had that have ended. */
static bool make_fit(struct table *table, int gpu, uint64_t bytes)
{
    if (fits(table, gpu, bytes))
        return true;
    reap(table);
    return fits(table, gpu, bytes);
}

enum usage usage_reserve(int gpu, uint64_t bytes)
{
    struct table *table = get_table();
    if (table == NULL || !lock(table))
        return USAGE_UNUSABLE;
    bool room = claim(table) && make_fit(table, gpu, bytes);
    if (room)
        add(table, gpu, bytes);
    unlock(table);
    return room ? USAGE_GRANTED : USAGE_FULL;
}

enum usage usage_take(int gpu, uint64_t bytes)
{
    struct table *table = get_table();
    if (table == NULL || !lock(table))
        return USAGE_UNUSABLE;
    bool claimed = claim(table);
    if (claimed)
        add(table, gpu, bytes);
    unlock(table);
    return claimed ? USAGE_GRANTED : USAGE_FULL;
}

void usage_release(int gpu, uint64_t bytes)
{
    struct table *table = get_table();
    if (bytes == 0 || table == NULL || !lock(table))
        return;
    if (mine != NULL) {
        uint64_t given = least(bytes, mine->bytes[gpu]);
        mine->bytes[gpu] -= given;
        table->total[gpu] = above(table->total[gpu], given);
    }
    unlock(table);
}

enum usage usage_total(int gpu, uint64_t *bytes)
{
    struct table *table = get_table();
    if (table == NULL || !lock(table))
        return USAGE_UNUSABLE;
    reap(table);
    *bytes = table->total[gpu];
    unlock(table);
    return USAGE_GRANTED;
}

bool usage_reaped_lately(int gpu)
{
    struct table *table = get_table();
    if (table == NULL || !lock(table))
        return false;
    reap(table);
    bool lately = table->reaped_ns[gpu] != 0 && monotonic_ns() - table->reaped_ns[gpu] < REAPED_LATELY_NS;
    unlock(table);
    return lately;
}

enum usage usage_processes(int gpu, struct usage_process found[USAGE_MOST_PROCESSES], unsigned *count)
{
    struct table *table = get_table();
    *count = 0;
    if (table == NULL || !lock(table))
        return USAGE_UNUSABLE;
    reap(table);
    for (uint32_t i = 0; i < table->slots_used; i++) {
        const struct slot *slot = &table->slot[i];
        if (slot->owner.pid != 0 && slot->owner.pid_namespace == self.pid_namespace && slot->bytes[gpu] != 0)
            found[(*count)++] = (struct usage_process){slot->owner.pid, slot->bytes[gpu]};
    }
    unlock(table);
    return USAGE_GRANTED;
}
