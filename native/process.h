/* Which process this is. A pid alone is reused, and a pid with its start time outlives an exec, which frees the memory
   of the GPU as an exit does: the address of the stack tells one program of a process from the next. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct process {
    int32_t pid;
    uint32_t pid_namespace;
    uint64_t started; /* 0: cannot be told */
    uint64_t stack;   /* 0: cannot be told */
};

void process_self(struct process *self);
/* False only where that is certain: a pid of another pid namespace is never called dead. */
bool process_alive(const struct process *process, const struct process *self);

/* `forget` runs in a forked child before anything else of ours does: locks may be held by threads that it has not.
   It calls nothing that begins with process_check. */
void process_on_fork(void (*forget)(void));

void process_after_fork(void);
extern _Atomic int *process_mark;
/* First in every function that uses state of this process. Not by pthread_atfork: a copy of this library in a link-map
   namespace of its own (dlmopen) has a C library of its own, whose handlers no fork of the program runs. */
static inline void process_check(void)
{
    if (__builtin_expect(atomic_load_explicit(process_mark, memory_order_acquire) != 1, 0))
        process_after_fork();
}
