#!/usr/bin/env python3
"""Link NVIDIA's device nodes to where systemd looks for them: gpu_links.py [PROC DEV].

systemd finds the devices that a container may use by /dev/char/MAJOR:MINOR, which nobody makes for the nodes of
NVIDIA's driver. Without the links each `systemctl daemon-reload` takes the GPUs away from running containers. Links are
made for nodes that are not there yet too, since the driver makes some of them late. Prints each new link. Written for
Python 3.9.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_CONTROL = {255: "nvidiactl", 254: "nvidia-modeset"}
_UVM = {0: "nvidia-uvm", 1: "nvidia-uvm-tools"}
_MINOR = re.compile(r"^Device Minor:\s*(\d+)$", re.MULTILINE)
_CAPABILITY = re.compile(r"nvidia-cap(\d+)")


def links(proc: Path, dev: Path) -> dict[str, str]:
    """Return the name of each link in /dev/char, and where it leads."""
    majors: dict[str, int] = {}
    for line in (proc / "devices").read_text("ascii").splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit():
            majors.setdefault(words[1], int(words[0]))
    desired: dict[str, str] = {}
    frontend = majors.get("nvidia-frontend", majors.get("nvidia"))
    if frontend is not None:
        texts = [file.read_text("ascii", "replace") for file in (proc / "driver/nvidia/gpus").glob("*/information")]
        gpus = {int(found[1]): f"nvidia{found[1]}" for found in map(_MINOR.search, texts) if found}
        desired.update({f"{frontend}:{minor}": name for minor, name in {**gpus, **_CONTROL}.items()})
    if "nvidia-uvm" in majors:
        desired.update({f"{majors['nvidia-uvm']}:{minor}": name for minor, name in _UVM.items()})
    if "nvidia-caps" in majors:
        for path in (dev / "nvidia-caps").glob("nvidia-cap*"):
            found = _CAPABILITY.fullmatch(path.name)
            if found:
                desired[f"{majors['nvidia-caps']}:{found[1]}"] = f"nvidia-caps/{path.name}"
    return desired


def main() -> None:
    proc, dev = map(Path, sys.argv[1:] or ("/proc", "/dev"))
    (dev / "char").mkdir(exist_ok=True)
    for name, target in sorted(links(proc, dev).items()):
        link = dev / "char" / name
        if not os.path.lexists(link):
            link.symlink_to(f"../{target}")
            sys.stdout.write(f"{link} -> ../{target}\n")


if __name__ == "__main__":
    main()
