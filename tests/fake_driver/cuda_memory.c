#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* An address tells the place in this table, and 1 TiB of room behind it; nobody follows these pointers. The functions
   of the 32-bit days give addresses of 1 MiB each. */
enum { ADDRESS_BITS = 40, OLD_ADDRESS_BITS = 20, OLD_ADDRESSES = 1 << 12 };
static struct allocation *table;
static uint32_t length, used, first_free;

CUresult reserve_bytes(unsigned device, uint64_t bytes)
{
    return state_reserve(gpu_state, gpu_process, device, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult allocation_add(CUdeviceptr *address, struct allocation allocation)
{
    uint32_t place = first_free;
    if (place) {
        first_free = table[place].next_free;
    } else {
        if (used + 1 >= length) {
            uint32_t longer = length ? length * 2 : 1024;
            struct allocation *bigger = realloc(table, longer * sizeof *bigger);
            if (!bigger)
                return CUDA_ERROR_OUT_OF_MEMORY;
            table = bigger;
            length = longer;
        }
        place = ++used; /* place 0 stays empty: no allocation has the address 0 */
    }
    table[place] = allocation;
    *address = (CUdeviceptr)place << ADDRESS_BITS;
    return CUDA_SUCCESS;
}

struct allocation *allocation_find(CUdeviceptr address, CUdeviceptr *base)
{
    bool old = address < 1ull << 32;
    uint64_t place = old ? address >> OLD_ADDRESS_BITS : address >> ADDRESS_BITS;
    if (!place || place > used || table[place].kind == ALLOC_NONE)
        return NULL;
    *base = (CUdeviceptr)place << (old ? OLD_ADDRESS_BITS : ADDRESS_BITS);
    return address - *base < table[place].bytes ? &table[place] : NULL;
}

void allocation_drop(CUdeviceptr base)
{
    uint32_t place = (uint32_t)(base < 1ull << 32 ? base >> OLD_ADDRESS_BITS : base >> ADDRESS_BITS);
    table[place] = (struct allocation){.next_free = first_free};
    first_free = place;
}

static void release_bytes(const struct allocation *allocation)
{
    if (allocation->shared)
        state_export_drop(allocation->shared - 1);
    else if (allocation->kind == ALLOC_MANAGED)
        state_release_managed(gpu_state, gpu_process, allocation->device, allocation->bytes);
    else
        state_release(gpu_process, allocation->device, allocation->bytes);
}

struct allocation *allocation_opened(int number, CUdeviceptr *base)
{
    for (uint32_t place = 1; place <= used; place++)
        if (table[place].kind == ALLOC_OPENED && table[place].shared == number + 1) {
            *base = (CUdeviceptr)place << ADDRESS_BITS;
            return &table[place];
        }
    return NULL;
}

void free_memory_of(CUcontext context)
{
    for (uint32_t place = 1; place <= used; place++)
        if ((table[place].kind == ALLOC_LINEAR || table[place].kind == ALLOC_MANAGED ||
             table[place].kind == ALLOC_OPENED) && table[place].context == context) {
            release_bytes(&table[place]);
            allocation_drop((CUdeviceptr)place << ADDRESS_BITS);
        }
}

static CUresult allocate(CUdeviceptr *address, uint64_t bytes, enum allocation_kind kind)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS && (!address || !bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_forbids();
    if (result == CUDA_SUCCESS && kind == ALLOC_MANAGED)
        result = state_reserve_managed(gpu_state, gpu_process, context->device, bytes) ? CUDA_SUCCESS
                                                                                        : CUDA_ERROR_OUT_OF_MEMORY;
    else if (result == CUDA_SUCCESS && kind != ALLOC_HOST)
        result = reserve_bytes(context->device, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    result = allocation_add(address,
                            (struct allocation){.kind = kind, .device = context->device, .bytes = bytes, .context = context});
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    return allocate(address, bytes, ALLOC_LINEAR);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    return flags != 1 && flags != 2 ? CUDA_ERROR_INVALID_VALUE : allocate(address, bytes, ALLOC_MANAGED);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t grain = element == 4 ? 512 : element == 8 ? 256 : 1024; /* no program can know it */
    size_t row = (width + grain - 1) / grain * grain;
    CUresult result = allocate(address, row * height, ALLOC_LINEAR);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

static CUresult to_old_address(unsigned *address, CUdeviceptr made)
{
    if (made >> ADDRESS_BITS >= OLD_ADDRESSES) {
        cuMemFree_v2(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = (unsigned)(made >> ADDRESS_BITS << OLD_ADDRESS_BITS);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(unsigned *address, unsigned bytes)
{
    CUdeviceptr made;
    CUresult result = cuMemAlloc_v2(&made, bytes);
    return result == CUDA_SUCCESS ? to_old_address(address, made) : result;
}

EXPORT CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    CUdeviceptr made;
    size_t row;
    CUresult result = cuMemAllocPitch_v2(&made, &row, width, height, element);
    if (result != CUDA_SUCCESS)
        return result;
    *pitch = (unsigned)row;
    return to_old_address(address, made);
}

static CUresult free_allocation(CUdeviceptr address, bool host)
{
    CUdeviceptr base;
    pthread_mutex_lock(&driver_lock);
    struct allocation *found = allocation_find(address, &base);
    CUresult result = CUDA_SUCCESS;
    if (!found || base != address || found->kind == ALLOC_RESERVATION || found->kind == ALLOC_OPENED ||
        (found->kind == ALLOC_HOST) != host) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (found->kind == ALLOC_GRAPH) {
        if (found->graph_live)
            graph_release_bytes(found->device, found->bytes);
        else
            result = CUDA_ERROR_INVALID_VALUE;
        found->graph_live = false; /* the graph keeps the address for its next launch */
    } else {
        if (found->kind == ALLOC_POOL)
            pool_give_back(found->pool, found->bytes);
        else if (!host)
            release_bytes(found);
        allocation_drop(base);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

/* Waits for the work before it, as the driver does. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result == CUDA_SUCCESS)
        result = capture_forbids();
    if (result != CUDA_SUCCESS || !address)
        return result;
    if (context->finish)
        device_wait(&gpu_state->devices[context->device], context->finish);
    return free_allocation(address, false);
}

EXPORT CUresult cuMemFree(unsigned address)
{
    return cuMemFree_v2(address);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    CUdeviceptr made;
    CUresult result = allocate(&made, bytes, ALLOC_HOST);
    if (result == CUDA_SUCCESS)
        *address = (void *)made;
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
    return cuMemHostAlloc(address, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    return driver_status() == CUDA_SUCCESS ? free_allocation((CUdeviceptr)address, true) : driver_status();
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    CUresult result = context_status(&context);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t in_use = state_used(gpu_state, context->device), total = gpu_state->devices[context->device].mem_bytes;
    *free_bytes = in_use < total ? total - in_use : 0;
    *total_bytes = total;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
    size_t available, total;
    CUresult result = cuMemGetInfo_v2(&available, &total);
    if (result == CUDA_SUCCESS) {
        *free_bytes = available > 0xffffffffu ? 0xffffffffu : (unsigned)available;
        *total_bytes = total > 0xffffffffu ? 0xffffffffu : (unsigned)total;
    }
    return result;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    CUdeviceptr start;
    pthread_mutex_lock(&driver_lock);
    const struct allocation *found = allocation_find(address, &start);
    if (found && base)
        *base = start;
    if (found && bytes)
        *bytes = found->bytes;
    pthread_mutex_unlock(&driver_lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUdeviceptr base;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&driver_lock);
    const struct allocation *found = allocation_find(address, &base);
    if (!found || !value) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *(CUcontext *)value = found->kind == ALLOC_POOL ? NULL : found->context; /* a pool is of no context */
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *(unsigned *)value = found->kind == ALLOC_HOST ? 1 : 2;
            break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *(int *)value = found->kind == ALLOC_MANAGED;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            for (unsigned ordinal = 0, device; device_of((CUdevice)ordinal, &device) == CUDA_SUCCESS; ordinal++)
                if (device == found->device)
                    *(int *)value = (int)ordinal;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *(CUdeviceptr *)value = base;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *(size_t *)value = found->bytes;
            break;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            *(CUmemoryPool *)value = found->pool;
            break;
        default:
            result = CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}
