#pragma once
#include "../../native/abi/nvml.h"
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

/* NULL, with the reason, where NVML is not initialised. */
struct state *nvml_state(nvmlReturn_t *result);
/* The device behind a handle: a GPU, or an instance where `instances` are allowed. */
nvmlReturn_t nvml_device(nvmlDevice_t handle, bool instances, struct state **state, unsigned *device);
nvmlDevice_t nvml_handle(struct state *state, unsigned device);
