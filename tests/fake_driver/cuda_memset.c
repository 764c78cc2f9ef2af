#include "driver.h"

/* What a device sets in a nanosecond. */
enum { BYTES_PER_NS = 1 << 10 };

CUresult memset_duration(CUdeviceptr address, uint64_t pitch, uint64_t width, uint64_t height, uint64_t *duration_ns)
{
    CUdeviceptr base;
    pthread_mutex_lock(&driver_lock);
    const struct allocation *found = allocation_find(address, &base);
    bool inside = found && (height - 1) * pitch + width <= found->bytes - (address - base);
    pthread_mutex_unlock(&driver_lock);
    if (!inside || (height > 1 && pitch < width))
        return CUDA_ERROR_INVALID_VALUE;
    *duration_ns = (width * height + BYTES_PER_NS - 1) / BYTES_PER_NS;
    return CUDA_SUCCESS;
}

static CUresult set(struct CUstream_st *stream, CUdeviceptr address, uint64_t pitch, uint64_t width, uint64_t height)
{
    uint64_t duration_ns;
    if (!stream)
        return no_stream();
    if (!width || !height)
        return CUDA_SUCCESS;
    CUresult result = memset_duration(address, pitch, width, height, &duration_ns);
    if (result != CUDA_SUCCESS)
        return result;
    if (captures_ongoing) {
        if (stream->capture)
            return capture_memset(stream, address, duration_ns);
        result = capture_forbids_stream(stream);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return enqueue(stream, duration_ns);
}

#define EACH(...) __VA_ARGS__
#define MEMSET(name, old, wide, pitch, width, height)                                                                  \
    EXPORT CUresult name(EACH old)                                                                                     \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        return set(stream_of(NULL, false), address, pitch, width, height);                                             \
    }                                                                                                                  \
    EXPORT CUresult name##_v2(EACH wide)                                                                               \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        return set(stream_of(NULL, false), address, pitch, width, height);                                             \
    }                                                                                                                  \
    EXPORT CUresult name##_v2_ptds(EACH wide)                                                                          \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        return set(stream_of(NULL, true), address, pitch, width, height);                                              \
    }                                                                                                                  \
    EXPORT CUresult name##Async(EACH wide, CUstream stream)                                                            \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        return set(stream_of(stream, false), address, pitch, width, height);                                           \
    }                                                                                                                  \
    EXPORT CUresult name##Async_ptsz(EACH wide, CUstream stream)                                                       \
    {                                                                                                                  \
        (void)value;                                                                                                   \
        return set(stream_of(stream, true), address, pitch, width, height);                                            \
    }
#define MEMSETS(bits, value_type)                                                                                      \
    MEMSET(cuMemsetD##bits, (unsigned address, value_type value, unsigned count),                                      \
           (CUdeviceptr address, value_type value, size_t count), 0, count * sizeof value, 1)                          \
    MEMSET(cuMemsetD2D##bits, (unsigned address, unsigned pitch, value_type value, unsigned width, unsigned height),   \
           (CUdeviceptr address, size_t pitch, value_type value, size_t width, size_t height), pitch,                  \
           width * sizeof value, height)

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned)
