#!/usr/bin/env python3
"""Build the fGPU libraries on this host: `build_fgpu.py PATH DRIVER VERSION`, the sources as JSON on stdin.

The tree is built beside PATH, checked with the real driver behind it, and its path is printed. Its file CONTEXTS says
what a context costs on each GPU of this host. The module versioned_tree then switches over to it. DRIVER is the
directory in which the proxies look for the driver's libraries, whose names there begin with `real-`.
Written for Python 3.9.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

from muster_agent.gpus.nvml_library import Nvml, NvmlError
from muster_agent.gpus.nvml_processes import processes_on
from muster_agent.versioned_trees import new_tree

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


class FgpuBuildError(Exception):
    """The fGPU libraries could not be built, or do not work on this host."""


class SymbolInfo(ctypes.Structure):
    """The structure that dladdr fills in."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def output_of(*command: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise FgpuBuildError("{} failed: {}".format(" ".join(command[:2]), reason))
    return done.stdout.decode(errors="replace")


def make_tree(work: Path, sources: dict[str, str], driver: str, version: str) -> Path:
    native, tree = work / "native", work / "tree"
    for name, text in sources.items():
        file = native / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    output_of("make", "--directory", str(native), f"OUT={tree}", f"DRIVER_DIR={driver}")
    shutil.rmtree(str(tree / "objects"))
    (tree / "VERSION").write_text(f"{version}\n")
    for file in (tree, *tree.rglob("*")):
        # Set the modes whatever the umask; the files in bin are programs.
        file.chmod(0o755 if file.is_dir() or file.parent.name == "bin" else 0o644)
    return tree


def check(tree: Path, driver: Path) -> None:
    """Load the proxies as a program would. Raises FgpuBuildError unless just their functions replace the driver's."""
    for name in LIBRARIES:
        proxy = tree / "lib" / name
        try:
            library = ctypes.CDLL(str(proxy))
        except OSError as error:
            raise FgpuBuildError(f"{name} does not load with the driver behind it: {error}") from error
        real = driver / f"real-{name}"
        hooks, others = functions(proxy), functions(real)
        for function in sorted(hooks | others):
            expected = proxy if function in hooks else real
            if origin(library, function) != expected.resolve():
                raise FgpuBuildError(f"{name}: {function} is found in {origin(library, function)}, not in {expected}")


def functions(library: Path) -> set[str]:
    """Return the functions that a library exports."""
    return set(re.findall(r"(?m)^\S* ?[TW] ([^\s@]+)", output_of("nm", "--dynamic", "--defined-only", str(library))))


def origin(library: ctypes.CDLL, function: str) -> Path:
    found = SymbolInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(getattr(library, function), ctypes.c_void_p), ctypes.byref(found))
    return Path(os.fsdecode(found.file)).resolve()


def context_costs(driver: Path) -> dict[str, int]:
    """Return what a context costs on each GPU, by UUID, as NVML counts it.

    Left out are GPUs that give this process no context, and all GPUs of a driver that does not count by process.
    """
    of_cuda, of_nvml = (str(driver / f"real-{name}") for name in LIBRARIES)
    cuda, count = ctypes.CDLL(of_cuda), ctypes.c_int()
    costs: dict[str, int] = {}
    try:
        nvml = Nvml(of_nvml)
    except NvmlError:
        return {}
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return {}
    for ordinal in range(count.value):
        device, context, uuid = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal) or cuda.cuDeviceGetUuid(uuid, device):
            continue
        if cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
            name = f"GPU-{UUID(bytes=bytes(uuid))}"
            used = own_use(nvml, name)
            if used is not None:
                costs[name] = used
            cuda.cuDevicePrimaryCtxRelease_v2(device)
    return costs


def own_use(nvml: Nvml, uuid: str) -> int | None:
    """Return the GPU's memory that this process has; None if the driver does not say."""
    try:
        listed = processes_on(nvml, nvml.handle("nvmlDeviceGetHandleByUUID", uuid.encode()))
    except NvmlError:
        return None
    return next((used for pid, used in listed or () if pid == os.getpid()), None)


def build(path: Path, driver: Path, version: str, sources: dict[str, str]) -> Path:
    def fill(work: Path) -> Path:
        tree = make_tree(work, sources, str(driver), version)
        check(tree, driver)
        (tree / "CONTEXTS").write_text(json.dumps(context_costs(driver)) + "\n")
        (tree / "CONTEXTS").chmod(0o644)
        return tree

    return new_tree(path, fill)


def main() -> None:
    path, driver, version = sys.argv[1:]
    try:
        sys.stdout.write(str(build(Path(path), Path(driver), version, json.load(sys.stdin))))
    except FgpuBuildError as error:
        sys.exit(f"fGPU libraries: {error}")


main()
