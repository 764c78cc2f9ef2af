"""What a kernel's container gets so that it reaches its GPUs, and of a shared one no more than its part."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import names
from ..folders.mounted import covers

if TYPE_CHECKING:
    from ..manifest import Kernel

_NVIDIA = "nvidia"
_CAPABILITIES = ["gpu", "compute", "utility"]
# Where NVIDIA's toolkit puts a driver's libraries and where loaders look. Whether an image has the directory does not
# matter: the toolkit makes the one that it wants.
_LIBRARY_DIRECTORIES = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
# CUDA's images bring a libcuda of their own here, which their loader finds first.
_COMPAT_DIRECTORY = "/usr/local/cuda/compat"


class Bind(NamedTuple):
    source: str
    target: str
    read_only: bool


def device_request(devices: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's request for a kernel's devices."""
    request = {"Driver": devices["driver"], "DeviceIDs": devices["ids"]}
    return {**request, "Capabilities": [_CAPABILITIES]} if devices["driver"] == _NVIDIA else request


def visible_devices(access: dict[str, Any] | None) -> list[str]:
    """Return what NVIDIA's runtime may give; what CDI names, the engine itself gives, and it must not come twice."""
    devices = access["devices"] if access else None
    return devices["ids"] if devices and devices["driver"] == _NVIDIA else []


def image_paths(access: dict[str, Any] | None) -> set[str]:
    """Return the paths of an image that decide how libraries are bound into its containers."""
    if access is None:
        return set()
    folders = set(_LIBRARY_DIRECTORIES) if access["libraries"] else set()
    return folders | {path for name in access["libraries"] for path in _paths_of(name)}


def links_in_the_way(access: dict[str, Any] | None, paths: dict[str, Any]) -> list[str]:
    """Return the image's symbolic links that bear a library's name; `paths` has the engine's stat of `image_paths`.

    A bind goes to where a link leads, and `ldconfig` would then turn the link to the driver's own library.
    """
    libraries = access["libraries"] if access else ()
    return [path for name in libraries for path in _paths_of(name) if (paths[path] or {}).get("linkTarget")]


def binds(cluster: str, session_id: str, kernel: Kernel, paths: dict[str, Any]) -> list[Bind]:
    """Return the mounts that a kernel's GPUs need; `paths` has the engine's stat of `image_paths`."""
    access = kernel.spec["gpu_access"]
    if access is None:
        return []
    mounts = [Bind(mount["source"], mount["target"], mount["read_only"]) for mount in access["mounts"]]
    users = [mount["target"] for mount in kernel.spec["mounts"]]
    for name, source in access["libraries"].items():
        mounts += [Bind(source, target, read_only=True) for target in _targets(name, paths, users)]
    state = names.FGPU_STATE_IN_CONTAINER
    if access["usage"]:
        usage = names.ClusterPaths(cluster).kernel_usage(session_id, kernel.name)
        mounts.append(Bind(str(usage), f"{state}/usage", read_only=False))
    for gpu_uuid in access["leases"]:
        lease = names.gpu_lease(gpu_uuid)
        mounts.append(Bind(str(lease), f"{state}/lease/{gpu_uuid}", read_only=False))
    return mounts


def missing_source(access: dict[str, Any] | None) -> str | None:
    """Return a file or directory that shall be bound and that this host lacks, or None."""
    if access is None:
        return None
    sources = [*access["libraries"].values(), *(mount["source"] for mount in access["mounts"])]
    return next((source for source in sources if not Path(source).exists()), None)


def driver_places(access: dict[str, Any] | None) -> list[str]:
    """Return where the kernel's libraries are bound over the driver's: no mount of the user may cover these places."""
    libraries = access["libraries"] if access else ()
    return [f"{folder}/{name}" for name in libraries for folder in _LIBRARY_DIRECTORIES]


def _paths_of(library: str) -> list[str]:
    return [f"{folder}/{library}" for folder in (*_LIBRARY_DIRECTORIES, _COMPAT_DIRECTORY)]


def _targets(library: str, paths: dict[str, Any], users: list[str]) -> list[str]:
    """Return where a library is bound: one place for directories that are the same by a link.

    A user may well mount another CUDA over the image's.
    """
    folders = {(paths[folder] or {}).get("linkTarget") or folder: None for folder in _LIBRARY_DIRECTORIES}
    targets = [f"{folder}/{library}" for folder in folders]
    compat = f"{_COMPAT_DIRECTORY}/{library}"
    if paths[compat] and not any(covers(target, compat) for target in users):
        targets.append(compat)
    return targets
