/* Memory that the driver keeps in pools, of streams and of graphs, is charged by what the pool has reserved. Pools grow
   with an allocation but shrink at a synchronisation, so what they have is measured, not summed. */
#pragma once
#include <stdbool.h>

#include "hooks.h"

struct pool {
    CUmemoryPool handle; /* NULL: the device's graph memory, or a pool that was destroyed */
    CUdevice device;
    int gpu; /* -1: not limited, or not memory of a GPU */
    bool of_graphs;
    uint64_t charged;
    uint64_t outstanding; /* allocations; the memory of a destroyed pool goes with the last */
    struct pool *next;
};

/* The functions with a pool take the lock first. It may be taken again by the thread that has it. */
void pools_lock(void);
void pools_unlock(void);

struct pool *pools_add(CUmemoryPool handle, CUdevice device, int gpu);
struct pool *pools_find(CUmemoryPool handle);
struct pool *pools_of_graphs(CUdevice device, int gpu);
/* Gives up what nothing uses. */
void pools_destroyed(struct pool *pool);
/* The charge becomes what the pool has reserved now, wherever the cap is. */
void pools_measure_one(struct pool *pool);
/* Notes an allocation, or that an address is free again. */
void pools_note(struct pool *pool, CUdeviceptr address);
void pools_freed(CUdeviceptr address);

/* Bytes of the pool that nothing uses. */
uint64_t pools_unused(const struct pool *pool);

/* All of this process on the GPU. Shrinking is true where some memory was given back. */
void pools_measure(int gpu);
bool pools_shrink(int gpu);
/* How often graph memory was given back: what a graph had may have to be taken again. */
uint64_t pools_graph_trims(void);
void pools_graph_trimmed(void);

/* After a synchronisation: pools from which something was freed since the last one have shrunk. */
void pools_after_synchronising(void);
