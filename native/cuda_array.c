/* Arrays and mipmapped arrays. */
#include <stdbool.h>

#include "cuda_memory.h"
#include "process.h"
#include "usage.h"

/* The driver keeps two-dimensional arrays in blocks of this size. */
#define BLOCK_BYTES 64u
#define BLOCK_ROWS 8u

/* The descriptors of 32-bit drivers. */
struct descriptor_v1 {
    unsigned width, height;
    CUarray_format format;
    unsigned channels;
};
struct descriptor3d_v1 {
    unsigned width, height, depth;
    CUarray_format format;
    unsigned channels, flags;
};

static unsigned bytes_of_format(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    default: /* no other format takes more bytes for each channel */
        return 4;
    }
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level)
{
    uint64_t width = array->Width >> level, height = array->Height >> level, depth = array->Depth;
    if ((array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0)
        depth >>= level;
    width = width != 0 ? width : 1;
    width *= bytes_of_format(array->Format) * (array->NumChannels != 0 ? array->NumChannels : 1);
    width = (width + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (height > 1)
        height = (height + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
    uint64_t bytes;
    if (__builtin_mul_overflow(width, height != 0 ? height : 1, &bytes) ||
        __builtin_mul_overflow(bytes, depth != 0 ? depth : 1, &bytes))
        return UINT64_MAX / 64; /* more than any GPU has, yet a sum over the levels does not overflow */
    return bytes;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    uint64_t bytes = 0;
    /* Such an array has no memory of its own: its memory is mapped later, from handles that are charged. */
    if (array == NULL || (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return 0;
    for (unsigned level = 0; level < levels && level < 32; level++)
        bytes += level_bytes(array, level);
    return charge_size(bytes);
}

static CUresult made(struct charge *charge, CUresult result, CUcontext context, const void *handle)
{
    if (charge_end(charge, result) == CUDA_SUCCESS)
        memory_note(&arrays, charge, context, (uintptr_t)handle);
    return result;
}

HOOK CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    struct charge charge;
    CUcontext context;
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), array_bytes(descriptor, 1));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuArray3DCreate_v2)(array, descriptor);
    while (charge_again(&charge, result));
    return made(&charge, result, context, result == CUDA_SUCCESS ? *array : NULL);
}

HOOK CUresult cuArray3DCreate(CUarray *array, const void *descriptor)
{
    struct charge charge;
    CUcontext context;
    const struct descriptor3d_v1 *v1 = descriptor;
    CUDA_ARRAY3D_DESCRIPTOR wide = {0};
    if (v1 != NULL)
        wide = (CUDA_ARRAY3D_DESCRIPTOR){v1->width, v1->height, v1->depth, v1->format, v1->channels, v1->flags};
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), array_bytes(&wide, 1));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuArray3DCreate)(array, descriptor);
    while (charge_again(&charge, result));
    return made(&charge, result, context, result == CUDA_SUCCESS ? *array : NULL);
}

HOOK CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    struct charge charge;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (descriptor != NULL)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){descriptor->Width, descriptor->Height, 0, descriptor->Format,
                                         descriptor->NumChannels, 0};
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), array_bytes(&flat, 1));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuArrayCreate_v2)(array, descriptor);
    while (charge_again(&charge, result));
    return made(&charge, result, context, result == CUDA_SUCCESS ? *array : NULL);
}

HOOK CUresult cuArrayCreate(CUarray *array, const void *descriptor)
{
    struct charge charge;
    CUcontext context;
    const struct descriptor_v1 *v1 = descriptor;
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (v1 != NULL)
        flat = (CUDA_ARRAY3D_DESCRIPTOR){v1->width, v1->height, 0, v1->format, v1->channels, 0};
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), array_bytes(&flat, 1));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuArrayCreate)(array, descriptor);
    while (charge_again(&charge, result));
    return made(&charge, result, context, result == CUDA_SUCCESS ? *array : NULL);
}

HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                     unsigned levels)
{
    struct charge charge;
    CUcontext context;
    CUresult result = charge_begin(&charge, fgpu_gpu_of_current(&context), array_bytes(descriptor, levels));
    if (result != CUDA_SUCCESS)
        return result;
    do
        result = REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    while (charge_again(&charge, result));
    return made(&charge, result, context, result == CUDA_SUCCESS ? *array : NULL);
}

static CUresult destroyed(CUresult result, bool known, const struct allocation *allocation)
{
    if (known && result == CUDA_SUCCESS) {
        array_ended(allocation->key);
        usage_release(allocation->gpu, allocation->bytes);
    } else if (known)
        allocations_put(&arrays, *allocation);
    return result;
}

HOOK CUresult cuArrayDestroy(CUarray array)
{
    struct allocation allocation;
    process_check();
    bool known = allocations_take(&arrays, (uintptr_t)array, &allocation);
    return destroyed(REAL(cuArrayDestroy)(array), known, &allocation);
}

HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct allocation allocation;
    process_check();
    bool known = allocations_take(&arrays, (uintptr_t)array, &allocation);
    return destroyed(REAL(cuMipmappedArrayDestroy)(array), known, &allocation);
}
