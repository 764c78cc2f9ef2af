#!/usr/bin/env python3
"""Build the fGPU libraries on this host: `build_fgpu.py PATH DRIVER VERSION`, the sources as JSON on stdin.

The tree is built beside PATH, checked with the real driver behind it, and its path is printed. The module
versioned_tree then switches over to it. DRIVER is the directory in which the proxies look for the driver's libraries.
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
        hooks, others = functions(proxy), functions(driver / name)
        for function in sorted(hooks | others):
            expected = proxy if function in hooks else driver / name
            if origin(library, function) != expected.resolve():
                raise FgpuBuildError(f"{name}: {function} is found in {origin(library, function)}, not in {expected}")


def functions(library: Path) -> set[str]:
    """Return the functions that a library exports."""
    return set(re.findall(r"(?m)^\S* ?[TW] ([^\s@]+)", output_of("nm", "--dynamic", "--defined-only", str(library))))


def origin(library: ctypes.CDLL, function: str) -> Path:
    found = SymbolInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(getattr(library, function), ctypes.c_void_p), ctypes.byref(found))
    return Path(os.fsdecode(found.file)).resolve()


def build(path: Path, driver: Path, version: str, sources: dict[str, str]) -> Path:
    def fill(work: Path) -> Path:
        tree = make_tree(work, sources, str(driver), version)
        check(tree, driver)
        return tree

    return new_tree(path, fill)


def main() -> None:
    path, driver, version = sys.argv[1:]
    try:
        sys.stdout.write(str(build(Path(path), Path(driver), version, json.load(sys.stdin))))
    except FgpuBuildError as error:
        sys.exit(f"fGPU libraries: {error}")


main()
