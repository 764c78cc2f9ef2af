#!/usr/bin/env python3
"""Build the fGPU libraries on this host: `build_fgpu.py PATH DRIVER VERSION`, the sources as JSON on stdin.

The tree is made beside PATH, checked with the real driver behind it, and then the symbolic link PATH is pointed at it.
Containers that already run keep the tree that they were started with; trees that no process has mounted any more are
removed. DRIVER is the directory in which the proxies look for the driver's own libraries. Written for Python 3.9.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


class FgpuBuildError(Exception):
    """The fGPU libraries could not be built, or do not work on this host."""


class SymbolInfo(ctypes.Structure):
    """What dladdr fills in."""

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
        # Whatever umask this runs under; programs are those in bin.
        file.chmod(0o755 if file.is_dir() or file.parent.name == "bin" else 0o644)
    return tree


def check(tree: Path, driver: Path) -> None:
    """Load the proxies as a program would, and see that exactly their own functions come before the driver's."""
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
    """Those that a library exports."""
    return set(re.findall(r"(?m)^\S* ?[TW] ([^\s@]+)", output_of("nm", "--dynamic", "--defined-only", str(library))))


def origin(library: ctypes.CDLL, function: str) -> Path:
    found = SymbolInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(getattr(library, function), ctypes.c_void_p), ctypes.byref(found))
    return Path(os.fsdecode(found.file)).resolve()


def build(path: Path, driver: Path, version: str, sources: dict[str, str]) -> None:
    if path.is_dir() and not path.is_symlink():
        try:
            path.rmdir()  # an engine makes an empty directory where a bind mount's source is missing
        except OSError as error:
            raise FgpuBuildError(f"{path} was not made by this role; move it away") from error
    trees = path.with_name(path.name + "-versions")
    trees.mkdir(parents=True, exist_ok=True)
    with (trees / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Beside its final place: a rename must not cross file systems.
        work = Path(tempfile.mkdtemp(prefix=".building-", dir=str(trees)))
        try:
            tree = make_tree(work, sources, str(driver), version)
            check(tree, driver)
            final = trees / version
            if not final.exists():
                tree.rename(final)
        finally:
            shutil.rmtree(str(work), ignore_errors=True)
        point(path, final)
        remove_unused(trees, final.name)


def point(link: Path, tree: Path) -> None:
    """Let `link` point at `tree`, atomically."""
    new = tree.parent / ".link"
    new.unlink(missing_ok=True)
    new.symlink_to(Path(tree.parent.name) / tree.name)
    new.replace(link)


def remove_unused(trees: Path, current: str) -> None:
    """Remove older trees, except those of which some container has a part mounted, and what a killed build left."""
    mounted = set()
    for mountinfo in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            for line in mountinfo.read_text().splitlines():
                mounted.update(line.split(" ")[3].split("/"))
        except OSError:
            continue  # the process has ended meanwhile
    for tree in trees.iterdir():
        if tree.is_dir() and tree.name != current and tree.name not in mounted:
            shutil.rmtree(str(tree))


def main() -> None:
    path, driver, version = sys.argv[1:]
    try:
        build(Path(path), Path(driver), version, json.load(sys.stdin))
    except FgpuBuildError as error:
        sys.exit(f"fGPU libraries: {error}")


main()
