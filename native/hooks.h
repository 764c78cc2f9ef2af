/* How a function of the driver is hooked.

   A hook is a function with the driver's own name, marked HOOK, that reaches the real one by REAL(name)(...). It is
   listed once, in memory.def or launch.def:
       HOOKED(symbol, "name for cuGetProcAddress", CUDA version that introduced the symbol, 0 or PER_THREAD_STREAM)
   HOOKED_AS_WELL is a further name of a function that is already listed.
   Functions of the driver that we only call are listed in driver.def: CALLED(symbol).
   If the driver lacks a function, its REAL(name) returns CUDA_ERROR_NOT_FOUND. */
#pragma once
#include "abi/cuda.h"
#include "limits.h"

#define HOOK __attribute__((visibility("default")))
#define PER_THREAD_STREAM CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

struct real_driver {
#define HOOKED(symbol, name, version, flag) __typeof__(&symbol) symbol;
#define HOOKED_AS_WELL(symbol, name, version, flag)
#define CALLED(symbol) __typeof__(&symbol) symbol;
#include "driver.def"
#include "launch.def"
#include "memory.def"
#undef HOOKED
#undef HOOKED_AS_WELL
#undef CALLED
};
extern struct real_driver real_driver;
#define REAL(symbol) real_driver.symbol

/* In the place of an index in the limits' gpus. NOT_LIMITED also stands for a device or a context that there is not: the
   driver itself refuses its use. If the driver does not say which GPU it is, it is GPU_UNKNOWN, and hooks refuse. */
enum { NOT_LIMITED = -1, GPU_UNKNOWN = -2 };

/* Returns the device's index in the limits' gpus. */
int fgpu_gpu_of_device(CUdevice device);
/* Likewise for the device of the calling thread's current context. */
int fgpu_gpu_of_current_context(void);
/* Likewise, with the context itself in *context; NULL if there is none. */
int fgpu_gpu_of_current(CUcontext *context);
/* Likewise for the context in which a stream's work runs. */
int fgpu_gpu_of_stream(CUstream stream, CUcontext *context);
/* Returns the device on which memory at a location takes room. An unknown kind of location counts as a limited GPU's.
   NO_DEVICE: the host's memory. */
#define NO_DEVICE (-1)
CUdevice fgpu_device_of_location(const CUmemLocation *location);
/* Likewise for a pool. Managed memory moves between host and GPUs, and counts where it is used. */
CUdevice fgpu_device_of_pool(const CUmemLocation *location, CUmemAllocationType type);
CUresult fgpu_device_of_context(CUcontext context, CUdevice *device);
/* Forgets cached contexts. For hooks after which a new context or stream may have the address of an old one. */
void fgpu_contexts_changed(void);

/* Returns a context for each limited GPU on which a CUDA kernel or memset of the graph runs. NULL: there are none. */
const CUcontext *fgpu_contexts_of_graph(CUgraphExec executable);
/* Reserve and settle the memory of a graph's memory nodes, around each launch of it. An error: do not launch. */
CUresult fgpu_before_graph_launch(CUgraphExec executable);
void fgpu_after_graph_launch(void);
