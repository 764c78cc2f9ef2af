"""What a host has and what runs on it (docs/agent-contract.md, "Report")."""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import agent_names, host_state, key_directory, nvml
from .agent_names import SeenContainer, SeenNetwork
from .engine_api import API_VERSION, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine_api import EngineApi

VERSION = 1
_NEVER = "0001-01-01T00:00:00Z"
_NODE = re.compile(r"node(\d+)")
_NODES = Path("/sys/devices/system/node")
_INSPECT_THREADS = 8


def gather_report(
    engine: EngineApi,
    cluster: str,
    runtime_path: str,
    attributes: dict[str, Any],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Return the report; `warn` is told what could not be read but does not keep the host from working."""
    cluster_label = agent_names.of_cluster(cluster)
    with ThreadPoolExecutor(_INSPECT_THREADS) as pool:
        info_read = pool.submit(engine.info)
        images_read = pool.submit(engine.images)
        networks_read = pool.submit(engine.networks, cluster_label)
        containers = [SeenContainer.from_list(entry) for entry in engine.containers(cluster_label)]
        kernels = list(
            pool.map(lambda seen: _kernel(engine, cluster, seen), (seen for seen in containers if seen.kernel_id))
        )
        info, images, networks = info_read.result(), images_read.result(), networks_read.result()
    try:
        gpus = nvml.gpus()
    except nvml.NvmlError as error:
        warn(str(error))
        gpus = []
    return {
        "version": VERSION,
        "hostname": socket.gethostname(),
        "boot_id": _first_line(Path("/proc/sys/kernel/random/boot_id")),
        "os": info["OperatingSystem"],
        "kernel": info["KernelVersion"],
        "architecture": info["Architecture"],
        "cpu_count": info["NCPU"],
        "numa": _numa(),
        "mem_bytes": info["MemTotal"],
        "mem_available_bytes": _meminfo(Path("/proc/meminfo"), "MemAvailable"),
        "disk": _disk(info["DockerRootDir"]),
        "docker": {
            "version": info["ServerVersion"],
            "api_version": API_VERSION,
            "storage_driver": info["Driver"],
            "cgroup_version": info.get("CgroupVersion", "1"),
        },
        "gpus": gpus,
        "runtime": _first_line(Path(runtime_path, "VERSION")),
        "images": [_image(image) for image in images],
        "generation": host_state.read_generation(cluster),
        "kernels": sorted(filter(None, kernels), key=lambda kernel: (kernel["session_id"], kernel["name"])),
        "networks": sorted(map(_network, networks), key=lambda network: network["name"]),
        "attributes": attributes,
    }


def session_times(state: dict[str, Any]) -> dict[str, Any]:
    """Return how a container's process fares, from the engine's `State`."""
    ended = state["Status"] in {"exited", "dead"}
    return {
        "exit_code": state["ExitCode"] if ended else None,
        "oom_killed": state["OOMKilled"],
        "started_at": _moment(state["StartedAt"]),
        "finished_at": _moment(state["FinishedAt"]) if ended else None,
    }


def _kernel(engine: EngineApi, cluster: str, seen: SeenContainer) -> dict[str, Any] | None:
    try:
        found = engine.container(seen.id)
    except EngineError as error:
        if error.status == 404:  # removed since the list was read
            return None
        raise
    port = f"{found['Config']['Labels'].get(agent_names.LABEL_SSHD_PORT)}/tcp"
    bindings = found["NetworkSettings"]["Ports"].get(port)
    addresses = [network["IPAddress"] for network in found["NetworkSettings"]["Networks"].values()]
    return {
        "kernel_id": seen.kernel_id,
        "session_id": seen.session_id,
        "name": seen.kernel_name,
        "generation": int(seen.generation),
        "container_id": seen.id,
        "state": found["State"]["Status"],
        **session_times(found["State"]),
        "released": key_directory.is_released(
            agent_names.ClusterPaths(cluster), seen.session_id, seen.kernel_name, seen.generation
        ),
        "address": next(filter(None, addresses), None),
        "ssh_port": int(bindings[0]["HostPort"]) if bindings else None,
    }


def _network(entry: dict[str, Any]) -> dict[str, str]:
    seen = SeenNetwork.from_list(entry)
    return {"name": seen.name, "session_id": seen.session_id}


def _image(image: dict[str, Any]) -> dict[str, Any]:
    tags = [tag for tag in image["RepoTags"] or [] if tag != "<none>:<none>"]
    return {"id": image["Id"], "tags": tags, "size_bytes": image["Size"]}


def _numa() -> list[dict[str, Any]]:
    if not _NODES.is_dir():
        return []
    nodes = sorted(int(match.group(1)) for match in (_NODE.fullmatch(path.name) for path in _NODES.iterdir()) if match)
    return [
        {
            "node": node,
            "cpus": _first_line(_NODES / f"node{node}" / "cpulist"),
            "mem_bytes": _meminfo(_NODES / f"node{node}" / "meminfo", "MemTotal"),
        }
        for node in nodes
    ]


def _meminfo(path: Path, name: str) -> int | None:
    found = re.search(rf"{name}:\s+(\d+) kB", path.read_text("ascii"))
    return int(found.group(1)) * 1024 if found else None


def _disk(path: str) -> dict[str, Any]:
    figures = os.statvfs(path)
    return {
        "path": path,
        "total_bytes": figures.f_blocks * figures.f_frsize,
        "free_bytes": figures.f_bavail * figures.f_frsize,
    }


def _first_line(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline().strip()
    except FileNotFoundError:
        return None


def _moment(engine_time: str) -> str | None:
    return None if engine_time == _NEVER else engine_time
