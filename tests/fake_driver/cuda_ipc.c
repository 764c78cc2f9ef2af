/* Memory that other processes open by a handle. CUDA documents that to free it before they have closed it "will result in
   undefined behavior": this driver then keeps it for them, so that tests see what that would cost. */
#include "driver.h"

#include <string.h>
#include <unistd.h>

struct handle {
    int number, exporter;
    uint64_t serial; /* also in the memory's properties: a number is used again */
};

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUdeviceptr base;
    struct handle made = {.exporter = getpid()};
    CUresult result = driver_status();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    struct allocation *found = allocation_find(address, &base);
    if (!handle || !found || base != address || found->kind != ALLOC_LINEAR) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (!found->shared) {
        found->shared = state_export(gpu_state, gpu_process, found->device, found->bytes) + 1;
        made.serial = now_ns();
        if (found->shared)
            memcpy(gpu_state->exports[found->shared - 1].properties, &made.serial, sizeof made.serial);
        else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        made.number = found->shared - 1;
        memcpy(&made.serial, gpu_state->exports[made.number].properties, sizeof made.serial);
        memset(handle, 0, sizeof *handle);
        memcpy(handle, &made, sizeof made);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

/* A process opens a handle as often as it likes, at one address; its own handles it cannot open. */
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    CUcontext context;
    struct handle of;
    CUresult result = context_status(&context);
    memcpy(&of, &handle, sizeof of);
    if (result == CUDA_SUCCESS && (!address || flags != 1))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && of.exporter == getpid())
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    struct allocation *found = allocation_opened(of.number, address);
    if (found) {
        found->opens++;
    } else if (!state_import_number(gpu_state, of.number)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (memcmp(gpu_state->exports[of.number].properties, &of.serial, sizeof of.serial) != 0) {
        state_export_drop(of.number);
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        result = allocation_add(address, (struct allocation){.kind = ALLOC_OPENED,
                                                             .device = gpu_state->exports[of.number].device,
                                                             .bytes = gpu_state->exports[of.number].bytes,
                                                             .context = context,
                                                             .shared = of.number + 1,
                                                             .opens = 1});
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(address, handle, flags);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUdeviceptr base;
    CUresult result = driver_status();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&driver_lock);
    struct allocation *found = allocation_find(address, &base);
    if (!found || base != address || found->kind != ALLOC_OPENED) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else if (--found->opens == 0) {
        state_export_drop(found->shared - 1);
        allocation_drop(base);
    }
    pthread_mutex_unlock(&driver_lock);
    return result;
}
