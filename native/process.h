/* The identity of a process. A pid may be reused, so its start time belongs to it. An exec keeps both but frees the
   GPU's memory as an exit does, so the stack's address is compared too: each program of a process has another. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct process {
    int32_t pid;
    uint32_t pid_namespace;
    uint64_t started; /* 0: unknown */
    uint64_t stack;   /* 0: unknown */
};

void process_self(struct process *self);
/* Returns false only if the process has certainly ended: one of another pid namespace counts as alive. */
bool process_alive(const struct process *process, const struct process *self);

/* Registers `forget`, which runs in a forked child before any other code of ours and resets its locks: threads that the
   child lacks may have held them. `forget` calls no function that begins with process_check(). */
void process_on_fork(void (*forget)(void));

void process_after_fork(void);
extern _Atomic int *process_mark;
/* Runs the registered functions if this process is a new fork. Every function that uses state of the process calls it
   first. pthread_atfork() would not do: a copy of this library in a link-map namespace of its own (dlmopen) has a C
   library of its own, whose handlers no fork of the program runs. */
static inline void process_check(void)
{
    if (__builtin_expect(atomic_load_explicit(process_mark, memory_order_acquire) != 1, 0))
        process_after_fork();
}
