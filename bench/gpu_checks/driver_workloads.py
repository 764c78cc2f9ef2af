"""Workloads that need nothing but the driver, which bench/fgpu_device.py runs. Each prints a line of JSON.

driver_workloads.py nvml UUID | driver MIB | spin [graph|short] | bursts PAUSE_MS | context | contexts | exports MIB |
    pool MIB | fork MIB | total | cost ROUNDS

`spin` and `bursts` print a line when they are ready, and then read the two instants of the monotonic clock between
which they are to work.
"""

import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

MIB = 1 << 20
MATRIX = 8192
BATCH = 10
_OUT_OF_MEMORY = 2
BURST = 5
LONG_US, SHORT_US = 2000, 200


def spinning(microseconds: int) -> bytes:
    """Return a CUDA kernel that waits by the GPU's clock. The fake driver takes its time from the name."""
    return f"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_us_{microseconds}()
{{
  .reg .u64 %begin, %now, %passed;
  .reg .pred %waits;
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %passed, %now, %begin;
  setp.lt.u64 %waits, %passed, {microseconds * 1000};
  @%waits bra again;
  ret;
}}
""".encode()


NOOP = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry noop()
{
  ret;
}
"""


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


def nvml(uuid: str) -> None:
    """Print the device's total by both versions of NVML's structure."""
    import pynvml  # noqa: PLC0415 - each workload needs one library of several

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    first = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    report(v1=first.total, v2=second.total)


class Driver:
    """The CUDA driver's API through ctypes, with a context on the one visible device."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, function: str, *arguments: object) -> None:
        result = getattr(self.library, function)(*arguments)
        if result:
            sys.exit(f"{function}: CUDA error {result}")

    def allocates(self, size: int) -> bool:
        """Allocate memory for good. Return False where the driver refuses."""
        address = ctypes.c_uint64()
        result = self.library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
        if result not in {0, _OUT_OF_MEMORY}:
            sys.exit(f"cuMemAlloc_v2: CUDA error {result}")
        return result == 0

    def memory(self) -> tuple[int, int]:
        """Return the free and the total memory in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def kernel(self, image: bytes, name: str) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def launch(self, function: ctypes.c_void_p) -> None:
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def driver(mib: str) -> None:
    """Allocate blocks until the driver refuses; print what was allocated, and wait for the end of standard input."""
    gpu, blocks = Driver(), 0
    _, total = gpu.memory()
    while (blocks + 1) * int(mib) * MIB <= total and gpu.allocates(int(mib) * MIB):
        blocks += 1
    free, _ = gpu.memory()
    refused = not gpu.allocates(int(mib) * MIB)
    report(total=total, free=free, allocated=blocks * int(mib) * MIB, refused=refused)
    sys.stdin.read()


def spinner(microseconds: int) -> tuple[Driver, ctypes.c_void_p]:
    """Return a driver and a CUDA kernel that waits, which has run once."""
    gpu = Driver()
    function = gpu.kernel(spinning(microseconds), f"spin_us_{microseconds}")
    gpu.launch(function)
    gpu.call("cuCtxSynchronize")
    return gpu, function


def spin(kind: str = "launches") -> None:
    """Launch a kernel that only waits, or a graph of it, again and again; print how many were complete in time."""
    microseconds = SHORT_US if kind == "short" else LONG_US
    gpu, function = spinner(microseconds)
    launch: Callable[[], None] = partial(gpu.launch, function)
    if kind == "graph":
        launch = graph_of(gpu, function)
    end = begin_at_the_signal()
    done = 0
    while time.monotonic() < end:
        for _ in range(4):
            launch()
        gpu.call("cuCtxSynchronize")
        done += 4
    report(kernels=done, gpu_ms=done * microseconds / 1000)


def bursts(pause_ms: str) -> None:
    """Launch some kernels, wait for them and rest, again and again; print how many bursts, and what one took."""
    gpu, function = spinner(LONG_US)
    end = begin_at_the_signal()
    took = []
    while time.monotonic() < end:
        began = time.monotonic()
        for _ in range(BURST):
            gpu.launch(function)
        gpu.call("cuCtxSynchronize")
        took.append(time.monotonic() - began)
        time.sleep(int(pause_ms) / 1000)
    report(bursts=len(took), burst_ms=1000 * statistics.mean(took))


def graph_of(gpu: Driver, function: ctypes.c_void_p) -> Callable[[], None]:
    """Return what launches a graph of one kernel."""
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuStreamCreate", ctypes.byref(stream), 1)
    gpu.call("cuStreamBeginCapture_v2", stream, 0)
    gpu.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
    gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph))
    gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    return partial(gpu.call, "cuGraphLaunch", executable, stream)


