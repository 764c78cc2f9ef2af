/* What the parts of the NVML proxy have in common. */
#pragma once
#include "abi/nvml.h"
#include "real.h"

#define HOOK __attribute__((visibility("default")))

/* Returns the driver's function, or one that says that there is none. */
real_function nvml_real(const char *name);

/* Sets *gpu to the device's index among the limited GPUs, -1 for another. Returns an error if the limits cannot be used
   or the driver does not know the device. */
nvmlReturn_t nvml_limited_gpu(nvmlDevice_t device, int *gpu);
