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

/* Returns the device's index in the limits' gpus; -1: not limited. */
int fgpu_gpu_of_device(CUdevice device);
/* Likewise for the device of the calling thread's current context; -1 also without a context. */
int fgpu_gpu_of_current_context(void);
/* Likewise, with the context itself in *context; NULL if there is none. */
int fgpu_gpu_of_current(CUcontext *context);
/* Forgets cached contexts. For hooks after which a new context may have the address of an old one. */
void fgpu_contexts_changed(void);

/* Reserve and settle the memory of a graph's memory nodes, around each launch of it. An error: do not launch. */
CUresult fgpu_before_graph_launch(CUgraphExec executable);
void fgpu_after_graph_launch(void);
