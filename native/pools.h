/* The pools in which the driver keeps memory for streams and for graphs. A pool is charged by what it has reserved. It
   grows with an allocation but shrinks at a synchronisation, so its memory is measured, not summed. */
#pragma once
#include <stdbool.h>

#include "hooks.h"

struct pool {
    CUmemoryPool handle; /* NULL: the device's graph memory, or a pool that was destroyed */
    CUdevice device;
    int gpu; /* NOT_LIMITED also for the host's memory */
    bool of_graphs;
    uint64_t charged;
    uint64_t outstanding; /* allocations that are not freed; a destroyed pool's memory is freed with the last */
    struct pool *next;
};

/* Locks the pools. Callers of functions that take a pool hold the lock; its thread may lock it again. */
void pools_lock(void);
void pools_unlock(void);

struct pool *pools_add(CUmemoryPool handle, CUdevice device, int gpu);
struct pool *pools_find(CUmemoryPool handle);
struct pool *pools_of_graphs(CUdevice device, int gpu);
/* Notes that a pool was destroyed, and releases it unless allocations of it are left. */
void pools_destroyed(struct pool *pool);
/* Sets the charge to what the pool has reserved now, even above the cap. */
void pools_measure_one(struct pool *pool);
/* Note an allocation from the pool, and that an address is free again. */
void pools_note(struct pool *pool, CUdeviceptr address);
void pools_freed(CUdeviceptr address);

/* Returns the bytes that the pool has reserved and no allocation uses. */
uint64_t pools_unused(const struct pool *pool);

/* Measure or trim all pools of this process on the GPU. */
void pools_measure(int gpu);
void pools_shrink(int gpu);
/* Returns how often graph memory was trimmed. After a trim, a graph may have to take its memory again. */
uint64_t pools_graph_trims(void);
void pools_graph_trimmed(void);

/* Measures all pools if memory was freed since the last call. Called after a synchronisation, which shrinks pools. */
void pools_after_synchronising(void);
