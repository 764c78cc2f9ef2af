"""Where an engine keeps images: in a storage driver's directory of its own, or in containerd's store.

Engines use containerd's store by default since Docker 29. The engine's data directory then has containers' records and
volumes only; images and containers' layers are in containerd's directory, which may be on another disk.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

# A field of the engine's status if its images are in containerd's store, which the engine says in no other way.
_DRIVER_TYPE = "driver-type"
# Of this socket an engine asks whether a containerd runs that is not its own.
_SOCKET = "run/containerd/containerd.sock"
_CONFIGURATION = "etc/containerd/config.toml"
_DIRECTORY = "var/lib/containerd"
_ROOT = re.compile(r"""^root\s*=\s*(["'])/(.+?)\1""", re.MULTILINE)


def is_containerds(info: dict[str, Any]) -> bool:
    """Return whether the engine keeps images in containerd's store, by what it says of itself."""
    return _DRIVER_TYPE in {entry[0] for entry in info.get("DriverStatus") or ()}


def fullest_directory(info: dict[str, Any], host: Path = Path("/")) -> str:
    """Return that of the engine's directories whose disk has the least room. `host` is the root of the host's files."""
    directories = [info["DockerRootDir"], *_containerds_directory(info, host)]
    return min(directories, key=lambda path: os.statvfs(path).f_bavail * os.statvfs(path).f_frsize)


def _containerds_directory(info: dict[str, Any], host: Path) -> list[str]:
    if not is_containerds(info) or not (host / _SOCKET).exists():
        return []
    try:
        root = _ROOT.search((host / _CONFIGURATION).read_text("utf-8", "replace"))
    except OSError:
        root = None
    directory = host / (root.group(2) if root else _DIRECTORY)
    return [str(directory)] if directory.is_dir() else []
