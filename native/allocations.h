/* What this process has allocated, by address or handle: the driver's free says neither how much nor where. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct allocation {
    uint64_t key;
    void *owner; /* whoever takes it along at its own end: a context; of virtual memory what is mapped */
    uint64_t bytes;
    int gpu;
};

struct allocations {
    pthread_mutex_t mutex;
    struct allocation *table; /* open addressing; owner, bytes and gpu of an entry whose key is 0 mean nothing */
    size_t room, count;
};
#define ALLOCATIONS_EMPTY {.mutex = PTHREAD_MUTEX_INITIALIZER}

/* False where there is no host memory for the entry: the bytes stay charged until this process ends. */
bool allocations_put(struct allocations *allocations, struct allocation allocation);
/* The entry, removed: whoever got it may free what it stands for. */
bool allocations_take(struct allocations *allocations, uint64_t key, struct allocation *allocation);
/* The next entry of the owner, removed; `from` begins at 0 and is kept between the calls. */
bool allocations_take_of(struct allocations *allocations, const void *owner, size_t *from,
                         struct allocation *allocation);
bool allocations_get(struct allocations *allocations, uint64_t key, struct allocation *allocation);
/* The entry whose bytes, from its key on, hold the address. Looks at all of them. */
bool allocations_holding(struct allocations *allocations, uint64_t address, struct allocation *allocation);
/* In a forked child: it has none of them. */
void allocations_forget(struct allocations *allocations);
