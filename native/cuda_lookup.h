/* The table of hooks, for cuGetProcAddress. */
#pragma once
#include <stddef.h>

#include "real.h"

struct hook {
    const char *symbol; /* as the driver exports it */
    const char *name;   /* as given to cuGetProcAddress */
    int version;        /* of CUDA, that introduced it */
    int flag;
    real_function hook;
    real_function *real;
};
extern const struct hook fgpu_hooks[];
extern const size_t fgpu_hook_count;
