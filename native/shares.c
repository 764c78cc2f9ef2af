#include "shares.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bounds.h"
#include "usage_table.h"

#ifndef F_OFD_GETLK /* not among the C library's features that we ask for */
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif
#define FIRST_LOCK (1ull << 60)
#define EXPORTS 64 /* descriptors of one share that are told apart */

/* By system calls, which have no versions that older C libraries lack. */
static bool lock_of(int file, int command, short type, uint64_t start, uint64_t length, short *found)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)length};
    bool done = syscall(SYS_fcntl, file, command, &lock) == 0;
    *found = lock.l_type;
    return done;
}

static bool facts_of(int file, struct stat *facts)
{
    return syscall(SYS_fstat, file, facts) == 0;
}

static uint64_t first_lock(const struct table *table, const struct share *share)
{
    uint64_t number = (uint64_t)table->seed * USAGE_SHARES + (uint64_t)(share - table->share);
    return FIRST_LOCK + number * EXPORTS;
}

static bool is_named(const struct share *share)
{
    return share->path[0] == '\0';
}

static bool is_of_file(const struct share *share, int file)
{
    struct stat facts;
    return facts_of(file, &facts) && facts.st_dev == share->device && facts.st_ino == share->inode;
}

/* Returns whether a descriptor of the share is open anywhere. One whose file cannot be looked at may be. */
static bool is_open(const struct table *table, const struct share *share)
{
    short found = F_WRLCK;
    if (is_named(share))
        return false;
    int file = open(share->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return true;
    if (!is_of_file(share, file) || !lock_of(file, F_OFD_GETLK, F_WRLCK, first_lock(table, share), EXPORTS, &found))
        found = F_WRLCK;
    close(file);
    return found != F_UNLCK;
}

static bool same_process(const struct process *one, const struct process *other)
{
    return one->pid == other->pid && one->pid_namespace == other->pid_namespace && one->started == other->started &&
           one->stack == other->stack;
}

static bool is_held(struct share *share, const struct process *self)
{
    bool held = share->endless;
    FOR_EACH(holder, share->holders) {
        if (holder->process.pid == 0)
            continue;
        if (same_process(&holder->process, self) || process_alive(&holder->process, self))
            held = true;
        else
            holder->process.pid = 0;
    }
    return held;
}

void shares_reap(struct table *table, const struct process *self)
{
    FOR_EACH(share, table->share)
        if (share->used && !is_held(share, self) && !is_open(table, share))
            share->used = 0;
}

/* One holder more than there are places, and it is not known when the share ends: it does not. */
static void hold(struct share *share, const struct process *self)
{
    struct holder *free = NULL;
    FOR_EACH(holder, share->holders) {
        if (holder->process.pid == 0)
            free = holder;
        else if (same_process(&holder->process, self)) {
            holder->count++;
            return;
        }
    }
    if (free != NULL)
        *free = (struct holder){*self, 1};
    else
        share->endless = 1;
}

/* Returns a free place with what is known of the memory. NULL: there is none, or this process has no such charge. */
static struct share *make(struct table *table, const struct slot *mine, int gpu, uint64_t bytes)
{
    if (gpu < 0 || bytes > mine->bytes[gpu])
        return NULL;
    FOR_EACH(share, table->share)
        if (!share->used) {
            memset(share, 0, sizeof *share);
            share->gpu = gpu;
            share->bytes = bytes;
            hold(share, &mine->owner);
            return share;
        }
    return NULL;
}

static struct share *make_of_file(struct table *table, const struct slot *mine, int gpu, uint64_t bytes, int file)
{
    struct stat facts;
    char link[32];
    struct share *share = make(table, mine, gpu, bytes);
    if (share == NULL || !facts_of(file, &facts))
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    (void)!readlink(link, share->path, sizeof share->path - 1);
    share->device = facts.st_dev;
    share->inode = facts.st_ino;
    /* No lock is there yet. If one seems to be, the file cannot be looked at, or somebody else locks it. */
    return is_named(share) || is_open(table, share) ? NULL : share;
}

static unsigned number_of(const struct table *table, const struct share *share)
{
    return (unsigned)(share - table->share) + 1;
}

/* Moves a charge from the process to the share that was made of it, and returns the share's number. */
static unsigned use(struct table *table, struct slot *mine, struct share *share)
{
    share->used = 1;
    mine->bytes[share->gpu] -= share->bytes;
    return number_of(table, share);
}

unsigned shares_export(unsigned number, int gpu, uint64_t bytes, int file)
{
    struct slot *mine;
    short found;
    struct table *table = usage_lock(&mine);
    if (table == NULL)
        return number;
    struct share *share = number != 0 ? &table->share[number - 1] : make_of_file(table, mine, gpu, bytes, file);
    if (share != NULL) {
        /* A descriptor that finds no byte of its own has the last one's, and is taken for it. */
        uint32_t byte = share->exports < EXPORTS ? share->exports++ : EXPORTS - 1;
        short type = (fcntl(file, F_GETFL) & O_ACCMODE) == O_WRONLY ? F_WRLCK : F_RDLCK;
        if (!lock_of(file, F_OFD_SETLK, type, first_lock(table, share) + byte, 1, &found) && number == 0)
            share = NULL;
    }
    if (share != NULL && number == 0)
        number = use(table, mine, share);
    usage_unlock(table);
    return number;
}

unsigned shares_export_named(uint64_t name, int gpu, uint64_t bytes)
{
    struct slot *mine;
    unsigned number = 0;
    struct table *table = usage_lock(&mine);
    if (table == NULL)
        return number;
    struct share *share = make(table, mine, gpu, bytes);
    if (share != NULL) {
        share->inode = name;
        number = use(table, mine, share);
    }
    usage_unlock(table);
    return number;
}

/* Returns whether a byte's lock is of this very opened file: others see it there, and it is not in the file's way. */
static bool is_behind(int file, const struct table *table, const struct share *share, int probe)
{
    for (uint32_t byte = 0; byte < share->exports; byte++) {
        short seen = F_UNLCK, in_the_way = F_WRLCK;
        uint64_t at = first_lock(table, share) + byte;
        if (lock_of(probe, F_OFD_GETLK, F_WRLCK, at, 1, &seen) && seen != F_UNLCK &&
            lock_of(file, F_OFD_GETLK, F_WRLCK, at, 1, &in_the_way) && in_the_way == F_UNLCK)
            return true;
    }
    return false;
}

static bool is_known_behind(int file, const struct table *table, const struct share *share)
{
    if (!share->used || is_named(share) || !is_of_file(share, file))
        return false;
    int probe = open(share->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool known = probe >= 0 && is_behind(file, table, share, probe);
    close(probe);
    return known;
}

/* Notes that this process has a share, the first of those that `is_it` knows. */
static unsigned import(bool (*is_it)(const struct table *, const struct share *, uint64_t), uint64_t what)
{
    struct slot *mine;
    unsigned number = 0;
    struct table *table = usage_lock(&mine);
    if (table == NULL)
        return number;
    FOR_EACH(share, table->share)
        if (number == 0 && is_it(table, share, what)) {
            hold(share, &mine->owner);
            number = number_of(table, share);
        }
    usage_unlock(table);
    return number;
}

static bool has_file(const struct table *table, const struct share *share, uint64_t file)
{
    return is_known_behind((int)file, table, share);
}

unsigned shares_import(int file)
{
    return import(has_file, (uint64_t)file);
}

static bool has_name(const struct table *table, const struct share *share, uint64_t name)
{
    (void)table;
    return share->used && is_named(share) && share->inode == name;
}

unsigned shares_import_named(uint64_t name)
{
    return import(has_name, name);
}

static void let_go(struct share *share, const struct process *self)
{
    FOR_EACH(holder, share->holders)
        if (same_process(&holder->process, self) && --holder->count == 0)
            holder->process.pid = 0;
}

void shares_drop(unsigned number)
{
    struct slot *mine;
    struct table *table = usage_lock(&mine);
    if (table == NULL)
        return;
    struct share *share = &table->share[number - 1];
    let_go(share, &mine->owner);
    if (!is_held(share, &mine->owner) && !is_open(table, share)) {
        table->total[share->gpu] = above(table->total[share->gpu], share->bytes);
        share->used = 0;
    }
    usage_unlock(table);
}
