/* The functions of the CUDA driver that we hook, call or fake. Included by cuda.h. */
#pragma once

/* A function on a stream: the driver exports it twice. */
#define ON_STREAM(function, ...)                                                                                       \
    CUresult function(__VA_ARGS__);                                                                                    \
    CUresult function##_ptsz(__VA_ARGS__)

/* The driver itself. */
CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetErrorString(CUresult error, const char **text);
CUresult cuGetExportTable(const void **table, const CUuuid *id);
CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                             CUdriverProcAddressQueryResult *status);

/* Devices. */
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device);
CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

/* Contexts. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags);
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);
CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int affinities, unsigned flags,
                        CUdevice device);
CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags, CUdevice device);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxAttach(CUcontext *context, unsigned flags);
CUresult cuCtxDetach(CUcontext context);
CUresult cuCtxSetLimit(CUlimit limit, size_t value);
CUresult cuCtxGetLimit(size_t *value, CUlimit limit);
CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned flags);
CUresult cuGreenCtxDestroy(CUgreenCtx green);
CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent(CUcontext *context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context);
CUresult cuCtxGetFlags(unsigned *flags);
CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version);
CUresult cuCtxSynchronize(void);
CUresult cuCtxSynchronize_v2(CUcontext context);

/* Linear memory. The functions without _v2 date from 32-bit drivers; the driver still exports them. */
CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemAlloc(unsigned *address, unsigned bytes);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element);
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags);
CUresult cuMemFree(unsigned address);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address);
CUresult cuMemAllocHost_v2(void **address, size_t bytes);
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *address);
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address);

/* Memsets: lines, and rows of them that lie `pitch` bytes apart. */
#define MEMSET(function, value_type)                                                                                   \
    CUresult function(unsigned address, value_type value, unsigned count);                                             \
    CUresult function##_v2(CUdeviceptr address, value_type value, size_t count);                                       \
    CUresult function##_v2_ptds(CUdeviceptr address, value_type value, size_t count);                                  \
    ON_STREAM(function##Async, CUdeviceptr address, value_type value, size_t count, CUstream stream)
#define MEMSET_2D(function, value_type)                                                                                \
    CUresult function(unsigned address, unsigned pitch, value_type value, unsigned width, unsigned height);            \
    CUresult function##_v2(CUdeviceptr address, size_t pitch, value_type value, size_t width, size_t height);          \
    CUresult function##_v2_ptds(CUdeviceptr address, size_t pitch, value_type value, size_t width, size_t height);     \
    ON_STREAM(function##Async, CUdeviceptr address, size_t pitch, value_type value, size_t width, size_t height,       \
              CUstream stream)
MEMSET(cuMemsetD8, unsigned char);
MEMSET(cuMemsetD16, unsigned short);
MEMSET(cuMemsetD32, unsigned);
MEMSET_2D(cuMemsetD2D8, unsigned char);
MEMSET_2D(cuMemsetD2D16, unsigned short);
MEMSET_2D(cuMemsetD2D32, unsigned);
#undef MEMSET
#undef MEMSET_2D

/* Arrays. */
CUresult cuArrayCreate(CUarray *array, const void *descriptor_of_32_bits);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor);
CUresult cuArray3DCreate(CUarray *array, const void *descriptor_of_32_bits);
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor);
CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array);
CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array);
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);
CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned number);
CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray array,
                                               CUdevice device);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);

/* Virtual memory management. */
CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option);
CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish, uint64_t flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes);
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                     uint64_t flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  uint64_t flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count);
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, uint64_t flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type);

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *multicast, const CUmulticastObjectProp *properties);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle multicast, CUdevice device);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset, CUmemGenericAllocationHandle memory,
                            size_t memory_offset, size_t bytes, uint64_t flags);
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle memory, size_t memory_offset, size_t bytes,
                               uint64_t flags);
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address, size_t bytes,
                             uint64_t flags);
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                                CUdeviceptr address, size_t bytes, uint64_t flags);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset, size_t bytes);
CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset,
                                  CUmemGenericAllocationHandle memory, uint64_t memory_offset, uint64_t bytes,
                                  unsigned long long flags);
CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *address,
                                   uint64_t bytes, unsigned long long flags);
ON_STREAM(cuMemMapArrayAsync, CUarrayMapInfo *maps, unsigned count, CUstream stream);
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                       uint64_t flags);

/* Pools. */
ON_STREAM(cuMemAllocAsync, CUdeviceptr *address, size_t bytes, CUstream stream);
ON_STREAM(cuMemAllocFromPoolAsync, CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);
ON_STREAM(cuMemFreeAsync, CUdeviceptr address, CUstream stream);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep_bytes);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type);
CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool);

/* Modules. */
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *options, void **values, unsigned count,
                           int *library_options, void **library_values, unsigned library_count);
CUresult cuLibraryUnload(CUlibrary library);
CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);

/* Launches. */
ON_STREAM(cuLaunchKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
          unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters, void **extra);
ON_STREAM(cuLaunchKernelEx, const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
ON_STREAM(cuLaunchCooperativeKernel, CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
          void **parameters);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned devices, unsigned flags);
CUresult cuLaunch(CUfunction function);
CUresult cuLaunchGrid(CUfunction function, int grid_width, int grid_height);
CUresult cuLaunchGridAsync(CUfunction function, int grid_width, int grid_height, CUstream stream);

/* Streams and events. */
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
ON_STREAM(cuLaunchHostFunc, CUstream stream, CUhostFn function, void *data);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuStreamCreate(CUstream *stream, unsigned flags);
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
ON_STREAM(cuStreamGetCtx, CUstream stream, CUcontext *context);
ON_STREAM(cuStreamSynchronize, CUstream stream);
ON_STREAM(cuStreamQuery, CUstream stream);
ON_STREAM(cuStreamWaitEvent, CUstream stream, CUevent event, unsigned flags);
CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventDestroy(CUevent event);
CUresult cuEventDestroy_v2(CUevent event);
ON_STREAM(cuEventRecord, CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);

/* Stream capture. */
CUresult cuStreamBeginCapture(CUstream stream);
CUresult cuStreamBeginCapture_ptsz(CUstream stream);
ON_STREAM(cuStreamBeginCapture_v2, CUstream stream, CUstreamCaptureMode mode);
ON_STREAM(cuStreamBeginCaptureToGraph, CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode);
ON_STREAM(cuStreamBeginRecaptureToGraph, CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
          CUgraphRecaptureCallback callback, void *data);
ON_STREAM(cuStreamEndCapture, CUstream stream, CUgraph *graph);
ON_STREAM(cuStreamIsCapturing, CUstream stream, CUstreamCaptureStatus *status);
ON_STREAM(cuStreamGetCaptureInfo, CUstream stream, CUstreamCaptureStatus *status, uint64_t *id);
ON_STREAM(cuStreamGetCaptureInfo_v2, CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, size_t *count);
ON_STREAM(cuStreamGetCaptureInfo_v3, CUstream stream, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
          const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count);
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

/* Graphs. */
CUresult cuGraphCreate(CUgraph *graph, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *parameters);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters);
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context);
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *parameters); /* version 1 */
CUresult cuGraphNodeGetParams(CUgraphNode node, CUgraphNodeParams *parameters);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUdeviceptr address);
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address);
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  CUgraph child);
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph);
CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count);
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context,
                                        unsigned value, unsigned flags);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *parameters);
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters);
CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t length);
CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                               size_t length);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, uint64_t flags);
ON_STREAM(cuGraphInstantiateWithParams, CUgraphExec *executable, CUgraph graph,
          CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);
CUresult cuGraphExecDestroy(CUgraphExec executable);
ON_STREAM(cuGraphUpload, CUgraphExec executable, CUstream stream);
ON_STREAM(cuGraphLaunch, CUgraphExec executable, CUstream stream);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value);
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value);

#undef ON_STREAM
