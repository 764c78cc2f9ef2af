/* The container's usage table: the bytes that each of its processes has of each limited GPU, in a file that all of them
   map. The cap applies to the sum over the container's processes. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum usage { USAGE_GRANTED, USAGE_FULL, USAGE_UNUSABLE };

/* Reserves bytes below the cap. Called before the driver, so that two processes cannot both take the last bytes. */
enum usage usage_reserve(int gpu, uint64_t bytes);
/* Adds bytes that the process has already, even above the cap. */
enum usage usage_take(int gpu, uint64_t bytes);
void usage_release(int gpu, uint64_t bytes);

/* Returns in *bytes what all living processes have. */
enum usage usage_total(int gpu, uint64_t *bytes);

struct usage_process {
    int32_t pid;
    uint64_t bytes;
};
#define USAGE_MOST_PROCESSES 2048

/* Writes the living processes with memory of this GPU, as far as this one's pid namespace can name them, in the order in
   which they came; *count is their number. */
enum usage usage_processes(int gpu, struct usage_process found[USAGE_MOST_PROCESSES], unsigned *count);

/* Returns whether a process with memory of this GPU was found dead within the last second. The driver may free that
   memory late. */
bool usage_reaped_lately(int gpu);
