"""Check the fGPU libraries on a real GPU: a share's view, its memory cap and its compute time.

    python bench/fgpu_device.py [--device 0] [--share 0.25] [--seconds 60] [--only view,torch] [--driver-dir PATH]
    python bench/fgpu_device.py --build FOLDER       and there: python bench/fgpu_device.py --built FOLDER

Needs an NVIDIA driver and the right to use the GPU; no Docker, no network. The libraries are built with gcc and make
into a temporary folder and found by LD_LIBRARY_PATH. For a machine without gcc and make, build them elsewhere with
--build, and carry the folder there. Run it with a Python that has torch, and if possible cupy, triton, jax and
nvidia-ml-py: a check whose library is missing is skipped, with a line about it. Each result is printed at once, the
most important first, so that a run that is cut off loses none. No other program may use the GPU meanwhile. The exit
status is 1 if a check failed, 3 if all were skipped.

These need only the driver; where they say so, the real NVML is the judge:

- context: what NVML counts for a process with one context and nothing else. It is charged in the checks behind it,
  as `roles/fgpu` does.
- driver: a program is refused memory at the cap; by NVML too.
- fork: two children of one process have one cap together.
- exports, pools, contexts: memory behind descriptors whose handles were released, the driver's own pool, and further
  contexts end at the cap; the last by NVML.
- folder: with LD_LIBRARY_PATH set to the driver's folder of a container, a program still sees the share.
- time, replays: two programs at 10, 25 and 50 % get these shares of a kernel that waits, within 3 points; the second
  with a graph of it, at 10 %.
- classes: alone, a program with a limit of 0.5 gets half of the GPU. Beside a program that is always busy one of best
  effort gets nothing; beside one that pauses it works in the pauses, and costs that one a twentieth of them.
- cost: what an allocation with its release, and a launch, take with the libraries and without. Below 5 us more passes.

Others need a library or a program:

- view: nvidia-smi and nvidia-ml-py (both versions of its structure) show the cap, exactly.
- torch: the total is the cap, and blocks of 256 MiB end within 512 MiB below it, by each of three allocators.
- processes: two processes of one container share one cap; a killed one's memory is free within a second.
- shares: two loops of bf16 products at 0.3 and 0.7 get these shares, within 3 points, and together 95 % of one alone.
- graphs: the same, with CUDA graphs that are replayed.
- cupy: the total is the cap, and blocks of 256 MiB end within 512 MiB below it.
- triton: the shares of `shares`, of a kernel that Triton compiles and launches.
- jax: JAX reserves 75 % of the cap when it starts.
- mps: under a daemon of its own, 25 % of the threads are about a quarter of the multiprocessors. Skipped where no
  daemon starts.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.gpu_checks import classes, compute, frameworks, memory
from bench.gpu_checks.machine import LIBRARIES, TEMPORARY, Machine, Outcome, SkippedError, build

STUCK_S = 300

CHECKS: dict[str, Callable[[Machine], Outcome]] = {
    "context": memory.check_context,
    "driver": memory.check_driver,
    "fork": memory.check_fork,
    "exports": memory.check_exports,
    "pools": memory.check_pools,
    "contexts": memory.check_contexts,
    "folder": memory.check_folder,
    "time": compute.check_time,
    "replays": compute.check_replays,
    "classes": classes.check_classes,
    "cost": compute.check_cost,
    "view": memory.check_view,
    "torch": frameworks.check_torch,
    "processes": frameworks.check_processes,
    "shares": frameworks.check_shares,
    "graphs": frameworks.check_graphs,
    "cupy": frameworks.check_cupy,
    "triton": frameworks.check_triton,
    "jax": frameworks.check_jax,
    "mps": frameworks.check_mps,
}


def real_library(name: str, directory: Path | None) -> Path:
    """Return the path at which the loader finds the driver's library."""
    if directory:
        return (directory / name).resolve()
    listed = subprocess.run(
        ["ldconfig", "-p"], check=True, capture_output=True, text=True, env={"PATH": "/sbin:/usr/sbin"}
    )
    found = [line.split("=> ")[1] for line in listed.stdout.splitlines() if line.strip().startswith(f"{name} ")]
    found += [f"{place}/{name}" for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    for path in map(Path, found):
        if path.exists():
            return path.resolve()
    sys.exit(
        f"fgpu_device.py: the loader finds no {name}: is an NVIDIA driver installed? --driver-dir names its folder"
    )


def device_of(driver: Path, index: int) -> tuple[str, int]:
    """Return a GPU's UUID and its memory in bytes, from the real NVML."""
    library = ctypes.CDLL(str(driver / LIBRARIES[1]))
    device, uuid, memory = ctypes.c_void_p(), ctypes.create_string_buffer(96), (ctypes.c_ulonglong * 3)()
    steps = (
        library.nvmlInit_v2,
        lambda: library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)),
        lambda: library.nvmlDeviceGetUUID(device, uuid, 96),
        lambda: library.nvmlDeviceGetMemoryInfo(device, memory),
    )
    for step in steps:
        result = step()
        if result:
            sys.exit(f"fgpu_device.py: --device {index}: NVML answers {result}; nvidia-smi -L lists the devices")
    return uuid.value.decode(), memory[0]


def give_up(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"no end after {STUCK_S} s beside the time of the loops")


def run_check(name: str, machine: Machine) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, STUCK_S + 2 * machine.seconds)
    try:
        passed, figures = CHECKS[name](machine)
    except SkippedError as reason:
        return {"check": name, "result": "skipped", "why": str(reason)}
    except (RuntimeError, subprocess.CalledProcessError, OSError, ValueError) as error:
        return {"check": name, "result": "fail", "why": str(error)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for process in machine.processes:
            process.kill()
            process.wait()
    return {"check": name, "result": "pass" if passed else "fail", **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", default=",".join(CHECKS), help="names of checks, with commas between")
    parser.add_argument(
        "--driver-dir", type=Path, help="directory of the driver's libraries, if the loader does not find them"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each result")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build the libraries for another machine, and end")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what --build has made")
    options = parser.parse_args()
    if options.build:
        build(options.build.absolute())
        return
    names = options.only.split(",")
    unknown = sorted(set(names) - set(CHECKS))
    if unknown:
        sys.exit(f"fgpu_device.py: --only: no check {unknown[0]}; there are {', '.join(CHECKS)}")
    if not 0 < options.share <= 1:
        sys.exit("fgpu_device.py: --share takes a number above 0, up to 1")
    results = []
    directory, prefix = TEMPORARY.rsplit("/", 1)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory) as folder:
        driver = Path(folder) / "driver"
        driver.mkdir()
        for library in LIBRARIES:
            (driver / library).symlink_to(real_library(library, options.driver_dir))
        uuid, total = device_of(driver, options.device)
        machine = Machine(Path(folder), driver, uuid, total, options.share, options.seconds, built=options.built)
        for name in names:
            results.append(run_check(name, machine))
            if options.json:
                print(json.dumps({"uuid": uuid, "mem_bytes": total, **results[-1]}), flush=True)
            else:
                figures = ", ".join(
                    f"{key} {value}" for key, value in results[-1].items() if key not in {"check", "result"}
                )
                print(f"{name}: {results[-1]['result']}: {figures}", flush=True)
    kinds = {result["result"] for result in results}
    sys.exit(1 if "fail" in kinds else 3 if kinds == {"skipped"} else 0)


if __name__ == "__main__":
    main()
