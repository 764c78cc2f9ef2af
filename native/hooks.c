#include "hooks.h"

#include <stddef.h>

#include "cuda_lookup.h"
#include "real.h"

struct real_driver real_driver;

static CUresult absent(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

const struct hook fgpu_hooks[] = {
#define HOOKED(symbol, name, version, flag)                                                                            \
    {#symbol, name, version, flag, (real_function)symbol, (real_function *)&real_driver.symbol},
#define HOOKED_AS_WELL(symbol, name, version, flag) HOOKED(symbol, name, version, flag)
#include "launch.def"
#include "memory.def"
#undef HOOKED
#undef HOOKED_AS_WELL
};
const size_t fgpu_hook_count = sizeof fgpu_hooks / sizeof *fgpu_hooks;

/* Finds the driver's functions. As a constructor it runs after those of the driver, on which this library depends, and
   before those of the program. */
__attribute__((constructor)) static void find_real_functions(void)
{
    void *driver = real_library(DRIVER_DIR "/real-libcuda.so.1", "cuInit", (real_function)cuInit);
    for (size_t i = 0; i < fgpu_hook_count; i++)
        *fgpu_hooks[i].real = real_symbol(driver, fgpu_hooks[i].symbol, (real_function)absent);
#define CALLED(symbol)                                                                                                 \
    *(real_function *)&real_driver.symbol = real_symbol(driver, #symbol, (real_function)absent);
#include "driver.def"
#undef CALLED
}
