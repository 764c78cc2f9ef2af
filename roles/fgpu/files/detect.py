#!/usr/bin/env python3
"""Find this host's NVIDIA driver, its GPUs and the container toolkit. Changes nothing.

Prints JSON: `driver` (its version) or `problem` (why there is none), `gpus`, `libraries` (path by name, as the host's
loader finds them), `toolkit` (the container toolkit's version), `hook`, `hook_is_newer` (than the running engine, which
looks for it only when it starts), `ctk` (the toolkit's program), `mps_control`, `systemd`, `machine`,
`built` (the version that is at PATH).
Written for Python 3.9. Usage: detect.py PATH
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from muster_agent.gpus.nvml_library import NAME, SUCCESS, Nvml, NvmlError
from muster_agent.process_age import pid_in, process_started_at

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# By the machine's name, as ldconfig names it: libraries of another architecture may be installed too.
ARCHITECTURES = {"x86_64": "x86-64", "aarch64": "AArch64"}


def driver() -> dict[str, object]:
    try:
        nvml = Nvml()
    except OSError:
        return {"driver": None, "problem": f"no NVIDIA driver answers ({NAME})", "gpus": []}
    except NvmlError as error:
        return {"driver": None, "problem": f"the NVIDIA driver does not answer ({error.reason})", "gpus": []}
    try:
        gpus = [gpu(nvml, index) for index in range(nvml.count())]
        return {"driver": text(nvml, "nvmlSystemGetDriverVersion"), "problem": None, "gpus": gpus}
    finally:
        nvml.close()


def gpu(nvml: Nvml, index: int) -> dict[str, object]:
    """Return a GPU's attributes. Old drivers and GPUs lack some of them, and a broken GPU lacks all."""
    device = ctypes.c_void_p()
    nvml.status("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
    compute_mode, major, minor, mig, pending = (ctypes.c_int() for _ in range(5))
    nvml.status("nvmlDeviceGetComputeMode", device, ctypes.byref(compute_mode))
    nvml.status("nvmlDeviceGetMigMode", device, ctypes.byref(mig), ctypes.byref(pending))
    capability = (device, ctypes.byref(major), ctypes.byref(minor))
    is_known = nvml.status("nvmlDeviceGetCudaComputeCapability", *capability) == SUCCESS
    return {
        "index": index,
        "uuid": text(nvml, "nvmlDeviceGetUUID", device),
        "model": text(nvml, "nvmlDeviceGetName", device),
        "compute_mode": ("default", "exclusive_thread", "prohibited", "exclusive_process")[compute_mode.value],
        "compute_capability": f"{major.value}.{minor.value}" if is_known else None,
        "mig": mig.value == 1,
    }


def text(nvml: Nvml, function: str, *arguments: object) -> str:
    """Return the text that a function of NVML returns; an empty one if it fails."""
    try:
        return nvml.text(function, *arguments)
    except NvmlError:
        return ""


def libraries() -> dict[str, str | None]:
    environment = {**os.environ, "PATH": SYSTEM_PATH}
    listing = subprocess.run(["ldconfig", "-p"], env=environment, stdout=subprocess.PIPE, check=True).stdout.decode()
    tag = ARCHITECTURES.get(platform.machine(), platform.machine())
    found: dict[str, str | None] = {}
    for name, kind, path in re.findall(r"^\s+(\S+) \(([^)]*)\) => (\S+)$", listing, re.MULTILINE):
        if tag in kind:
            found.setdefault(name, path)
    return {name: found.get(name) for name in LIBRARIES}


def hook() -> dict[str, object]:
    """Return where the engine finds the container toolkit's hook, and whether the hook is newer than the engine."""
    engine = pid_in("/var/run/docker.pid") or 0
    started_at = process_started_at(engine)
    path = SYSTEM_PATH
    if started_at is not None:
        variables = Path(f"/proc/{engine}/environ").read_bytes().decode(errors="replace").split("\0")
        path = next((line[5:] for line in variables if line.startswith("PATH=")), path)
    program = shutil.which("nvidia-container-runtime-hook", path=path)
    newer = started_at is not None and program is not None and Path(program).stat().st_ctime > started_at
    return {"hook": program, "hook_is_newer": newer}


def toolkit() -> str | None:
    """Return the container toolkit's version; None if it cannot be found out."""
    for name in ("nvidia-ctk", "nvidia-container-runtime-hook"):
        program = shutil.which(name, path=SYSTEM_PATH)
        if program is None:
            continue
        done = subprocess.run([program, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        found = re.search(r"\bversion:? v?(\d+(?:\.\d+){1,3})\b", done.stdout.decode(errors="replace"))
        if found:
            return found.group(1)
    return None


def built(path: Path) -> str | None:
    try:
        return path.joinpath("VERSION").read_text().split("\n")[0]
    except OSError:
        return None


def main() -> None:
    answer = {
        **driver(),
        "libraries": libraries(),
        "toolkit": toolkit(),
        **hook(),
        "ctk": shutil.which("nvidia-ctk", path=SYSTEM_PATH),
        "mps_control": shutil.which("nvidia-cuda-mps-control", path=SYSTEM_PATH),
        "systemd": Path("/run/systemd/system").is_dir(),
        "machine": platform.machine(),
        "built": built(Path(sys.argv[1])),
    }
    sys.stdout.write(json.dumps(answer))


main()
