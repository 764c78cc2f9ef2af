"""Checks that need a library or a program beside the driver: PyTorch, CuPy, Triton, JAX, MPS."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.gpu_checks.compute import TOLERANCE
from bench.gpu_checks.machine import MIB, Machine, Outcome, SkippedError, need

MOST_SOLO = 0.95
ALLOCATORS = {"default": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}


def check_torch(machine: Machine) -> Outcome:
    need("torch")
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    figures: dict[str, Any] = {"cap_mib": cap // MIB}
    good = []
    for name, configuration in ALLOCATORS.items():
        result = machine.run(libraries, "fill", "256", PYTORCH_CUDA_ALLOC_CONF=configuration)
        figures[f"{name}_below_cap_mib"] = (cap - result["used"]) // MIB
        good.append(result["refused"] and result["total"] == cap and cap - 512 * MIB <= result["used"] <= cap)
    return all(good), figures


def check_cupy(machine: Machine) -> Outcome:
    need("cupy")
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    result = machine.run(libraries, "cupy", "256")
    figures = {"cap_mib": cap // MIB, "below_cap_mib": (cap - result["used"]) // MIB}
    return result["refused"] and result["total"] == cap and cap - 512 * MIB <= result["used"] <= cap, figures


def check_processes(machine: Machine) -> Outcome:
    need("torch")
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    part = (cap - 2 * machine.context_bytes) // 2 // MIB - 256
    holders = [machine.start(libraries, "hold", str(part)) for _ in range(2)]
    held = [json.loads(holder.stdout.readline())["held"] for holder in holders if holder.stdout]
    third = machine.run(libraries, "fill", "64")
    holders[0].send_signal(signal.SIGKILL)
    holders[0].wait()
    again = machine.start(libraries, "hold", str(part))
    seconds = json.loads(again.stdout.readline())["seconds"] if again.stdout else 10.0
    for process in (*holders[1:], again):
        process.communicate()
    figures = {"each_mib": part, "third_saw_used_mib": third["used"] // MIB, "cap_mib": cap // MIB, "again_s": seconds}
    return all(held) and third["refused"] and third["used"] <= cap and seconds <= 1, figures


def loops(machine: Machine, kind: str) -> Outcome:
    need("torch")
    containers = [machine.container(share) for share in (0.3, 0.7)]
    solo_s = max(machine.seconds / 3, 5)
    (alone,) = machine.together([machine.start(None, "matmul", kind)], solo_s)
    results = machine.together([machine.start(libraries, "matmul", kind) for libraries in containers], machine.seconds)
    rates = [result["products"] / machine.seconds for result in results]
    solo = alone["products"] / solo_s
    got = rates[0] / sum(rates)
    figures = {
        "share_of_0.3": round(got, 3),
        "sum_of_solo": round(sum(rates) / solo, 3),
        "products_per_s": [round(rate, 1) for rate in rates],
        "solo_per_s": round(solo, 1),
    }
    return abs(got - 0.3) <= TOLERANCE and sum(rates) >= MOST_SOLO * solo, figures


def check_shares(machine: Machine) -> Outcome:
    return loops(machine, "launches")


def check_graphs(machine: Machine) -> Outcome:
    return loops(machine, "graph")


def check_triton(machine: Machine) -> Outcome:
    need("torch", "triton")
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        raise SkippedError("Triton needs a C compiler")
    return loops(machine, "triton")


def check_jax(machine: Machine) -> Outcome:
    need("jax")
    cap = machine.cap(machine.share)
    limit = machine.run(machine.container(machine.share), "jax")["limit"]
    # JAX takes its part of the free memory, of which the context has taken some.
    return 0.75 * (cap - 2 * machine.context_bytes) <= limit <= 0.75 * cap, {
        "limit_mib": limit // MIB,
        "cap_mib": cap // MIB,
    }


@contextmanager
def mps_daemon(machine: Machine) -> Iterator[dict[str, str]]:
    """Run a control daemon of our own, without a change of the GPU's settings; yield its environment."""
    pipes = machine.folder / "mps"
    pipes.mkdir()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(pipes)}
    control = machine.environment(None, **environment)
    daemon = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=control, capture_output=True, text=True, check=False)
    if daemon.returncode:
        raise SkippedError(f"no MPS daemon starts: {(daemon.stderr or daemon.stdout).strip()[:200]}")
    try:
        yield environment
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], env=control, input="quit\n", text=True, check=False)


def check_mps(machine: Machine) -> Outcome:
    need("torch")
    if not shutil.which("nvidia-cuda-mps-control"):
        raise SkippedError("nvidia-cuda-mps-control is not here")
    whole = machine.run(None, "sms")["sms"]
    with mps_daemon(machine) as environment:
        libraries = machine.container(0.25, "none")
        try:
            part = machine.run(libraries, "sms", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25", **environment)["sms"]
        except RuntimeError as error:
            raise SkippedError(f"the MPS daemon serves no program here: {error}") from error
    return whole / 4 - 4 <= part <= whole / 4 + 4, {"multiprocessors": part, "of": whole}
