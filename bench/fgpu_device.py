"""Check the fGPU libraries on a real GPU: a share's view, its memory cap and its compute time.

    python bench/fgpu_device.py [--device 0] [--share 0.25] [--seconds 60] [--only view,torch] [--driver-dir PATH]
    python bench/fgpu_device.py --build FOLDER       and there: python bench/fgpu_device.py --built FOLDER

Needs an NVIDIA driver and the right to use the GPU; no Docker, no network. The libraries are built with gcc and make
into a temporary folder and found by LD_LIBRARY_PATH. For a machine without gcc and make, build them elsewhere with
--build, and carry the folder there. Run it with a Python that has torch, and if possible jax and nvidia-ml-py: a check
whose library is missing is skipped, with a line about it. Each result is printed at once, the most important first, so
that a run that is cut off loses none. No other program may use the GPU meanwhile. The exit status is 1 if a check
failed, 3 if all were skipped.

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
- cost: what an allocation with its release, and a launch, take with the libraries and without. Below 5 us more passes.

Others need a library or a program:

- view: nvidia-smi and nvidia-ml-py (both versions of its structure) show the cap, exactly.
- torch: the total is the cap, and blocks of 256 MiB end within 512 MiB below it, by each of three allocators.
- processes: two processes of one container share one cap; a killed one's memory is free within a second.
- shares: two loops of bf16 products at 0.3 and 0.7 get these shares, within 3 points, and together 95 % of one alone.
- graphs: the same, with CUDA graphs that are replayed.
- jax: JAX reserves 75 % of the cap when it starts.
- mps: under a daemon of its own, 25 % of the threads are about a quarter of the multiprocessors. Skipped where no
  daemon starts.
"""

