/* One allocation on a limited GPU: reserve its bytes, call the driver, and roll back if the driver refuses. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"

/* Rounds `bytes` up to the grain in which the driver takes memory from a GPU. */
uint64_t charge_size(uint64_t bytes);

struct charge {
    int gpu; /* an index in the limits' gpus, or NOT_LIMITED */
    uint64_t bytes;
    uint64_t retry_since_ns, pause_ns;
};

/* Reserves `bytes`. On an error the hook returns it and does not call the driver. */
CUresult charge_begin(struct charge *charge, int gpu, uint64_t bytes);
/* Returns whether to call the driver again after its `result`. It may free the memory of a killed process late, so
   running out of memory is retried for a second. */
bool charge_again(struct charge *charge, CUresult result);
/* Releases the reservation if the driver refused. Returns `result`. */
CUresult charge_end(struct charge *charge, CUresult result);

/* Sets the charge to the bytes that the driver has taken. False: those above the reservation do not fit. */
bool charge_settle(struct charge *charge, uint64_t bytes);
