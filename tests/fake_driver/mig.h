/* MIG as of a card with seven compute slices and eight of memory. */
#pragma once
#include "nvml.h"

enum { MEMORY_SLICES = 8, COMPUTE_SLICES = 7, MIB = 1 << 20 };

struct profile {
    unsigned number, id, slices, memory_slices, count;
    unsigned starts[COMPUTE_SLICES];
};

const struct profile *profile_of_id(unsigned id);
uint64_t profile_mib(const struct device *gpu, const struct profile *profile);
unsigned profile_sms(const struct profile *profile);
/* A GPU that can be cut; NVML says the same of all others. */
nvmlReturn_t mig_gpu(nvmlDevice_t handle, struct state **state, unsigned *device);
/* The place of an instance among the devices. */
nvmlReturn_t instance_of(nvmlDevice_t handle, struct state **state, unsigned *device);
