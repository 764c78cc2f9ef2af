/* Linear memory that a process lets others open by a handle. CUDA forbids to free it before they have closed it, and does
   not say what becomes of it then. So it is charged until the last of them has. */
#include <pthread.h>

#include "cuda_memory.h"
#include "process.h"
#include "shares.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct allocations opened = ALLOCATIONS_EMPTY; /* by address, of a context; in `bytes`, how often it is open */

static void forget(void)
{
    pthread_mutex_init(&mutex, NULL);
    allocations_forget(&opened);
}

__attribute__((constructor)) static void watch_forks(void)
{
    process_on_fork(forget);
}

static uint64_t name_of(const CUipcMemHandle *handle)
{
    uint64_t name = 14695981039346656037ull; /* FNV-1a */
    for (size_t i = 0; i < sizeof handle->reserved; i++)
        name = (name ^ (unsigned char)handle->reserved[i]) * 1099511628211ull;
    return name;
}

/* Every call for an allocation returns the same handle. */
HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    struct allocation allocation;
    process_check();
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuIpcGetMemHandle)(handle, address);
    if (result == CUDA_SUCCESS && allocations_get(&linear_memory, address, &allocation) && allocation.share == 0) {
        allocation.share = shares_export_named(name_of(handle), allocation.gpu, allocation.bytes);
        if (allocation.share == 0 || !allocations_put(&linear_memory, allocation))
            allocations_take(&linear_memory, address, &allocation); /* it stays charged until this process ends */
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

static CUresult open_handle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags,
                            CUresult (*real)(CUdeviceptr *, CUipcMemHandle, unsigned))
{
    struct allocation allocation = {0};
    CUcontext context = NULL;
    process_check();
    pthread_mutex_lock(&mutex);
    CUresult result = real(address, handle, flags);
    unsigned share = result == CUDA_SUCCESS ? shares_import_named(name_of(&handle)) : 0;
    if (share != 0) {
        REAL(cuCtxGetCurrent)(&context);
        allocations_get(&opened, *address, &allocation);
        allocations_put(&opened, (struct allocation){
                                     .key = *address, .owner = context, .share = share, .bytes = allocation.bytes + 1});
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

HOOK CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    return open_handle(address, handle, flags, REAL(cuIpcOpenMemHandle));
}

HOOK CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    return open_handle(address, handle, flags, REAL(cuIpcOpenMemHandle_v2));
}

HOOK CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct allocation allocation;
    process_check();
    pthread_mutex_lock(&mutex);
    CUresult result = REAL(cuIpcCloseMemHandle)(address);
    if (result == CUDA_SUCCESS && allocations_take(&opened, address, &allocation)) {
        shares_drop(allocation.share);
        if (--allocation.bytes != 0)
            allocations_put(&opened, allocation);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

void opened_memory_ends_with(CUcontext context)
{
    struct allocation allocation;
    size_t from = 0;
    pthread_mutex_lock(&mutex);
    while (allocations_take_of(&opened, context, &from, &allocation))
        for (; allocation.bytes != 0; allocation.bytes--)
            shares_drop(allocation.share);
    pthread_mutex_unlock(&mutex);
}
