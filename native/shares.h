/* Memory that does not end with the process that made it: it lives as long as any process has a handle or a mapping, and
   as long as any descriptor of it is open, wherever that was sent. It is the container's charge, not a process's.
   Memory behind an IPC handle has no descriptors, and lives as long as any process has it.

   A descriptor may be duplicated, inherited, or on its way through a socket. So each is given a lock on a byte of its
   file: such a lock belongs to the open file and ends with its last descriptor. Anybody can see whether it is there. */
#pragma once
#include <stdint.h>

/* Notes that memory is behind the descriptor `file` from now on. `share` is its number if it is shared already;
   otherwise `bytes` of this process's charge become the new share's. Returns the number; 0: that cannot be watched. */
unsigned shares_export(unsigned share, int gpu, uint64_t bytes, int file);
/* Notes that this process has the memory behind the descriptor too, and returns its number; 0: it is not known. */
unsigned shares_import(int file);
/* Likewise for memory that others may have by a name: of an IPC handle, which is unique while the memory lives. */
unsigned shares_export_named(uint64_t name, int gpu, uint64_t bytes);
unsigned shares_import_named(uint64_t name);
/* Notes that this process has one handle less; without holders and descriptors the memory's charge ends. */
void shares_drop(unsigned share);
