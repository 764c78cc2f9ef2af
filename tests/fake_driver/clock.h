/* A clock of its own for processes that are tested together. A file that all of them map holds the time. It stands still
   while one of their threads computes, and goes on to the nearest deadline when all of them wait. One thread runs at a
   time. So a measurement does not depend on how busy the machine is, and the same seed gives the same run.

   A thread that waits by this clock must hold no lock that another thread of the processes takes: that one would wait
   by the machine's clock, and nobody else would run meanwhile. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CLOCK_NEVER UINT64_MAX

#pragma GCC visibility push(default) /* called from Python too */

struct clock;
struct clock_thread; /* a thread's place in the file */

/* Returns the clock in the file at `path`, made where there is none. NULL and errno if it cannot be mapped. */
struct clock *clock_map(const char *path);
/* Sets what the delays of threads that are woken are drawn from. */
void clock_seed(struct clock *clock, uint64_t seed);
uint64_t clock_now(const struct clock *clock);

/* Adds a thread that runs when its turn comes, in a process with this number; 0: a new process. NULL: no place left. */
struct clock_thread *clock_add(struct clock *clock, uint32_t process);
uint32_t clock_process(const struct clock_thread *thread);
/* What the thread waits with for its turn: its place may be another's when its process has ended. */
uint32_t clock_ticket(const struct clock_thread *thread);
/* Names a process by its pid, and a thread by its pthread_t, for those who wait for their end. */
void clock_name(struct clock *clock, uint32_t process, int32_t pid);
void clock_name_thread(struct clock_thread *thread, uint64_t handle);

/* Ends the turn of a thread until clock_wake() with this key or the deadline. False: *word is not `expected`, and the
   turn goes on. `word` may be NULL. */
bool clock_rest(struct clock *clock, struct clock_thread *thread, uint64_t key, uint64_t deadline,
                const _Atomic uint32_t *word, uint32_t expected);
/* Returns true when the thread's turn has come; false after so many milliseconds of the machine's time, if not -1. */
bool clock_turn(struct clock_thread *thread, uint32_t ticket, int milliseconds);
bool clock_timed_out(const struct clock_thread *thread);
/* Lets time go by for the thread that runs. */
void clock_work(struct clock *clock, struct clock_thread *thread, uint64_t ns);
unsigned clock_wake(struct clock *clock, uint64_t key);

void clock_leave(struct clock *clock, struct clock_thread *thread);
/* Removes all threads of a process that ends, or has been killed. */
void clock_remove(struct clock *clock, uint32_t process);
/* Keeps a process from running, as SIGSTOP does. */
void clock_freeze(struct clock *clock, uint32_t process, uint64_t until);

/* The number of the process with this pid; 0: it takes no part. */
uint32_t clock_find(struct clock *clock, int32_t pid);
/* The keys by which the end of a process and of a thread wake others; 0: there is no such thread. */
uint64_t clock_process_end(uint32_t process);
uint64_t clock_thread_end(struct clock *clock, uint32_t process, uint64_t handle);

/* What a call takes of the processor: time that passes for the caller by a virtual clock. Not there by the machine's. */
void clock_spend(uint64_t ns) __attribute__((weak));

#pragma GCC visibility pop
