/* The container's usage table: what each of its processes has of each limited GPU, in a file that all of them map. The
   cap is the container's: it holds over the sum. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum usage { USAGE_GRANTED, USAGE_FULL, USAGE_UNUSABLE };

/* Bytes are taken before the driver is asked for them, so that two processes cannot both take the last ones. */
enum usage usage_reserve(int gpu, uint64_t bytes);
/* What is taken already, wherever the cap is. */
enum usage usage_take(int gpu, uint64_t bytes);
void usage_release(int gpu, uint64_t bytes);

/* What the living have, in all. */
enum usage usage_total(int gpu, uint64_t *bytes);

/* Whether a process with memory of this GPU has been found dead in the last second: the driver may free it late. */
bool usage_reaped_lately(int gpu);
