#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

enum { FORKED = 0, READY = 1, FORGETTING = 2 };
static _Atomic int unmapped = READY;
_Atomic int *process_mark = &unmapped;

static void (*forgets[16])(void);
static int forget_count;

void process_on_fork(void (*forget)(void))
{
    forgets[forget_count++] = forget;
}

void process_after_fork(void)
{
    int forked = FORKED;
    if (atomic_compare_exchange_strong(process_mark, &forked, FORGETTING)) {
        for (int i = 0; i < forget_count; i++)
            forgets[i]();
        atomic_store(process_mark, READY);
    }
    while (atomic_load(process_mark) != READY)
        sched_yield();
}

static void forked_on_an_old_kernel(void)
{
    atomic_store(process_mark, FORKED);
}

__attribute__((constructor(101))) static void watch_forks(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, 4096, MADV_WIPEONFORK) == 0) {
        atomic_store((_Atomic int *)page, READY);
        process_mark = page;
    } else {
        pthread_atfork(NULL, NULL, forked_on_an_old_kernel);
    }
}

struct stat_line {
    char state;
    uint64_t threads, started, stack;
};

static bool read_stat(const char *path, struct stat_line *line)
{
    char text[1024] = ""; /* what is read ends with the first zero */
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    (void)!read(file, text, sizeof text - 1);
    close(file);
    const char *at = strrchr(text, ')'); /* the last one, since a program's name may hold blanks and brackets */
    if (at == NULL || at[1] != ' ')
        return false;
    at += 2;
    line->state = *at;
    for (int field = 3; *at != '\0'; field++) {
        uint64_t value = 0;
        for (const char *digit = at; *digit >= '0' && *digit <= '9'; digit++)
            value = value * 10 + (uint64_t)(*digit - '0');
        if (field == 20)
            line->threads = value;
        if (field == 22)
            line->started = value;
        if (field == 28) {
            line->stack = value;
            return true;
        }
        at = strchr(at, ' ');
        if (at == NULL)
            break;
        at++;
    }
    return false;
}

void process_self(struct process *self)
{
    struct stat_line line;
    char name[64];
    memset(self, 0, sizeof *self);
    self->pid = getpid();
    if (read_stat("/proc/self/stat", &line)) {
        self->started = line.started;
        self->stack = line.stack;
    }
    ssize_t length = readlink("/proc/self/ns/pid", name, sizeof name - 1); /* pid:[4026531836] */
    for (ssize_t i = 0; i < length; i++)
        if (name[i] >= '0' && name[i] <= '9')
            self->pid_namespace = self->pid_namespace * 10 + (uint32_t)(name[i] - '0');
}

bool process_alive(const struct process *process, const struct process *self)
{
    struct stat_line line;
    char path[32];
    if (process->pid_namespace != self->pid_namespace)
        return true;
    if (kill(process->pid, 0) != 0 && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%d/stat", process->pid);
    if (!read_stat(path, &line))
        return true;
    /* A zombie with more threads still lives: only its first thread has ended. */
    if ((line.state == 'Z' || line.state == 'X') && line.threads <= 1)
        return false;
    if (process->started != 0 && process->started != line.started)
        return false;
    /* The Linux kernel shows 0 if this process may not read the address. */
    return process->stack == 0 || line.stack == 0 || process->stack == line.stack;
}
