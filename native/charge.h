/* One allocation on a limited GPU: reserve, call the driver, roll back where it refuses. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"

/* Bytes as the driver takes them from a GPU. */
uint64_t charge_size(uint64_t bytes);

struct charge {
    int gpu; /* -1: not limited */
    uint64_t bytes;
    uint64_t retry_since_ns, pause_ns;
};

/* Reserves. An error is what the hook answers, without a call of the driver. */
CUresult charge_begin(struct charge *charge, int gpu, uint64_t bytes);
/* After the driver's answer, until false: whether to ask it again. It may free late what a killed process had. */
bool charge_again(struct charge *charge, CUresult result);
/* The reservation goes where the driver refused. Gives `result` back. */
CUresult charge_end(struct charge *charge, CUresult result);

/* Bytes become what the driver turned out to take: false where those above the reservation do not fit. */
bool charge_settle(struct charge *charge, uint64_t bytes);
