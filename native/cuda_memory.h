/* The allocations that end together with their context. */
#pragma once
#include "allocations.h"
#include "charge.h"

/* The linear memory and the arrays of this process, by address and by handle, and what limits give its contexts. */
extern struct allocations linear_memory, arrays, limit_memory;

/* Notes a successful allocation of `charge` as the context's. */
void memory_note(struct allocations *allocations, const struct charge *charge, CUcontext context, uint64_t key);
/* Releases the charges of all memory of a context that the driver has destroyed. */
void memory_ends_with(CUcontext context);
/* Notes that a context has ended, and with it what it had open of other processes' memory. */
void opened_memory_ends_with(CUcontext context);
/* Notes that an array is gone, and with it what kept the memory that was mapped into it. */
void array_ended(uint64_t array);
