#include "charge.h"

#include <time.h>

#include "bounds.h"
#include "clock.h"
#include "pools.h"
#include "process.h"
#include "usage.h"

#define SMALL (1ull << 20)
#define SMALL_GRAIN 512ull
#define RETRY_NS 1000000000ull

static uint64_t round_up(uint64_t bytes, uint64_t grain)
{
    uint64_t above;
    return __builtin_add_overflow(bytes, grain - 1, &above) ? UINT64_MAX : above / grain * grain;
}

uint64_t charge_size(uint64_t bytes)
{
    return round_up(bytes, bytes >= SMALL ? MEMORY_GRAIN : SMALL_GRAIN);
}

static CUresult reserve(int gpu, uint64_t bytes)
{
    enum usage usage = usage_reserve(gpu, bytes);
    /* Pools may have shrunk unnoticed, and they keep unused memory until they are trimmed: measure and trim them. */
    if (usage == USAGE_FULL) {
        pools_shrink(gpu);
        usage = usage_reserve(gpu, bytes);
    }
    switch (usage) {
    case USAGE_GRANTED:
        return CUDA_SUCCESS;
    case USAGE_FULL:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_NOT_PERMITTED;
    }
}

CUresult charge_begin(struct charge *charge, int gpu, uint64_t bytes)
{
    process_check();
    *charge = (struct charge){.gpu = gpu, .bytes = bytes};
    if (limits_get() == NULL || gpu == GPU_UNKNOWN)
        return CUDA_ERROR_NOT_PERMITTED;
    return gpu >= 0 ? reserve(gpu, bytes) : CUDA_SUCCESS;
}

bool charge_again(struct charge *charge, CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY || charge->gpu < 0)
        return false;
    uint64_t now = monotonic_ns();
    if (charge->retry_since_ns == 0) {
        charge->retry_since_ns = now;
        charge->pause_ns = 1000000;
    }
    if (now - charge->retry_since_ns > RETRY_NS || !usage_reaped_lately(charge->gpu))
        return false;
    nanosleep(&(struct timespec){.tv_nsec = (long)charge->pause_ns}, NULL);
    if (charge->pause_ns < 100000000)
        charge->pause_ns *= 2;
    return true;
}

CUresult charge_end(struct charge *charge, CUresult result)
{
    if (result != CUDA_SUCCESS && charge->gpu >= 0)
        usage_release(charge->gpu, charge->bytes);
    return result;
}

bool charge_settle(struct charge *charge, uint64_t bytes)
{
    if (charge->gpu < 0)
        return true;
    if (bytes > charge->bytes && usage_reserve(charge->gpu, bytes - charge->bytes) != USAGE_GRANTED)
        return false;
    usage_release(charge->gpu, above(charge->bytes, bytes));
    charge->bytes = bytes;
    return true;
}
