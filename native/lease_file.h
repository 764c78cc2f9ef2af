/* The file of a GPU's turns (lease_table.h), which every container on the GPU may write, and may also shorten and fill
   with anything.

   So no process ever touches its pages: a page that another has cut off would be a SIGBUS for it. The file is read into
   a copy, and what was changed in the copy is written back. A lock on the file keeps the others out meanwhile. Who
   holds it for long is not waited for, and then at worst two containers launch at once until the next look. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lease_table.h"

struct lease_file {
    char *path;
    int descriptor; /* -1: not open */
    dev_t device;   /* what was opened: a program may close descriptors that are not its own, and use their numbers */
    ino_t inode;
    uint32_t *changes;          /* the table's, mapped: an address for futexes, which only the kernel reads */
    struct lease_table *before; /* as it was read */
};

/* False, and errno: the file cannot be used. */
bool lease_file_open(struct lease_file *file, const char *path);
void lease_file_close(struct lease_file *file);
/* In a forked child, whose descriptors and their locks are its parent's too. */
void lease_file_forget(struct lease_file *file);

/* Reads the file into `table` and keeps others out until lease_file_give(). False, and errno: it cannot be read. What is
   no table is one in which nobody is. */
bool lease_file_take(struct lease_file *file, struct lease_table *table);
/* Writes what was changed since, and wakes those who wait for changes. */
void lease_file_give(struct lease_file *file, const struct lease_table *table);

/* Returns when the file's `changes` are not `seen`, when they change, or after the time. */
void lease_file_wait(const struct lease_file *file, uint32_t seen, uint64_t timeout_ns);
