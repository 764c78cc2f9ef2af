#!/usr/bin/python3
"""What nvidia-container-runtime-hook is to runc, with the fake driver that lies beside this file.

As `hook prestart` it reads the OCI state of a container on its standard input, and gives the container the devices that
NVIDIA_VISIBLE_DEVICES of its configuration names: the driver's libraries under full version names, the state of the
devices, and the list of those that it may see, which no variable of the container's processes changes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

STATE = Path("@STATE@")
VISIBLE = Path("@VISIBLE@")
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
VERSION = "999.1"
INTO_MOUNTS = ("nsenter", "--mount", "--target")


def visible_devices(requested: str, devices: list[str]) -> list[str]:
    if requested == "all":
        return devices
    chosen = [
        devices[int(word)] if word.isdigit() and int(word) < len(devices) else word for word in requested.split(",")
    ]
    unknown = sorted(set(chosen) - set(devices))
    if unknown:
        sys.exit(f"fake hook: NVIDIA_VISIBLE_DEVICES: unknown device {unknown[0]}")
    return chosen


def library_directory(root: Path) -> str:
    """Return where the distribution in the image keeps its libraries."""
    machine = os.uname().machine
    for directory in (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64"):
        if (root / directory.lstrip("/")).is_dir():
            return directory
    return "/usr/lib"


def mount_script(root: Path, host_bin: Path, devices: list[str]) -> str:
    """Runs in the container's mount namespace, where the host's files are still seen under their own paths."""
    libraries = library_directory(root)
    state = f"{root}{STATE}"
    lines = [
        "set -e",
        f"mkdir -p '{root}{libraries}' '{root}{STATE.parent}'",
        f"mount -t tmpfs -o mode=755 tmpfs '{root}{STATE.parent}'",
    ]
    lines += [f"touch '{state}'", f"mount --bind '{STATE}' '{state}'", f"mkdir -p '{root}{VISIBLE.parent}'"]
    lines += [f"printf '%s\\n' {' '.join(devices)} > '{root}{VISIBLE}'"]
    for library in LIBRARIES:
        target = f"{root}{libraries}/{library}.{VERSION}"
        lines += [f"touch '{target}'", f"mount --bind '{host_bin / library}.1' '{target}'"]
        lines += [f"mount -o remount,bind,ro '{target}'"]
    # The image's own ldconfig is the container's; the host's, told of the root, makes the links and the cache.
    lines += [f"ldconfig -r '{root}'"]
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:] != ["prestart"]:
        return
    container = json.load(sys.stdin)
    bundle = Path(container["bundle"])
    config = json.loads((bundle / "config.json").read_text())
    environment = dict(entry.split("=", 1) for entry in config["process"].get("env", []) if "=" in entry)
    requested = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if requested in {"", "void", "none"}:
        return
    root = (bundle / config["root"]["path"]).resolve()
    host_bin = Path(__file__).resolve().parent
    status = subprocess.run([host_bin / "fakegpu", "status"], check=True, capture_output=True, text=True)
    devices = visible_devices(requested, [device["uuid"] for device in json.loads(status.stdout)["devices"]])
    script = mount_script(root, host_bin, devices)
    done = subprocess.run(
        [*INTO_MOUNTS, str(container["pid"]), "sh", "-c", script], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"fake hook: {done.stderr.strip()}")


main()