def context() -> None:
    """Have a context and nothing else until standard input ends."""
    Driver()
    report(ready=True)
    sys.stdin.read()


def contexts() -> None:
    """Make contexts until the driver refuses, 64 at most; print how many, and keep them until standard input ends."""
    gpu, made, count = Driver(), ctypes.c_void_p(), 1
    while count < 64 and gpu.library.cuCtxCreate_v2(ctypes.byref(made), 0, 0) == 0:
        count += 1
    report(contexts=count)
    sys.stdin.read()


def exports(mib: str) -> None:
    """Export physical memory and release its handle, until the driver refuses; print what is behind descriptors."""
    gpu, size, descriptors = Driver(), int(mib) * MIB, 0
    _, total = gpu.memory()
    properties = AllocationProperties(type=1, handle_types=1, location=Location(1, 0))
    refused = False
    # A container that is not held to its share ends at the descriptors of a process, or at the GPU's memory.
    while not refused and descriptors < 900:
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int()
        wanted = (ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
        if gpu.library.cuMemCreate(*wanted):
            refused = True
            continue
        gpu.call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, 1, ctypes.c_uint64(0))
        gpu.call("cuMemRelease", handle)
        descriptors += 1
    report(total=total, allocated=descriptors * size, refused=refused)
    sys.stdin.read()


def pool(mib: str) -> None:
    """Allocate blocks from the driver's own pool until it refuses; print what was allocated."""
    gpu, blocks, result = Driver(), 0, 0
    size, (_, total) = int(mib) * MIB, gpu.memory()
    while result == 0 and blocks * size <= total:
        address = ctypes.c_uint64()
        result = gpu.library.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), None)
        blocks += result == 0
    gpu.call("cuCtxSynchronize")
    report(total=total, allocated=blocks * size, refused=result == _OUT_OF_MEMORY)
    sys.stdin.read()


def fork(mib: str) -> None:
    """Allocate in two children of a fork, by turns, until both are refused; print what they have together."""
    size, pipes = int(mib) * MIB, []
    for _ in range(2):
        requested, answered = os.pipe(), os.pipe()
        if os.fork() == 0:
            gpu = Driver()
            while os.read(requested[0], 1) == b"+":
                os.write(answered[1], b"+" if gpu.allocates(size) else b"-")
            os._exit(0)
        os.close(answered[1])
        pipes.append((requested[1], answered[0]))
    blocks, refused = 0, [False, False]
    while not all(refused) and blocks * size < 1 << 40:
        for child, (ask, answer) in enumerate(pipes):
            os.write(ask, b"+")
            given = os.read(answer, 1)
            if not given:
                sys.exit("a child ended")
            refused[child] = given == b"-"
            blocks += not refused[child]
    report(allocated=blocks * size, refused=all(refused))
    for ask, _ in pipes:
        os.write(ask, b".")
    for _ in pipes:
        os.wait()


def total() -> None:
    """Print the total that the device shows, and which library that is of."""
    gpu = Driver()
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - a file of the system
        libraries = sorted({line.split()[-1] for line in maps if "libcuda" in line})
    report(total=gpu.memory()[1], libraries=libraries)


def cost(rounds: str) -> None:
    """Print the medians of the microseconds that an allocation with its release, and a launch, take."""
    gpu = Driver()
    function, address, size = gpu.kernel(NOOP, "noop"), ctypes.c_uint64(), ctypes.c_size_t(2 * MIB)

    def allocate() -> None:
        gpu.call("cuMemAlloc_v2", ctypes.byref(address), size)
        gpu.call("cuMemFree_v2", address)

    def microseconds(run: Callable[[], None]) -> float:
        took = []
        for _ in range(int(rounds)):
            began = time.perf_counter_ns()
            for _ in range(100):
                run()
            took.append((time.perf_counter_ns() - began) / 100_000)
            gpu.call("cuCtxSynchronize")
        return round(statistics.median(took), 3)

    report(alloc_us=microseconds(allocate), launch_us=microseconds(partial(gpu.launch, function)))


def begin_at_the_signal() -> float:
    """Say that this process is ready, wait for the common beginning, and return the end by the monotonic clock."""
    report(ready=True)
    began, end = map(float, sys.stdin.readline().split())
    time.sleep(max(began - time.monotonic(), 0))
    return end


WORKLOADS: dict[str, Callable[..., None]] = {
    "nvml": nvml,
    "driver": driver,
    "spin": spin,
    "bursts": bursts,
    "context": context,
    "contexts": contexts,
    "exports": exports,
    "pool": pool,
    "fork": fork,
    "total": total,
    "cost": cost,
}

if __name__ == "__main__":
    WORKLOADS[sys.argv[1]](*sys.argv[2:])
