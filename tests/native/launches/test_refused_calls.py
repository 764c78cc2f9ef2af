"""Calls that the driver refuses leave everything as it was, and charged as it was.

CUDA refuses calls of a host function that a stream runs, and the program cannot know which of them.
"""

from tests.native.gpu_container import CAP, CONTEXT

MAKE = """
context()
size, none = c_size_t(64 * MIB), c_uint64(0)
properties = byref(PoolProps(type=1, location=Location(1, 0)))
shape = byref(Array3D(1024, 1024, 16, 0x20, 1, 0))
def graph_of(size):
    graph, node = c_void_p(), c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    parameters = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=size)
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
    return graph, parameters.address
made, pool, array, mipmap, executable, green = (c_void_p() for _ in range(6))
multicast, old, other, of_pool = c_uint64(), c_uint(), c_uint64(), c_uint64()
ok(cuda.cuCtxCreate_v2(byref(made), 0, 0))
ok(cuda.cuCtxPopCurrent_v2(None))
ok(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
address, freed_later, handle = allocate(64 * MIB), allocate(64 * MIB), create(64 * MIB)
ok(cuda.cuMemAlloc(byref(old), 64 * MIB))
ok(cuda.cuMemPoolCreate(byref(pool), properties))
ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(1 << 40))))
ok(cuda.cuMemAllocFromPoolAsync(byref(of_pool), size, pool, None))
ok(cuda.cuMemAllocFromPoolAsync(byref(other), size, pool, None))
ok(cuda.cuMemFreeAsync(other, None))
ok(cuda.cuArray3DCreate_v2(byref(array), shape))
ok(cuda.cuMipmappedArrayCreate(byref(mipmap), shape, 2))
mapping = mapped(handle, 64 * MIB)
ok(cuda.cuMulticastCreate(byref(multicast), (c_size_t * 4)(2, 128 * MIB, 0, 0)))
bound = create(64 * MIB)
ok(cuda.cuMulticastBindMem(multicast, c_size_t(0), bound, c_size_t(0), size, none))
ok(cuda.cuMemRelease(bound))
graph, graph_address = graph_of(64 * MIB)
ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, none))
"""
END = [
    "cuGraphExecDestroy(executable)",
    "cuMulticastUnbind(multicast, 0, c_size_t(0), size)",
    "cuMemUnmap(mapping, size)",
    "cuMemRelease(handle)",
    "cuMipmappedArrayDestroy(mipmap)",
    "cuArrayDestroy(array)",
    "cuMemFreeAsync(of_pool, None)",
    "cuMemPoolTrimTo(pool, c_size_t(0))",
    "cuMemPoolDestroy(pool)",
    "cuMemFree(old)",
    "cuMemFreeAsync(freed_later, None)",
    "cuMemFree_v2(address)",
    "cuCtxDestroy_v2(made)",
    "cuGreenCtxDestroy(green)",
]
BEGIN = [
    "cuMemAlloc_v2(byref(c_uint64()), size)",
    "cuMemAlloc(byref(c_uint()), 64 << 20)",
    "cuMemAllocPitch_v2(byref(c_uint64()), byref(c_size_t()), c_size_t(512), c_size_t(4096), 4)",
    "cuMemAllocManaged(byref(c_uint64()), size, 1)",
    "cuMemAllocAsync(byref(c_uint64()), size, None)",
    "cuMemAllocFromPoolAsync(byref(c_uint64()), size, pool, None)",
    "cuArray3DCreate_v2(byref(c_void_p()), shape)",
    "cuMipmappedArrayCreate(byref(c_void_p()), shape, 2)",
    "cuMemCreate(byref(c_uint64()), size, byref(on_device()), none)",
    "cuMemMap(c_uint64(mapping.value + (64 << 20)), size, c_size_t(0), handle, none)",
    "cuMemExportToShareableHandle(byref(c_int()), handle, 1, none)",
    "cuMemRetainAllocationHandle(byref(c_uint64()), mapping)",
    "cuMulticastCreate(byref(c_uint64()), (c_size_t * 4)(2, 128 * MIB, 0, 0))",
    "cuMulticastBindMem(multicast, c_size_t(64 << 20), handle, c_size_t(0), size, none)",
    "cuMulticastBindAddr(multicast, c_size_t(64 << 20), mapping, size, none)",
    "cuMemPoolCreate(byref(c_void_p()), properties)",
    "cuCtxCreate_v2(byref(c_void_p()), 0, 0)",
    "cuCtxSetLimit(2, c_size_t(64 << 20))",
    "cuDevicePrimaryCtxRetain(byref(c_void_p()), 0)",
    "cuDevicePrimaryCtxRelease_v2(0)",
    "cuDevicePrimaryCtxReset_v2(0)",
    "cuGreenCtxCreate(byref(c_void_p()), None, 0, 1)",
    "cuGraphInstantiateWithFlags(byref(c_void_p()), graph, none)",
    "cuGraphUpload(executable, None)",
    "cuDeviceGraphMemTrim(0)",
]


def test_what_the_driver_refuses_to_end_or_to_begin_stays_as_it_was(attack):
    """Then each thing ends in its turn, with its charge: what ended unnoticed would keep it, or be given back twice."""
    calls = "".join(f"    lambda: cuda.{call},\n" for call in END + BEGIN)
    ends = "".join(f"ok(cuda.{call})\nleft.append(free_and_total()[0])\n" for call in END)
    told, used = attack(f"""{MAKE}
calls = [
{calls}]
answers = []
def refused_calls(data):
    answers.extend(call() for call in calls)
function = ctypes.CFUNCTYPE(None, c_void_p)(refused_calls)
left = [free_and_total()[0]]
ok(cuda.cuLaunchHostFunc(None, function, None))
left.append(free_and_total()[0])
ok(cuda.cuGraphLaunch(executable, None))
left.append(free_and_total()[0])
ok(cuda.cuMemFreeAsync(c_uint64(graph_address), None))
ok(cuda.cuDeviceGraphMemTrim(0))
left.append(free_and_total()[0])
{ends}
tell([all(answers), len(answers), [(before - after) // MIB for before, after in zip(left, left[1:])], left[-1]])
""")
    freed = [0, -64, 0, -64, -72, -64, 0, -128, 0, -64, -64, -64, -256, 0]
    assert told == f"[true, {len(END + BEGIN)}, [0, 64, -64, {', '.join(map(str, freed))}], {CAP - CONTEXT}]"
    assert used == CONTEXT
