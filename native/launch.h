/* Functions with which launches, memsets, captures and contexts notify each other. */
#pragma once
#include <stdbool.h>

#include "hooks.h"

/* Returns whether a launch into this stream is recorded instead of executed. `per_thread`: a stream of NULL is the
   per-thread default one. */
bool capture_records(CUstream stream, bool per_thread);

/* Around a synchronisation by a thread of ours. False: it would invalidate a capture, so do not synchronise. */
bool capture_allows_drain(void);
void capture_drain_ends(void);

void capture_forget(void);

/* Waits for a turn on the GPU on which the stream's work runs. The current context may be another GPU's. */
CUresult launch_wait_for_turn(CUstream stream, bool per_thread);

/* The body of a hook: makes the call once this container has its turn. */
#define IN_TURN(stream, per_thread, call)                                                                              \
    do {                                                                                                               \
        CUresult result = launch_wait_for_turn(stream, per_thread);                                                    \
        return result == CUDA_SUCCESS ? (call) : result;                                                               \
    } while (0)

/* Waits until no thread of ours uses the context, nor will. Called before the driver destroys it. */
void launch_context_ends(CUcontext context);
