"""Workloads of PyTorch, CuPy, Triton and JAX that bench/fgpu_device.py runs, each in a process of its own.

framework_workloads.py fill MIB | cupy MIB | hold MIB | matmul [graph|triton] | jax | sms

Each prints a line of JSON. `matmul` prints a line when it is ready, and then reads the two instants of the monotonic
clock between which it is to work.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.gpu_checks.driver_workloads import MIB, begin_at_the_signal, report

MATRIX = 8192
BATCH = 10


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


def cupy(mib: str) -> None:
    """Allocate blocks until CuPy runs out of memory; print the used memory that the driver then reports."""
    import cupy as library  # noqa: PLC0415

    _, total = library.cuda.Device().mem_info
    blocks: list[Any] = []
    refused = False
    while not refused and len(blocks) * int(mib) * MIB <= total:
        try:
            blocks.append(library.empty(int(mib) * MIB, dtype=library.uint8))
        except library.cuda.memory.OutOfMemoryError:
            refused = True
    free, _ = library.cuda.Device().mem_info
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
    """Multiply large matrices; print the number of products that were complete in time.

    With `triton`, a CUDA kernel that Triton compiles and launches takes the place of the product.
    """
    import torch  # noqa: PLC0415

    left, right = (torch.randn(MATRIX, MATRIX, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> None:
        for _ in range(BATCH):
            torch.mm(left, right, out=out)

    if kind == "triton":
        from bench.gpu_checks.triton_kernel import BLOCK, ROUNDS, wander  # noqa: PLC0415

        def multiply() -> None:
            for _ in range(BATCH):
                wander[(out.numel() // BLOCK,)](out, ROUNDS, BLOCK)

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
    "fill": fill,
    "cupy": cupy,
    "hold": hold,
    "matmul": matmul,
    "jax": jax,
    "sms": sms,
}

if __name__ == "__main__":
    WORKLOADS[sys.argv[1]](*sys.argv[2:])
