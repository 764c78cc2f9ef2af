"""A process may fork amid calls of its other threads: a child has none of these, and must not wait for their locks."""

import subprocess

from tests.native.fake_driver import FakeDriver
from tests.native.gpu_container import CAP, CONTEXT, Container

# Each call, and what it needs of the parent.
CALLS = {
    "cuCtxCreate_v2": "byref(c_void_p()), 0, 0",
    "cuCtxDestroy_v2": "used",
    "cuCtxSetLimit": "2, c_size_t(64 * MIB)",
    "cuDevicePrimaryCtxRetain": "byref(c_void_p()), 0",
    "cuDevicePrimaryCtxRelease_v2": "0",
    "cuGreenCtxCreate": "byref(c_void_p()), None, 0, 1",
    "cuGreenCtxDestroy": "green",
    "cuMemAlloc_v2": "byref(c_uint64()), c_size_t(2 * MIB)",
    "cuMemFree_v2": "address",
    "cuIpcGetMemHandle": "byref((c_uint64 * 8)()), address",
    "cuIpcOpenMemHandle_v2": "byref(c_uint64()), Handle(), 1",
    "cuIpcCloseMemHandle": "address",
    "cuMemAllocAsync": "byref(c_uint64()), c_size_t(2 * MIB), None",
    "cuMemFreeAsync": "of_pool, None",
    "cuMemPoolCreate": "byref(c_void_p()), byref(PoolProps(type=1, location=Location(1, 0)))",
    "cuMemPoolDestroy": "pool",
    "cuMemPoolTrimTo": "pool, c_size_t(0)",
    "cuMemGetInfo_v2": "byref(c_size_t()), byref(c_size_t())",
    "cuArray3DCreate_v2": "byref(c_void_p()), byref(Array3D(1024, 1024, 0, 0x20, 1, 0))",
    "cuArrayDestroy": "array",
    "cuMemCreate": "byref(c_uint64()), c_size_t(2 * MIB), byref(on_device()), c_uint64(0)",
    "cuMemRelease": "handle",
    "cuMemUnmap": "mapping, c_size_t(2 * MIB)",
    "cuGraphInstantiateWithFlags": "byref(c_void_p()), graph, c_uint64(0)",
    "cuGraphLaunch": "executable, None",
    "cuGraphExecDestroy": "executable",
    "cuStreamBeginCapture_v2": "stream, 2",
    "cuStreamEndCapture": "stream, byref(c_void_p())",
    "cuStreamDestroy_v2": "stream",
    "cuStreamSynchronize": "stream",
}
SCRIPT = """
import os, signal
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
library = ctypes.CDLL(None)
start = min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if LIBRARY in line)
locks = [c_void_p(start + at) for at in LOCKS]
draining = (c_void_p * 16).from_address(start + DRAINING)

def use():
    global address, of_pool, pool, array, handle, mapping, graph, executable, stream, green
    address, of_pool, pool, array, stream, graph, executable, green = (
        c_uint64(), c_uint64(), c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_void_p(), c_void_p())
    ok(cuda.cuCtxSetLimit(2, c_size_t(10 * MIB)))
    ok(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
    ok(cuda.cuMemAlloc_v2(byref(address), c_size_t(2 * MIB)))
    ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(1, 0)))))
    ok(cuda.cuMemAllocFromPoolAsync(byref(of_pool), c_size_t(2 * MIB), pool, None))
    ok(cuda.cuArray3DCreate_v2(byref(array), byref(Array3D(1024, 1024, 0, 0x20, 1, 0))))
    handle = create(2 * MIB)
    mapping = mapped(handle, 2 * MIB)
    ok(cuda.cuStreamCreate(byref(stream), 1))
    ok(cuda.cuGraphCreate(byref(graph), 0))
    node, parameters = c_void_p(), AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=2 * MIB)
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
    ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))

def end_of_child(run, current=None):
    "Return the signal that ended a child, or its exit status."
    for lock in locks:
        assert library.pthread_mutex_lock(lock) == 0
    for gpu in range(16):
        draining[gpu] = current
    if (child := os.fork()) == 0:
        signal.alarm(60)
        run()
        os._exit(0)
    for lock in locks:
        library.pthread_mutex_unlock(lock)
    for gpu in range(16):
        draining[gpu] = None
    return os.waitpid(child, 0)[1]
"""


def with_locks(script: str, container: Container) -> str:
    """Return the script, which knows the library's locks by their size: mutexes, and tables that begin with one."""
    library = container.libraries / "libcuda.so.1"
    listed = subprocess.run(["nm", "--print-size", library], capture_output=True, text=True, check=True).stdout
    symbols = [words for line in listed.splitlines() if len(words := line.split()) == 4]
    sizes = {f"{size:016x}" for size in (40, 64)}
    locks = [
        int(at, 16) for at, size, kind, name in symbols if size in sizes and kind in "bd" and name != "gpus_of_devices"
    ]
    (draining,) = (int(at, 16) for at, _, _, name in symbols if name == "draining")
    values = {"LIBRARY": repr(str(library)), "LOCKS": repr(locks), "DRAINING": str(draining)}
    for word, value in values.items():
        script = script.replace(word, value)
    return script


def test_no_first_call_in_a_child_waits_for_its_parents_threads(fake_driver: FakeDriver, container: Container) -> None:
    """The driver refuses a child whose parent has used it, but it must answer."""
    calls = "".join(f"    {name!r}: lambda: cuda.{name}({words}),\n" for name, words in CALLS.items())
    script = f"""{SCRIPT}
used = context()
use()
calls = {{
{calls}}}
tell([name for name, call in calls.items() if end_of_child(call, used)])
"""
    assert fake_driver.run(with_locks(script, container), container.libraries) == []


def test_a_child_may_use_the_gpu_even_if_its_parents_threads_were_about_to(
    fake_driver: FakeDriver, container: Container
) -> None:
    script = f"""{SCRIPT}
made = c_void_p()
def run():
    used = context()
    use()
    ok(cuda.cuMemFreeAsync(of_pool, None))
    ok(cuda.cuMemPoolDestroy(pool))
    ok(cuda.cuIpcGetMemHandle(byref((c_uint64 * 8)()), address))
    ok(cuda.cuMemFree_v2(address))
    ok(cuda.cuGreenCtxDestroy(green))
    ok(cuda.cuCtxCreate_v2(byref(made), 0, 0))
    ok(cuda.cuCtxDestroy_v2(made))
    ok(cuda.cuCtxSetCurrent(used))
    ok(cuda.cuStreamBeginCapture_v2(stream, 2))
    ok(cuda.cuStreamEndCapture(stream, byref(c_void_p())))
    for _ in range(2):
        ok(cuda.cuStreamDestroy_v2(stream))
        ok(cuda.cuStreamCreate(byref(stream), 1))
    ok(cuda.cuDevicePrimaryCtxReset_v2(0))
tell(end_of_child(run))
"""
    assert fake_driver.run(with_locks(script, container), container.libraries) == 0
    assert container.client("info")["free"] == CAP - CONTEXT
