#include "lease_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LAYOUT 0x32657361656c7566ull
#define LOCK_PATIENCE (2 * MILLISECOND)
#define LOCK_PAUSE_NS 20000
#define FUTEX_FAULT_PAUSE_NS MILLISECOND
#define WORD sizeof(uint64_t)

static_assert(sizeof(struct lease_table) <= LEASE_FILE_MOST, "the agent gives a GPU's lease so much memory");
static_assert(sizeof(struct lease_table) % WORD == 0, "it is compared by words");

static void pause_for(long ns)
{
    struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

/* A system call instead of fstat(), which newer C libraries bind to a version that older ones lack. */
static bool look(int descriptor, struct stat *state)
{
    return syscall(SYS_fstat, descriptor, state) == 0;
}

static bool is_ours(const struct lease_file *file, struct stat *state)
{
    return look(file->descriptor, state) && state->st_dev == file->device && state->st_ino == file->inode;
}

static bool open_again(struct lease_file *file, struct stat *state)
{
    int descriptor = open(file->path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool known = look(descriptor, state);
    if (known) {
        file->descriptor = descriptor;
        file->device = state->st_dev;
        file->inode = state->st_ino;
    } else {
        close(descriptor);
    }
    return known;
}

bool lease_file_open(struct lease_file *file, const char *path)
{
    struct stat state;
    file->descriptor = -1;
    file->path = strdup(path);
    file->before = calloc(1, sizeof *file->before);
    if (file->path == NULL || file->before == NULL || !open_again(file, &state)) {
        lease_file_close(file);
        return false;
    }
    char *mapped = mmap(NULL, sizeof(struct lease_table), PROT_READ | PROT_WRITE, MAP_SHARED, file->descriptor, 0);
    if (mapped == MAP_FAILED) {
        lease_file_close(file);
        return false;
    }
    file->changes = (uint32_t *)(void *)(mapped + offsetof(struct lease_table, changes));
    return true;
}

void lease_file_close(struct lease_file *file)
{
    int error = errno;
    struct stat state;
    if (file->changes != NULL)
        munmap((char *)file->changes - offsetof(struct lease_table, changes), sizeof(struct lease_table));
    if (is_ours(file, &state))
        close(file->descriptor);
    free(file->path);
    free(file->before);
    *file = (struct lease_file){.descriptor = -1};
    errno = error;
}

void lease_file_forget(struct lease_file *file)
{
    struct stat state, again;
    struct lease_file inherited = *file;
    /* If the path cannot be opened, for example after a chroot, the child keeps its parent's descriptor. */
    if (is_ours(&inherited, &state) && open_again(file, &again))
        close(inherited.descriptor);
}

static void lock(int descriptor)
{
    uint64_t since = monotonic_ns();
    while (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && elapsed(since, monotonic_ns()) < LOCK_PATIENCE)
        pause_for(LOCK_PAUSE_NS);
}

bool lease_file_take(struct lease_file *file, struct lease_table *table)
{
    struct stat state;
    if (!is_ours(file, &state) && !open_again(file, &state))
        return false;
    lock(file->descriptor);
    /* A file that was grown is cut too: its pages beyond the table may take all of its file system. */
    if (look(file->descriptor, &state) && state.st_size != (off_t)sizeof *table)
        (void)!ftruncate(file->descriptor, sizeof *table);
    ssize_t length = pread(file->descriptor, table, sizeof *table, 0);
    if (length < 0) {
        int error = errno;
        flock(file->descriptor, LOCK_UN);
        errno = error;
        return false;
    }
    memset((char *)table + length, 0, sizeof *table - (size_t)length);
    memcpy(file->before, table, sizeof *table);
    if (table->layout != LAYOUT) {
        uint32_t changes = table->changes;
        memset(table, 0, sizeof *table);
        table->changes = changes;
        table->layout = LAYOUT;
    }
    return true;
}

static bool same_word(const char *one, const char *other, size_t at)
{
    return memcmp(one + at, other + at, WORD) == 0;
}

void lease_file_give(struct lease_file *file, const struct lease_table *table)
{
    const char *before = (const char *)file->before, *after = (const char *)table;
    for (size_t from = 0, to; from < sizeof *table; from = to) {
        for (; from < sizeof *table && same_word(before, after, from); from += WORD)
            ;
        for (to = from; to < sizeof *table && !same_word(before, after, to); to += WORD)
            ;
        /* If the file system is full, the others miss this change, and correct the table when they read it. */
        if (to != from)
            (void)!pwrite(file->descriptor, after + from, to - from, (off_t)from);
    }
    flock(file->descriptor, LOCK_UN);
    if (table->changes != file->before->changes)
        futex_wake(file->changes, true);
}

void lease_file_wait(const struct lease_file *file, uint32_t seen, uint64_t timeout_ns)
{
    if (futex_wait(file->changes, seen, timeout_ns, true) != 0 && errno == EFAULT)
        pause_for(FUTEX_FAULT_PAUSE_NS);
}
