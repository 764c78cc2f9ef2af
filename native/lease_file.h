/* The file of a GPU's turns (lease_table.h). Every container on the GPU may write it, and may also shorten it or fill
   it with anything.

   So no process ever touches its pages: a page that another process has cut off would raise SIGBUS. Instead, the file
   is read into a copy, and changes of the copy are written back. A lock on the file keeps the others out meanwhile. If
   a process holds the lock for long, the others go on without it. At worst, two containers then launch at once until
   the file is read again. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lease_table.h"

struct lease_file {
    char *path;
    int descriptor; /* -1: not open */
    dev_t device;   /* of the opened file: a program may close our descriptor and use its number for another file */
    ino_t inode;
    uint32_t *changes;          /* the table's `changes`, mapped as a futex's address; only the Linux kernel reads it */
    struct lease_table *before; /* the table as it was read */
};

/* Opens the file. False, with errno set: it cannot be used. */
bool lease_file_open(struct lease_file *file, const char *path);
void lease_file_close(struct lease_file *file);
/* Opens the file again in a forked child, which shares descriptors and their locks with its parent. */
void lease_file_forget(struct lease_file *file);

/* Reads the file into `table` and keeps others out until lease_file_give(). False, with errno set: it cannot be read. A
   file that holds no table is read as an empty one. */
bool lease_file_take(struct lease_file *file, struct lease_table *table);
/* Writes the changes since lease_file_take() back, and wakes the processes that wait for changes. */
void lease_file_give(struct lease_file *file, const struct lease_table *table);

/* Waits until the file's `changes` differ from `seen`, `timeout_ns` nanoseconds at the most. */
void lease_file_wait(const struct lease_file *file, uint32_t seen, uint64_t timeout_ns);
