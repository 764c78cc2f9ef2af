"""NVIDIA's device nodes, and the links by which systemd finds them.

Where systemd manages control groups, each `systemctl daemon-reload` writes a container's allowed devices anew: those
that the engine knows, by their links in /dev/char. Those that only the toolkit's hook has allowed are lost to a running
container, and so are those without a link.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC, _DEV = Path("/proc"), Path("/dev")
_OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_UUID = re.compile(r"^GPU UUID:\s*(\S+)$", re.MULTILINE)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)$", re.MULTILINE)


def nodes_of(uuids: Iterable[str], proc: Path = _PROC, dev: Path = _DEV) -> list[str]:
    """Return the nodes that a container with these GPUs needs; none where one of them is no whole GPU of this host."""
    minors = _minors(proc)
    desired = [minors.get(uuid) for uuid in uuids]
    if not desired or None in desired:
        return []
    paths = [dev / f"nvidia{minor}" for minor in sorted(minor for minor in desired if minor is not None)]
    return [str(path) for path in (*paths, *(dev / name for name in _OF_ALL)) if path.exists()]


def unlinked_nodes(dev: Path = _DEV) -> list[str]:
    """Return the nodes that systemd would not find."""
    found = [*dev.glob("nvidia*"), *dev.glob("nvidia-caps/nvidia-cap*")]
    return sorted(str(path) for path in found if (link := _link(path, dev)) is not None and not os.path.lexists(link))


def _link(path: Path, dev: Path) -> Path | None:
    """Return where systemd looks for a node; None for what is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return dev / "char" / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"


def _minors(proc: Path) -> dict[str, int]:
    """Return the minor number of each GPU's node by the GPU's UUID."""
    minors = {}
    for file in (proc / "driver/nvidia/gpus").glob("*/information"):
        text = file.read_text("ascii", "replace")
        uuid, minor = _UUID.search(text), _MINOR.search(text)
        if uuid and minor:
            minors[uuid[1]] = int(minor[1])
    return minors
