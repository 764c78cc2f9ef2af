#!/usr/bin/env python3
"""Write the specification by which the Docker engine gives GPUs to containers itself (CDI): gpu_cdi.py FILE KIND.

NVIDIA's toolkit knows the host's GPUs and its driver's files, but its own specification gives a container all of these.
Here are those for computing and for looking at GPUs: what graphics and video libraries take of a GPU's memory is not
counted against a container's share. Prints the file's name if it was changed. Written for Python 3.9.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# As NVIDIA's toolkit divides a driver's files: its capabilities `compute` and `utility`. What is not here is left out.
LIBRARIES = {
    "libcuda",
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nscq",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-opencl",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-sandboxutils",
    "libnvidia-tileiras",
}
PROGRAMS = {
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
}
FIRMWARE = re.compile(r"gsp\w*\.bin")
NODES = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-caps/nvidia-cap\d+|-caps-imex-channels/channel\d+)")
# The toolkit's hook that puts an image's own libcuda before the driver's is not here.
HOOKS = {"create-symlinks", "disable-device-node-modification", "update-ldcache"}
DEVICES = ("GPU-", "MIG-")


class CdiError(Exception):
    """The specification cannot be written."""


def toolkits_specification(kind: str) -> dict[str, Any]:
    vendor, _, kind_class = kind.partition("/")
    names = [f"--vendor={vendor}", f"--class={kind_class}", "--device-name-strategy=uuid"]
    command = ["nvidia-ctk", "cdi", "generate", "--format=json", *names]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PATH": SYSTEM_PATH},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise CdiError(f"nvidia-ctk cannot be started: {error.strerror}") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise CdiError(f"nvidia-ctk cdi generate failed: {lines[-1]}")
    try:
        return dict(json.loads(done.stdout))
    except ValueError as error:
        raise CdiError(f"nvidia-ctk cdi generate gives no JSON: {error}") from error


def is_for_computing(path: str) -> bool:
    name = Path(path).name
    return name.partition(".so")[0] in LIBRARIES or name in PROGRAMS or FIRMWARE.fullmatch(name) is not None


def of_computing(edits: dict[str, Any]) -> dict[str, Any]:
    """Return what a specification does to a container, without what is not for computing."""
    kept = dict(edits)
    lists = {
        "deviceNodes": [node for node in edits.get("deviceNodes") or [] if NODES.fullmatch(node["path"])],
        "mounts": [mount for mount in edits.get("mounts") or [] if is_for_computing(mount["containerPath"])],
        "hooks": [hook for hook in map(hook_of_computing, edits.get("hooks") or []) if hook],
    }
    for name, entries in lists.items():
        kept.pop(name, None)
        if entries:
            kept[name] = entries
    return kept


def hook_of_computing(hook: dict[str, Any]) -> dict[str, Any] | None:
    """Return a hook without links to what is left out; None for one that is not needed."""
    arguments = hook.get("args") or []
    command = next((word for word in arguments if word in HOOKS), None)
    if command != "create-symlinks":
        return hook if command else None
    links = [arguments[at + 1] for at, word in enumerate(arguments[:-1]) if word == "--link"]
    # As TARGET::LINK.
    links = [link for link in links if is_for_computing(link.rpartition("::")[2])]
    before = arguments[: arguments.index(command) + 1]
    return {**hook, "args": [*before, *(word for link in links for word in ("--link", link))]} if links else None


def specification(kind: str) -> dict[str, Any]:
    spec = toolkits_specification(kind)
    devices = [
        {**device, "containerEdits": of_computing(device.get("containerEdits") or {})}
        for device in spec.get("devices") or []
        if device["name"].startswith(DEVICES)
    ]
    if not devices:
        raise CdiError("nvidia-ctk names no GPU")
    return {**spec, "devices": devices, "containerEdits": of_computing(spec.get("containerEdits") or {})}


def main() -> None:
    file, kind = Path(sys.argv[1]), sys.argv[2]
    try:
        text = json.dumps(specification(kind), indent=1, sort_keys=True) + "\n"
    except CdiError as error:
        sys.exit(f"CDI: {error}")
    if file.exists() and file.read_text() == text:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    # The engine reads all of the folder's files that end with .json.
    written = file.with_suffix(".new")
    written.write_text(text)
    written.chmod(0o644)
    written.replace(file)
    sys.stdout.write(f"{file}\n")


if __name__ == "__main__":
    main()
