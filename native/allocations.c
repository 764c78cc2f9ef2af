#include "allocations.h"

#include <stdlib.h>

#define FIRST_ROOM 256

static size_t home_of(const struct allocations *allocations, uint64_t key)
{
    return (size_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (allocations->room - 1);
}

static size_t place_of(const struct allocations *allocations, uint64_t key)
{
    size_t at = home_of(allocations, key);
    while (allocations->table[at].key != 0 && allocations->table[at].key != key)
        at = (at + 1) & (allocations->room - 1);
    return at;
}

static bool make_room(struct allocations *allocations)
{
    if (allocations->count * 4 < allocations->room * 3)
        return true;
    struct allocations old = *allocations;
    size_t room = old.room != 0 ? old.room * 2 : FIRST_ROOM;
    struct allocation *table = calloc(room, sizeof *table);
    if (table != NULL) {
        allocations->table = table;
        allocations->room = room;
        for (size_t i = 0; i < old.room; i++)
            if (old.table[i].key != 0)
                table[place_of(allocations, old.table[i].key)] = old.table[i];
        free(old.table);
    }
    return table != NULL;
}

bool allocations_put(struct allocations *allocations, struct allocation allocation)
{
    pthread_mutex_lock(&allocations->mutex);
    bool room = allocation.key != 0 && make_room(allocations);
    if (room) {
        struct allocation *entry = &allocations->table[place_of(allocations, allocation.key)];
        allocations->count += entry->key == 0;
        *entry = allocation;
    }
    pthread_mutex_unlock(&allocations->mutex);
    return room;
}

/* Removes the entry at `hole`. Entries behind it move up, since a search ends at the first empty place. */
static void remove_at(struct allocations *allocations, size_t hole)
{
    size_t mask = allocations->room - 1;
    for (size_t at = (hole + 1) & mask; allocations->table[at].key != 0; at = (at + 1) & mask) {
        size_t home = home_of(allocations, allocations->table[at].key);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            allocations->table[hole] = allocations->table[at];
            hole = at;
        }
    }
    allocations->table[hole].key = 0;
    allocations->count--;
}

static bool find(struct allocations *allocations, uint64_t key, struct allocation *allocation, bool take)
{
    pthread_mutex_lock(&allocations->mutex);
    bool found = false;
    if (allocations->room != 0) {
        size_t at = place_of(allocations, key);
        found = allocations->table[at].key != 0;
        if (found)
            *allocation = allocations->table[at];
        if (found && take)
            remove_at(allocations, at);
    }
    pthread_mutex_unlock(&allocations->mutex);
    return found;
}

bool allocations_take(struct allocations *allocations, uint64_t key, struct allocation *allocation)
{
    return find(allocations, key, allocation, true);
}

bool allocations_get(struct allocations *allocations, uint64_t key, struct allocation *allocation)
{
    return find(allocations, key, allocation, false);
}

bool allocations_take_of(struct allocations *allocations, const void *owner, size_t *from,
                         struct allocation *allocation)
{
    bool found = false;
    pthread_mutex_lock(&allocations->mutex);
    while (*from < allocations->room && !found) {
        found = allocations->table[*from].key != 0 && allocations->table[*from].owner == owner;
        if (found) {
            *allocation = allocations->table[*from];
            remove_at(allocations, *from); /* another entry may have moved here, so the next search begins here again */
        } else {
            ++*from;
        }
    }
    pthread_mutex_unlock(&allocations->mutex);
    return found;
}

bool allocations_holding(struct allocations *allocations, uint64_t address, struct allocation *allocation)
{
    bool found = false;
    pthread_mutex_lock(&allocations->mutex);
    for (size_t at = 0; at < allocations->room && !found; at++) {
        const struct allocation *entry = &allocations->table[at];
        found = entry->key != 0 && address >= entry->key && address - entry->key < entry->bytes;
        if (found)
            *allocation = *entry;
    }
    pthread_mutex_unlock(&allocations->mutex);
    return found;
}

void allocations_forget(struct allocations *allocations)
{
    *allocations = (struct allocations)ALLOCATIONS_EMPTY;
}