import argparse
import ctypes.util
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
WORKLOADS = Path(__file__).parent / "fgpu_workloads.py"
MIB = 1 << 20
GRAIN = 2 * MIB
CONTEXT_BYTES = 300 * MIB
TOLERANCE = 0.03
OVER_CAP = 64 * MIB  # as the agent's check tolerates
STUCK_S = 300
MOST_SOLO = 0.95
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# The folder of one container, as the libraries are built; a real one has a name of that length.
TEMPORARY, RANDOM = "/tmp/muster-fgpu-", 8
PLACE = f"{TEMPORARY}{'#' * RANDOM}/##"
MOST_COST_US = 5
ALLOCATORS = {"default": "", "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}


class SkippedError(Exception):
    """A check cannot be made here; the message is the reason."""


@dataclass
class Machine:
    """The GPU, and the directories of the libraries for it."""

    folder: Path
    driver: Path
    uuid: str
    total: int
    share: float
    seconds: float
    containers: dict[str, Path] = field(default_factory=dict)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    built: Path | None = None
    context_bytes: int = CONTEXT_BYTES

    def cap(self, share: float) -> int:
        return int(self.total * share) // GRAIN * GRAIN

    def container(self, share: float, compute: str = "fair") -> Path:
        """Create the libraries of a container with this share: its own limits and usage, the GPU's one lease."""
        name = f"{share}-{compute}"
        if name not in self.containers:
            home = self.folder / f"{len(self.containers):02}"
            (home / "fgpu/lease").mkdir(parents=True)
            (home / "fgpu/usage").touch()
            lease = self.folder / "lease"
            lease.touch()
            (home / "fgpu/lease" / self.uuid).symlink_to(lease)
            limits = [
                "version 1",
                f"kernel 00000000-0000-4000-8000-{len(self.containers):012}",
                f"compute {compute}",
                f"context_bytes {self.context_bytes}",
                f"gpu {self.uuid} {self.cap(share)} {int(share * 1000)}",
            ]
            (home / "limits").write_text("\n".join(limits) + "\n")
            self.containers[name] = self.libraries_for(home)
        return self.containers[name]

    def libraries_for(self, home: Path) -> Path:
        """Return the folder of libraries that look for limits, state and driver in this container's folder.

        They are built once, for a folder whose name is as long: it is written over in copies of them.
        """
        if self.built is None:
            self.built = self.folder / "built"
            build(self.built)
        libraries = home / "lib"
        libraries.mkdir()
        # As in a container: no loader finds the driver there by its own name.
        (home / "driver").mkdir()
        for name in LIBRARIES:
            (home / "driver" / f"real-{name}").symlink_to(self.driver / name)
            code = (self.built / "lib" / name).read_bytes()
            if PLACE.encode() not in code:
                raise RuntimeError(f"{self.built}/lib/{name} was not built by --build")
            (libraries / name).write_bytes(code.replace(PLACE.encode(), str(home).encode()))
        return libraries

    def environment(self, libraries: Path | None, **more: str) -> dict[str, str]:
        path = ":".join(str(at) for at in (libraries or self.driver, os.environ.get("LD_LIBRARY_PATH")) if at)
        return os.environ | {"LD_LIBRARY_PATH": path, "CUDA_VISIBLE_DEVICES": self.uuid} | more

    def start(self, libraries: Path | None, *words: str, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, WORKLOADS, *words]
        process = subprocess.Popen(
            command,
            env=self.environment(libraries, **more),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(self, libraries: Path | None, *words: str, **more: str) -> dict[str, Any]:
        return result_of(self.start(libraries, *words, **more))


def build(folder: Path) -> None:
    missing = [tool for tool in ("gcc", "make") if shutil.which(tool) is None]
    if missing:
        sys.exit(
            f"fgpu_device.py: there is no {' and no '.join(missing)} here: install the packages gcc and make, or run"
            " `python bench/fgpu_device.py --build FOLDER` elsewhere and give the folder by --built"
        )
    words = [f"OUT={folder}", f"LIMITS={PLACE}/limits", f"STATE={PLACE}/fgpu", f"DRIVER_DIR={PLACE}/driver"]
    subprocess.run(["make", "-s", "-C", REPOSITORY / "native", *words], check=True)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"a workload ended with {process.returncode}; its error stands above")
    return dict(json.loads(output))


def need(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SkippedError(f"this Python has no {missing[0]}")


Outcome = tuple[bool, dict[str, Any]]


def check_driver(machine: Machine) -> Outcome:
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    client = machine.start(libraries, "driver", "64")
    result = line_of(client)
    judged = used_by(machine, client.pid)
    client.communicate()
    figures = {
        "cap_mib": cap // MIB,
        "allocated_mib": result["allocated"] // MIB,
        "nvml_mib": None if judged is None else judged // MIB,
        "context_mib": None if judged is None else (judged - result["allocated"]) // MIB,
    }
    kept = judged is None or judged <= cap + OVER_CAP
    return result["refused"] and result["total"] == cap and result["allocated"] <= cap and kept, figures


def used_by(machine: Machine, pid: int) -> int | None:
    """Return the bytes that the real NVML counts for a process, or None where it does not list it."""

    class Process(ctypes.Structure):
        _fields_ = (
            ("pid", ctypes.c_uint),
            ("bytes", ctypes.c_ulonglong),
            ("gpu_instance", ctypes.c_uint),
            ("compute_instance", ctypes.c_uint),
        )

    library = ctypes.CDLL(str(machine.driver / LIBRARIES[1]))
    device, count, found = ctypes.c_void_p(), ctypes.c_uint(128), (Process * 128)()
    library.nvmlInit_v2()
    if library.nvmlDeviceGetHandleByUUID(machine.uuid.encode(), ctypes.byref(device)):
        return None
    if library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), found):
        return None
    amounts = [entry.bytes for entry in found[: count.value] if entry.pid == pid]
    return amounts[0] if amounts and amounts[0] < 1 << 60 else None


