/* What launches, captures and contexts need to know of each other. */
#pragma once
#include <stdbool.h>

#include "hooks.h"

/* Whether a launch into this stream is recorded instead of executed. `per_thread`: what NULL means. */
bool capture_records(CUstream stream, bool per_thread);

/* Around a synchronisation by a thread of ours. False: it would spoil a capture, and has to be left out. */
bool capture_allows_drain(void);
void capture_drain_ends(void);

void capture_forget(void);

/* Before the driver destroys a context: no thread of ours is in it then, nor will be. */
void launch_context_ends(CUcontext context);
