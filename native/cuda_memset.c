/* Memsets, which take turns as launches do: the driver runs them on the processors of the GPU. */
#include "launch.h"

/* Defines the hooks of a memset function: on the current context's default stream by 32-bit and by 64-bit addresses, on
   the per-thread default stream, and on a given stream. `old` and `wide` are the parameters, without the stream. */
#define MEMSET(name, old, wide, arguments)                                                                             \
    HOOK CUresult name(EACH old)                                                                                       \
    {                                                                                                                  \
        IN_TURN(NULL, false, REAL(name)(EACH arguments));                                                              \
    }                                                                                                                  \
    HOOK CUresult name##_v2(EACH wide)                                                                                 \
    {                                                                                                                  \
        IN_TURN(NULL, false, REAL(name##_v2)(EACH arguments));                                                         \
    }                                                                                                                  \
    HOOK CUresult name##_v2_ptds(EACH wide)                                                                            \
    {                                                                                                                  \
        IN_TURN(NULL, true, REAL(name##_v2_ptds)(EACH arguments));                                                     \
    }                                                                                                                  \
    HOOK CUresult name##Async(EACH wide, CUstream stream)                                                              \
    {                                                                                                                  \
        IN_TURN(stream, false, REAL(name##Async)(EACH arguments, stream));                                             \
    }                                                                                                                  \
    HOOK CUresult name##Async_ptsz(EACH wide, CUstream stream)                                                         \
    {                                                                                                                  \
        IN_TURN(stream, true, REAL(name##Async_ptsz)(EACH arguments, stream));                                         \
    }
#define EACH(...) __VA_ARGS__

#define MEMSETS(bits, value_type)                                                                                      \
    MEMSET(cuMemsetD##bits, (unsigned address, value_type value, unsigned count),                                      \
           (CUdeviceptr address, value_type value, size_t count), (address, value, count))                             \
    MEMSET(cuMemsetD2D##bits,                                                                                          \
           (unsigned address, unsigned pitch, value_type value, unsigned width, unsigned height),                      \
           (CUdeviceptr address, size_t pitch, value_type value, size_t width, size_t height),                         \
           (address, pitch, value, width, height))

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned)