def check_context(machine: Machine) -> Outcome:
    """Measure what a context costs, and charge that in all containers that are made from now on."""
    client = machine.start(None, "context")
    line_of(client)
    judged = used_by(machine, client.pid)
    client.communicate()
    if judged is None:
        raise SkippedError("this driver's NVML does not count by process")
    machine.context_bytes = judged
    return judged > 0, {"context_mib": round(judged / MIB, 1), "default_mib": CONTEXT_BYTES // MIB}


def check_fork(machine: Machine) -> Outcome:
    cap = machine.cap(machine.share)
    result = machine.run(machine.container(machine.share), "fork", "64")
    figures = {"cap_mib": cap // MIB, "allocated_mib": result["allocated"] // MIB}
    least = cap - 2 * machine.context_bytes - 128 * MIB
    return result["refused"] and least <= result["allocated"] <= cap, figures


def kept_to_the_cap(machine: Machine, workload: str) -> Outcome:
    """Run a workload that takes blocks until it is refused."""
    cap = machine.cap(machine.share)
    client = machine.start(machine.container(machine.share), workload, "64")
    result = line_of(client)
    judged = used_by(machine, client.pid)
    client.communicate()
    figures = {
        "cap_mib": cap // MIB,
        "allocated_mib": result["allocated"] // MIB,
        "nvml_mib": None if judged is None else judged // MIB,
    }
    return result["refused"] and result["total"] == cap and result["allocated"] <= cap, figures


def check_exports(machine: Machine) -> Outcome:
    return kept_to_the_cap(machine, "exports")


def check_pools(machine: Machine) -> Outcome:
    return kept_to_the_cap(machine, "pool")


def check_contexts(machine: Machine) -> Outcome:
    cap = machine.cap(machine.share)
    client = machine.start(machine.container(machine.share), "contexts")
    count = line_of(client)["contexts"]
    judged = used_by(machine, client.pid)
    client.communicate()
    figures = {"contexts": count, "nvml_mib": None if judged is None else judged // MIB, "cap_mib": cap // MIB}
    return count <= cap // machine.context_bytes and (judged is None or judged <= cap + OVER_CAP), figures


def check_folder(machine: Machine) -> Outcome:
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    path = f"{libraries.parent / 'driver'}:{libraries}"
    result = machine.run(libraries, "total", LD_LIBRARY_PATH=path)
    return result["total"] == cap, {"total_mib": result["total"] // MIB, "cap_mib": cap // MIB}


def check_cost(machine: Machine) -> Outcome:
    bare, capped = (machine.run(libraries, "cost", "200") for libraries in (None, machine.container(machine.share)))
    figures = {
        f"{name}_{kind}": round(value, 2)
        for kind, found in (("bare", bare), ("capped", capped))
        for name, value in found.items()
    }
    return all(capped[name] - bare[name] < MOST_COST_US for name in bare), figures


def check_time(machine: Machine) -> Outcome:
    return turns(machine, "launches", (0.1, 0.25, 0.5))


def check_replays(machine: Machine) -> Outcome:
    return turns(machine, "graph", (0.1,))


def turns(machine: Machine, kind: str, shares: tuple[float, ...]) -> Outcome:
    figures: dict[str, Any] = {}
    good = []
    for share in shares:
        pair = [machine.start(machine.container(part), "spin", kind) for part in (share, 1 - share)]
        kernels = [result["kernels"] for result in together(pair, max(machine.seconds / 3, 1))]
        got = kernels[0] / max(sum(kernels), 1)
        figures[f"share_of_{share}"] = round(got, 3)
        good.append(abs(got - share) <= TOLERANCE)
    return all(good), figures


def together(processes: list[subprocess.Popen[str]], seconds: float) -> list[dict[str, Any]]:
    """Let workloads begin at one instant, once all of them are ready; return their results."""
    for process in processes:
        line_of(process)
    began = time.monotonic() + 0.5
    for process in processes:
        if process.stdin:
            process.stdin.write(f"{began} {began + seconds}\n")
            process.stdin.flush()
    return [result_of(process) for process in processes]


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of a workload's output."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"a workload ended with {process.wait()}; its error stands above")
    return dict(json.loads(line))


def check_view(machine: Machine) -> Outcome:
    libraries, cap = machine.container(machine.share), machine.cap(machine.share)
    figures: dict[str, Any] = {"cap_mib": cap // MIB}
    good = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "-i", machine.uuid, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        environment = machine.environment(libraries)
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        figures["nvidia_smi_mib"] = int(done.stdout)
        good.append(int(done.stdout) == cap // MIB)
    if importlib.util.find_spec("pynvml"):
        result = machine.run(libraries, "nvml", machine.uuid)
        figures |= result
        good += [result["v1"] == cap, result["v2"] == cap]
    if not good:
        raise SkippedError("neither nvidia-smi nor nvidia-ml-py is here")
    return all(good), figures


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
    (alone,) = together([machine.start(None, "matmul", kind)], solo_s)
    results = together([machine.start(libraries, "matmul", kind) for libraries in containers], machine.seconds)
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
        part = machine.run(libraries, "sms", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25", **environment)["sms"]
    return whole / 4 - 4 <= part <= whole / 4 + 4, {"multiprocessors": part, "of": whole}


CHECKS: dict[str, Callable[[Machine], Outcome]] = {
    "context": check_context,
    "driver": check_driver,
    "fork": check_fork,
    "exports": check_exports,
    "pools": check_pools,
    "contexts": check_contexts,
    "folder": check_folder,
    "time": check_time,
    "replays": check_replays,
    "cost": check_cost,
    "view": check_view,
    "torch": check_torch,
    "processes": check_processes,
    "shares": check_shares,
    "graphs": check_graphs,
    "jax": check_jax,
    "mps": check_mps,
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
