"""The workloads that bench/fgpu_device.py runs on the GPU, each in a process of its own. Each prints a line of JSON.

fgpu_workloads.py nvml UUID | driver MIB | spin | fill MIB | hold MIB | matmul [graph] | jax | sms

`driver` and `spin` need nothing but the driver. `spin` and `matmul` print a line when they are ready, and then read the
two instants of the monotonic clock between which they are to work.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
MATRIX = 8192
BATCH = 10
_OUT_OF_MEMORY = 2
# Waits two milliseconds by the GPU's clock. The fake driver takes its time from the name.
SPIN = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin_us_2000()
{
  .reg .u64 %begin, %now, %passed;
  .reg .pred %waits;
  mov.u64 %begin, %globaltimer;
again:
  mov.u64 %now, %globaltimer;
  sub.u64 %passed, %now, %begin;
  setp.lt.u64 %waits, %passed, 2000000;
  @%waits bra again;
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


def spin() -> None:
    """Launch a kernel that only waits, again and again; print how many were complete in time."""
    gpu = Driver()
    function = gpu.kernel(SPIN, "spin_us_2000")
    gpu.launch(function)
    gpu.call("cuCtxSynchronize")
    end = begin_at_the_signal()
    done = 0
    while time.monotonic() < end:
        for _ in range(4):
            gpu.launch(function)
        gpu.call("cuCtxSynchronize")
        done += 4
    report(kernels=done)


def begin_at_the_signal() -> float:
    """Say that this process is ready, wait for the common beginning, and return the end by the monotonic clock."""
    report(ready=True)
    began, end = map(float, sys.stdin.readline().split())
    time.sleep(max(began - time.monotonic(), 0))
    return end


def fill(mib: str) -> None:
    """Allocate blocks until PyTorch runs out of memory; print the used memory that the driver then reports."""
    import torch  # noqa: PLC0415

    _, total = torch.cuda.mem_get_info()
    blocks: list[Any] = []
    refused = False
    while not refused and len(blocks) * int(mib) * MIB <= total:
        try:
            blocks.append(torch.empty(int(mib) * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            refused = True
    free, _ = torch.cuda.mem_get_info()
    report(total=total, used=total - free, blocks=len(blocks), refused=refused)


def hold(mib: str) -> None:
    """Hold memory until standard input ends; print the seconds until it was allocated."""
    import torch  # noqa: PLC0415

    torch.cuda.init()
    began = time.monotonic()
    held = None
    while held is None and time.monotonic() - began < 10:
        try:
            held = torch.empty(int(mib) * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            time.sleep(0.02)
    report(held=held is not None, seconds=round(time.monotonic() - began, 3))
    sys.stdin.read()


def matmul(kind: str = "launches") -> None:
    """Multiply large matrices; print the number of products that were complete in time."""
    import torch  # noqa: PLC0415

    left, right = (torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(BATCH):
            torch.mm(left, right, out=out)

    multiply()
    torch.cuda.synchronize()
    run: Callable[[], None] = multiply
    if kind == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            multiply()
        run = graph.replay
    end = begin_at_the_signal()
    done = 0
    # Two batches are queued at any time, so that the GPU never idles and little work is left at the end.
    queued: list[Any] = []
    while time.monotonic() < end:
        run()
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) > 2:
            queued.pop(0).synchronize()
            done += BATCH if time.monotonic() < end else 0
    torch.cuda.synchronize()
    report(products=done)


def jax() -> None:
    import jax as library  # noqa: PLC0415

    report(limit=library.devices()[0].memory_stats()["bytes_limit"])


def sms() -> None:
    import torch  # noqa: PLC0415

    report(sms=torch.cuda.get_device_properties(0).multi_processor_count)


WORKLOADS: dict[str, Callable[..., None]] = {
    "nvml": nvml,
    "driver": driver,
    "spin": spin,
    "fill": fill,
    "hold": hold,
    "matmul": matmul,
    "jax": jax,
    "sms": sms,
}

if __name__ == "__main__":
    WORKLOADS[sys.argv[1]](*sys.argv[2:])
