/* What the sources of the state share: locks on single bytes of its file, and their parts of what all of them do. */
#pragma once
#include "state.h"

#include <sys/types.h>

#ifndef FAKE_GPU_STATE
#define FAKE_GPU_STATE "/var/lib/fake-gpu/state"
#endif

extern int state_descriptor;
/* A lock of the open file, not of the process: both libraries of one process, and all its threads, hold their own. */
bool state_lock_byte(int command, short type, off_t byte);
/* Whether another opening of the file has a lock on the byte. */
bool state_byte_is_locked(off_t byte);

/* Ends memory behind descriptors that nothing has; under state_lock. */
void exports_reap(struct state *state);
void exports_after_fork(void);
/* How much of what the process launched the device has yet to do. */
uint64_t process_unserved_ns(const struct state *state, const struct process *process, unsigned device);
