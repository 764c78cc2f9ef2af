/* Functions with which launches, captures and contexts notify each other. */
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

/* Waits until no thread of ours uses the context, nor will. Called before the driver destroys it. */
void launch_context_ends(CUcontext context);
