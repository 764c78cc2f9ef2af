"""No function of the driver that takes memory or submits work is without a hook, unless it says here why.

`driver_functions.txt` is made by `list_driver_functions.py` from the headers of CUDA 11.8 to the newest.
"""

import re

from tests.native.fake_driver import REPOSITORY
from tests.native.list_driver_functions import LIST

# By the reason why they need no hook. Functions with `Get` in their name only tell something.
WITHOUT_HOOK = {
    "does not touch a GPU's memory or processors": """
        cuCheckpointOperationComplete cuCheckpointProcessLock cuCheckpointProcessUnlock
        cuCoredumpDeregisterCompleteCallback cuCoredumpDeregisterStartCallback cuCoredumpRegisterCompleteCallback
        cuCoredumpRegisterStartCallback cuCoredumpSetAttribute cuCoredumpSetAttributeGlobal cuCtxDisablePeerAccess
        cuCtxEnablePeerAccess cuCtxFromGreenCtx cuCtxPopCurrent cuCtxPushCurrent cuCtxResetPersistingL2Cache
        cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetFlags cuCtxSetSharedMemConfig cuDevResourceGenerateDesc
        cuDevSmResourceSplit cuDevSmResourceSplitByCount cuDeviceCanAccessPeer cuDeviceComputeCapability
        cuDevicePrimaryCtxSetFlags cuDeviceRegisterAsyncNotification cuDeviceSetGraphMemAttribute cuDeviceSetMemPool
        cuDeviceUnregisterAsyncNotification cuFlushGPUDirectRDMAWrites cuFuncSetAttribute cuFuncSetBlockShape
        cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncSetSharedSize cuKernelSetAttribute cuKernelSetCacheConfig
        cuLaunchHostFunc cuLibraryEnumerateKernels cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory
        cuLogsRegisterCallback cuLogsUnregisterCallback cuMemAddressFree cuMemAddressReserve cuMemAdvise
        cuMemPoolSetAccess cuMemSetAccess cuMemSetMemPool cuModuleEnumerateFunctions cuMulticastAddDevice
        cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
        cuOccupancyMaxPotentialBlockSize cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyMaxPotentialClusterSize
        cuParamSetSize cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuPointerSetAttribute cuStreamAddCallback
        cuStreamAttachMemAsync cuStreamCopyAttributes cuStreamSetAttribute cuTensorMapEncodeIm2col
        cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress cuTensorMapSetAllocationClass
        cuThreadExchangeStreamCaptureMode cuUserObjectCreate cuUserObjectRelease cuUserObjectRetain
        cuStreamIsCapturing cuStreamQuery cuEventQuery cuEventElapsedTime cuFuncIsLoaded cuLogicalEndpointQuery
    """,
    "makes or changes a graph, whose memory and CUDA kernels count when it is instantiated and launched": """
        cuGraphAddBatchMemOpNode cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddEmptyNode
        cuGraphAddEventRecordNode cuGraphAddEventWaitNode cuGraphAddExternalSemaphoresSignalNode
        cuGraphAddExternalSemaphoresWaitNode cuGraphAddHostNode cuGraphAddKernelNode cuGraphAddMemAllocNode
        cuGraphAddMemFreeNode cuGraphAddMemcpyNode cuGraphAddMemsetNode cuGraphAddNode cuGraphBatchMemOpNodeSetParams
        cuGraphClone cuGraphConditionalHandleCreate cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy
        cuGraphDestroyNode cuGraphEventRecordNodeSetEvent cuGraphEventWaitNodeSetEvent
        cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams cuGraphExecEventRecordNodeSetEvent
        cuGraphExecEventWaitNodeSetEvent cuGraphExecExternalSemaphoresSignalNodeSetParams
        cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams
        cuGraphExecMemcpyNodeSetParams cuGraphExecMemsetNodeSetParams cuGraphExecNodeSetParams cuGraphExecUpdate
        cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeSetParams
        cuGraphHostNodeSetParams cuGraphKernelNodeCopyAttributes cuGraphKernelNodeSetAttribute
        cuGraphKernelNodeSetParams cuGraphMemcpyNodeSetParams cuGraphMemsetNodeSetParams cuGraphNodeFindInClone
        cuGraphNodeSetEnabled cuGraphNodeSetParams cuGraphReleaseUserObject cuGraphRemoveDependencies
        cuGraphRetainUserObject cuStreamUpdateCaptureDependencies
    """,
    "is a copy, which docs/fgpu.md says are not held to a share": """
        cuFabricCpyBatchAsync cuMemBatchDecompressAsync cuMemDiscardAndPrefetchBatchAsync cuMemDiscardBatchAsync
        cuMemPrefetchAsync cuMemPrefetchBatchAsync cuMemcpy cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D
        cuMemcpy3DAsync cuMemcpy3DBatchAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync cuMemcpy3DWithAttributesAsync
        cuMemcpyAsync cuMemcpyAtoA cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyBatchAsync cuMemcpyDtoA
        cuMemcpyDtoD cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD
        cuMemcpyHtoDAsync cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyWithAttributesAsync
    """,
    "orders work, and does none": """
        cuCtxRecordEvent cuCtxWaitEvent cuEventCreate cuEventDestroy cuEventRecord cuEventRecordWithFlags
        cuGreenCtxRecordEvent cuGreenCtxStreamCreate cuGreenCtxWaitEvent cuSignalExternalSemaphoresAsync
        cuStreamBatchMemOp cuStreamCreate cuStreamCreateWithPriority cuStreamWaitEvent cuStreamWaitValue32
        cuStreamWaitValue64 cuStreamWriteValue32 cuStreamWriteValue64 cuWaitExternalSemaphoresAsync
        cuDestroyExternalSemaphore cuImportExternalSemaphore cuIpcOpenEventHandle
    """,
    "is the host's memory": """
        cuMemAllocHost cuMemFreeHost cuMemHostAlloc cuMemHostRegister cuMemHostUnregister
    """,
    "is code with its variables, which only the agent's check sees": """
        cuFuncLoad cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLinkAddData cuLinkAddFile cuLinkComplete
        cuLinkCreate cuLinkDestroy cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary
        cuModuleUnload
    """,
    "is a view of memory that is charged": """
        cuSurfObjectCreate cuSurfObjectDestroy cuSurfRefSetArray cuTexObjectCreate cuTexObjectDestroy cuTexRefCreate
        cuTexRefDestroy cuTexRefSetAddress cuTexRefSetAddress2D cuTexRefSetAddressMode cuTexRefSetArray
        cuTexRefSetBorderColor cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy
        cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp cuTexRefSetMipmappedArray
    """,
    "is memory of another process or library, whose owner pays": """
        cuDestroyExternalMemory cuGraphicsMapResources cuGraphicsResourceSetMapFlags cuGraphicsUnmapResources
        cuGraphicsUnregisterResource cuImportExternalMemory
        cuMemPoolExportPointer cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle
        cuMemPoolImportPointer cuCtxAttach
    """,
    "gives memory back and takes it again, while its charge stays": """
        cuCheckpointProcessCheckpoint cuCheckpointProcessRestore
    """,
    "keeps memory only by a function that is hooked": """
        cuLogicalEndpointAddDevice cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport
        cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve cuLogicalEndpointImport cuLogicalEndpointUnbind
    """,
    "is of Direct3D, which there is not on Linux": """
        cuStreamBeginCaptureToCig cuStreamEndCaptureToCig
    """,
}


