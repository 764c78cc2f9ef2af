#define _GNU_SOURCE /* a recursive mutex without a constructor */
#include "pools.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "allocations.h"
#include "bounds.h"
#include "process.h"
#include "usage.h"

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct pool *_Atomic pools;
static struct allocations addresses = ALLOCATIONS_EMPTY;
static _Atomic bool freed;
static _Atomic uint64_t graph_trims = 1;

/* The pools stay: the driver refuses a child whose parent had any. */
static void forget(void)
{
    mutex = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    allocations_forget(&addresses);
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

void pools_lock(void)
{
    process_check();
    pthread_mutex_lock(&mutex);
}

void pools_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static struct pool *add(const struct pool *pool)
{
    struct pool *added = malloc(sizeof *added);
    if (added == NULL)
        return NULL;
    *added = *pool;
    added->next = atomic_load(&pools);
    atomic_store(&pools, added);
    return added;
}

struct pool *pools_add(CUmemoryPool handle, CUdevice device, int gpu)
{
    return add(&(struct pool){.handle = handle, .device = device, .gpu = gpu});
}

struct pool *pools_find(CUmemoryPool handle)
{
    struct pool *pool = atomic_load(&pools);
    while (pool != NULL && (pool->of_graphs || pool->handle != handle))
        pool = pool->next;
    return pool;
}

struct pool *pools_of_graphs(CUdevice device, int gpu)
{
    struct pool *pool = atomic_load(&pools);
    while (pool != NULL && !(pool->of_graphs && pool->device == device))
        pool = pool->next;
    return pool != NULL ? pool : add(&(struct pool){.device = device, .gpu = gpu, .of_graphs = true});
}

static void drop(struct pool *dropped)
{
    struct pool *before = atomic_load(&pools);
    if (before == dropped) {
        atomic_store(&pools, dropped->next);
    } else {
        while (before->next != dropped)
            before = before->next;
        before->next = dropped->next;
    }
    if (dropped->gpu >= 0)
        usage_release(dropped->gpu, dropped->charged);
    free(dropped);
}

void pools_destroyed(struct pool *pool)
{
    pool->handle = NULL;
    if (pool->outstanding == 0)
        drop(pool);
}

static bool has(const struct pool *pool, CUmemPool_attribute of_pool, CUgraphMem_attribute of_graphs, uint64_t *bytes)
{
    if (pool->of_graphs)
        return REAL(cuDeviceGetGraphMemAttribute)(pool->device, of_graphs, bytes) == CUDA_SUCCESS;
    return pool->handle != NULL && REAL(cuMemPoolGetAttribute)(pool->handle, of_pool, bytes) == CUDA_SUCCESS;
}

static bool reserved(const struct pool *pool, uint64_t *bytes)
{
    return has(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes);
}

uint64_t pools_unused(const struct pool *pool)
{
    uint64_t all = 0, used = 0;
    if (!reserved(pool, &all) ||
        !has(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &used))
        return 0;
    return above(all, used);
}

void pools_measure_one(struct pool *pool)
{
    uint64_t bytes;
    if (pool->gpu < 0 || !reserved(pool, &bytes))
        return;
    usage_release(pool->gpu, above(pool->charged, bytes));
    if (bytes > pool->charged && usage_take(pool->gpu, bytes - pool->charged) != USAGE_GRANTED)
        return;
    pool->charged = bytes;
}

void pools_note(struct pool *pool, CUdeviceptr address)
{
    if (allocations_put(&addresses, (struct allocation){.key = address, .owner = pool}))
        pool->outstanding++;
}

void pools_freed(CUdeviceptr address)
{
    struct allocation allocation;
    if (atomic_load_explicit(&pools, memory_order_relaxed) == NULL)
        return;
    pools_lock();
    if (allocations_take(&addresses, address, &allocation)) {
        struct pool *pool = allocation.owner;
        pool->outstanding--;
        if (pool->handle == NULL && pool->outstanding == 0)
            drop(pool);
        else
            pools_measure_one(pool);
    }
    atomic_store(&freed, true);
    pools_unlock();
}

void pools_measure(int gpu)
{
    if (atomic_load_explicit(&pools, memory_order_relaxed) == NULL)
        return;
    pools_lock();
    for (struct pool *pool = atomic_load(&pools); pool != NULL; pool = pool->next)
        if (pool->gpu == gpu)
            pools_measure_one(pool);
    pools_unlock();
}

void pools_shrink(int gpu)
{
    /* In another mode this would invalidate another stream's capture. */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pools_lock();
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (struct pool *pool = atomic_load(&pools); pool != NULL; pool = pool->next) {
        if (pool->gpu != gpu)
            continue;
        if (pool->of_graphs) {
            REAL(cuDeviceGraphMemTrim)(pool->device);
            pools_graph_trimmed();
        } else if (pool->handle != NULL) {
            REAL(cuMemPoolTrimTo)(pool->handle, 0);
        }
        pools_measure_one(pool);
    }
    REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    pools_unlock();
}

uint64_t pools_graph_trims(void)
{
    return atomic_load(&graph_trims);
}

void pools_graph_trimmed(void)
{
    atomic_fetch_add(&graph_trims, 1);
}

void pools_after_synchronising(void)
{
    if (!atomic_load_explicit(&freed, memory_order_relaxed))
        return;
    atomic_store(&freed, false);
    pools_lock();
    for (struct pool *pool = atomic_load(&pools); pool != NULL; pool = pool->next)
        pools_measure_one(pool);
    pools_unlock();
}
