/* The table of hooks, for cuGetProcAddress. */
#pragma once
#include <stddef.h>

#include "real.h"

struct hook {
    const char *symbol; /* the exported name */
    const char *name;   /* the name for cuGetProcAddress */
    int version;        /* the CUDA version that introduced it */
    int flag;
    real_function hook;
    real_function *real;
};
extern const struct hook fgpu_hooks[];
extern const size_t fgpu_hook_count;
