#include "driver.h"

#include <stdlib.h>

struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uint64_t bytes;
    CUcontext context;
    bool is_level;
    struct CUarray_st *next;
};

enum { MAX_LEVELS = 20 };
struct CUmipmappedArray_st {
    struct CUarray_st *levels[MAX_LEVELS];
    unsigned count;
};

static struct CUarray_st *arrays;

static size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    switch (shape->Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return shape->NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2ul * shape->NumChannels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4ul * shape->NumChannels;
    }
    return 0;
}

/* Sparse arrays, and those mapped later, take no memory of their own. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    if (shape->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    return shape->Width * (shape->Height ? shape->Height : 1) * (shape->Depth ? shape->Depth : 1) * element_bytes(shape);
}

static CUresult create(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, bool is_level)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS && (!array || !shape->Width || !element_bytes(shape)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_forbids();
    if (result == CUDA_SUCCESS)
        result = reserve_bytes(context->device, array_bytes(shape));
    if (result != CUDA_SUCCESS)
        return result;
    CUarray made = calloc(1, sizeof *made);
    *made = (struct CUarray_st){.shape = *shape, .bytes = array_bytes(shape), .context = context, .is_level = is_level};
    pthread_mutex_lock(&driver_lock);
    made->next = arrays;
    arrays = made;
    pthread_mutex_unlock(&driver_lock);
    *array = made;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUarray array, bool is_level)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&driver_lock);
    for (struct CUarray_st **at = &arrays; *at; at = &(*at)->next)
        if (*at == array && array->is_level == is_level) {
            *at = array->next;
            array_is_gone(array);
            state_release(gpu_process, array->context->device, array->bytes);
            free(array);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

void free_arrays_of(CUcontext context)
{
    for (struct CUarray_st **at = &arrays; *at;) {
        struct CUarray_st *array = *at;
        if (array->context != context) {
            at = &array->next;
            continue;
        }
        *at = array->next;
        array_is_gone(array);
        state_release(gpu_process, context->device, array->bytes);
        free(array);
    }
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR all = {shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0};
    return create(array, &all, false);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    return shape ? create(array, shape, false) : CUDA_ERROR_INVALID_VALUE;
}

/* The descriptors of 32-bit days: the same fields, with sizes of 32 bits. */
EXPORT CUresult cuArrayCreate(CUarray *array, const void *descriptor)
{
    const unsigned *word = descriptor;
    CUDA_ARRAY3D_DESCRIPTOR shape = {word[0], word[1], 0, (CUarray_format)word[2], word[3], 0};
    return create(array, &shape, false);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const void *descriptor)
{
    const unsigned *word = descriptor;
    CUDA_ARRAY3D_DESCRIPTOR shape = {word[0], word[1], word[2], (CUarray_format)word[3], word[4], word[5]};
    return create(array, &shape, false);
}

EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray array)
{
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    *shape = (CUDA_ARRAY_DESCRIPTOR){array->shape.Width, array->shape.Height, array->shape.Format,
                                     array->shape.NumChannels};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

static CUresult require(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, const CUDA_ARRAY3D_DESCRIPTOR *shape, uint64_t bytes)
{
    if (!(shape->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) && !(shape->Flags & CUDA_ARRAY3D_SPARSE))
        return CUDA_ERROR_INVALID_VALUE;
    *requirements = (CUDA_ARRAY_MEMORY_REQUIREMENTS){bytes, 1ul << 16, {0}};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device)
{
    (void)device;
    return array ? require(requirements, &array->shape, array->bytes) : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    return driver_status() == CUDA_SUCCESS ? destroy(array, false) : driver_status();
}

static size_t halved(size_t size)
{
    return size > 1 ? size / 2 : size;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (!array || !shape || !levels || levels > MAX_LEVELS)
        return CUDA_ERROR_INVALID_VALUE;
    CUmipmappedArray made = calloc(1, sizeof *made);
    CUDA_ARRAY3D_DESCRIPTOR level = *shape;
    CUresult result = CUDA_SUCCESS;
    for (; made->count < levels; made->count++) {
        result = create(&made->levels[made->count], &level, true);
        if (result != CUDA_SUCCESS)
            break;
        level.Width = halved(level.Width);
        level.Height = halved(level.Height);
        if (!(level.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
            level.Depth = halved(level.Depth);
    }
    if (result != CUDA_SUCCESS)
        cuMipmappedArrayDestroy(made);
    else
        *array = made;
    return result;
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned number)
{
    if (!array || number >= array->count)
        return CUDA_ERROR_INVALID_VALUE;
    *level = array->levels[number];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements,
                                                      CUmipmappedArray array, CUdevice device)
{
    (void)device;
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t bytes = 0;
    for (unsigned level = 0; level < array->count; level++)
        bytes += array->levels[level]->bytes;
    return require(requirements, &array->levels[0]->shape, bytes);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    if (driver_status() != CUDA_SUCCESS)
        return driver_status();
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned level = 0; level < array->count; level++)
        destroy(array->levels[level], true);
    free(array);
    return CUDA_SUCCESS;
}