def listed():
    lines = [line.split() for line in LIST.read_text().splitlines()]
    return {(line[0], int(line[1]), "ptsz" in line) for line in lines}


def hooked():
    text = "".join((REPOSITORY / "native" / name).read_text() for name in ("memory.def", "launch.def"))
    found = re.findall(r'^HOOKED\(\w+, "(\w+)", (\d+), (\w+)\)', text, re.MULTILINE)
    return {(name, int(version), flag == "PER_THREAD_STREAM") for name, version, flag in found}


def test_each_function_of_the_driver_is_hooked_in_all_its_forms_or_needs_no_hook():
    known = {name for reason in WITHOUT_HOOK.values() for name in reason.split()}
    open_ways = {function for function in listed() - hooked() if "Get" not in function[0] and function[0] not in known}
    assert open_ways == set(), "hook them, or say in WITHOUT_HOOK why not"
    names = {name for name, _, _ in hooked()}
    assert {function for function in listed() - hooked() if function[0] in names} == set(), "another form is hooked"


def test_each_hook_is_listed_under_the_version_that_brought_it():
    assert hooked() - listed() == set()


def test_no_reason_is_given_for_a_function_that_is_hooked_or_gone():
    named = [name for reason in WITHOUT_HOOK.values() for name in reason.split()]
    assert len(named) == len(set(named))
    assert set(named) - {name for name, _, _ in listed() - hooked()} == set()


def test_the_list_goes_from_cuda_11_8_to_the_newest():
    packages = {tuple(map(int, line.split()[-1].split("."))) for line in LIST.read_text().splitlines()}
    assert min(packages) == (11, 8)
    assert max(packages) >= (13, 5)
