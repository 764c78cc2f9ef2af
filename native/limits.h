/* The limits file: the share of each GPU that this container may have. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define MAX_LIMITED_GPUS 16
#define EACH_LIMITED_GPU(gpu) for (int gpu = 0; gpu < MAX_LIMITED_GPUS; gpu++)
#define MEMORY_GRAIN (2ull << 20)

enum compute_mode { COMPUTE_NONE, COMPUTE_FAIR, COMPUTE_HARD };

struct gpu_limit {
    char uuid[64];
    uint64_t mem_bytes;
    unsigned compute_milli;
    unsigned limit_milli; /* the most of the GPU's time; 0: all that others leave */
};

struct limits {
    char kernel[64];
    enum compute_mode compute;
    bool best_effort;
    unsigned overcommit_milli; /* how much memory best effort may have in the host's memory and the GPU's together, for
                                  each 1000 of its share; 1000: its share alone */
    uint64_t context_bytes;
    int gpu_count;
    struct gpu_limit gpus[MAX_LIMITED_GPUS];
};

/* Returns the limits, which are read once in each process. NULL: they cannot be used. One line on stderr has given the
   reason, and every hook refuses. */
const struct limits *limits_get(void);

/* Returns the index of the GPU whose UUID has these 16 bytes, or -1. */
int limits_gpu_of_uuid_bytes(const struct limits *limits, const unsigned char bytes[16]);
/* Likewise for a UUID as text: GPU-8f3a... */
int limits_gpu_of_uuid(const struct limits *limits, const char *uuid);
