"""The GPU of a check: containers with shares of it, and the workloads that run in them."""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
HERE = Path(__file__).parent
OF_FRAMEWORKS = {"fill", "cupy", "hold", "matmul", "jax", "sms"}
WORKLOADS = {False: HERE / "driver_workloads.py", True: HERE / "framework_workloads.py"}
MIB = 1 << 20
GRAIN = 2 * MIB
CONTEXT_BYTES = 300 * MIB
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# The folder of one container, as the libraries are built; a real one has a name of that length.
TEMPORARY, RANDOM = "/tmp/muster-fgpu-", 8
PLACE = f"{TEMPORARY}{'#' * RANDOM}/##"

# Whether the check passed, and its figures.
Outcome = tuple[bool, dict[str, Any]]


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

    def container(
        self, share: float, compute: str = "fair", *, limit: float | None = None, best_effort: bool = False
    ) -> Path:
        """Create the libraries of a container with this share: its own limits and usage, the GPU's one lease."""
        name = f"{share}-{compute}-{limit}-{best_effort}"
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
                *(["class best-effort"] if best_effort else []),
                f"gpu {self.uuid} {self.cap(share)} {int(share * 1000)}" + (f" {int(limit * 1000)}" if limit else ""),
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
        process = subprocess.Popen(
            command_of(*words),
            env=self.environment(libraries, **more),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.processes.append(process)
        return process

    def run(self, libraries: Path | None, *words: str, **more: str) -> dict[str, Any]:
        return result_of(self.start(libraries, *words, **more))

    def together(self, processes: list[subprocess.Popen[str]], seconds: float) -> list[dict[str, Any]]:
        """Let workloads begin at one instant, once all of them are ready; return their results."""
        for process in processes:
            line_of(process)
        began = time.monotonic() + 0.5
        for process in processes:
            if process.stdin:
                process.stdin.write(f"{began} {began + seconds}\n")
                process.stdin.flush()
        return [result_of(process) for process in processes]


def command_of(*words: str) -> list[str]:
    return [sys.executable, str(WORKLOADS[words[0] in OF_FRAMEWORKS]), *words]


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


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next line of a workload's output."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"a workload ended with {process.wait()}; its error stands above")
    return dict(json.loads(line))


def need(*modules: str) -> None:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SkippedError(f"this Python has no {missing[0]}")


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
