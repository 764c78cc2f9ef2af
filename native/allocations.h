/* The allocations of this process, by address or handle. The driver's functions that free memory take only the address,
   so its size and its GPU are noted here. */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct allocation {
    uint64_t key;
    void *owner; /* its context, at whose end it is freed too; for virtual memory the mapped memory */
    uint64_t bytes;
    int gpu;
    unsigned share; /* its number in shares.h; 0: it is this process's alone */
    bool unseen;    /* others have it whom nobody can see: it stays charged until this process ends */
};

struct allocations {
    pthread_mutex_t mutex;
    struct allocation *table; /* open addressing; a key of 0 marks an empty entry */
    size_t room, count;
};
#define ALLOCATIONS_EMPTY {.mutex = PTHREAD_MUTEX_INITIALIZER}

/* Adds an entry. False: the host has no memory for it, and its bytes stay charged until this process ends. */
bool allocations_put(struct allocations *allocations, struct allocation allocation);
/* Removes the entry of `key` and returns it in *allocation. One caller alone gets it, and may free its memory. */
bool allocations_take(struct allocations *allocations, uint64_t key, struct allocation *allocation);
/* Removes the owner's next entry and returns it. *from is 0 at the first call and is kept between the calls. */
bool allocations_take_of(struct allocations *allocations, const void *owner, size_t *from,
                         struct allocation *allocation);
/* Returns the entry of `key` in *allocation and keeps it. */
bool allocations_get(struct allocations *allocations, uint64_t key, struct allocation *allocation);
/* Returns the entry whose range, which starts at its key, contains the address. Takes time linear in the entries. */
bool allocations_holding(struct allocations *allocations, uint64_t address, struct allocation *allocation);
/* Empties the table in a forked child, which has none of its parent's allocations. */
void allocations_forget(struct allocations *allocations);
