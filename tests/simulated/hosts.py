"""Hosts as agents report them: made of a few facts, with nothing running on them."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from muster.core.images.names import familiar

IMAGES = ("busybox:latest", "debian:12", "muster/default:latest", "registry.example:5000/team/image:1")


def report_of(
    hostname: str = "host-1",
    cpus: int = 8,
    mem_bytes: int = 16 << 30,
    gpus: int = 0,
    swarm: str = "",
    gpu_models: Sequence[str] = ("T",),
    numa_nodes: int = 0,
    encrypts: bool = False,
) -> dict[str, Any]:
    """Return the report of a host on which nothing runs, as it comes over the wire.

    `swarm` is manager, worker or, outside one, empty. Its GPUs are of the models in turn. They, the cores and the
    memory are spread evenly over the NUMA nodes.
    """
    nodes = max(1, numa_nodes)
    return {
        "version": 1,
        "hostname": hostname,
        "boot_id": "boot-1",
        "uptime_s": 3600.0,
        "os": "Debian GNU/Linux 12 (bookworm)",
        "kernel": "6.1.0",
        "architecture": "x86_64",
        "cpu_count": cpus,
        "numa": [
            {
                "node": node,
                "cpus": f"{cpus * node // nodes}-{cpus * (node + 1) // nodes - 1}",
                "mem_bytes": mem_bytes // nodes,
            }
            for node in range(numa_nodes)
        ],
        "mem_bytes": mem_bytes,
        "mem_available_bytes": mem_bytes,
        "disk": {"path": "/var/lib/docker", "total_bytes": 1, "free_bytes": 1},
        "docker": {
            "version": "20.10.24",
            "api_version": "1.41",
            "storage_driver": "overlay2",
            "cgroup_version": "1",
            "remapped_ids": None,
        },
        "gpus": [
            {
                "index": index,
                "uuid": f"GPU-{hostname}-{index}",
                "model": gpu_models[index % len(gpu_models)],
                "mem_bytes": 1 << 30,
                "numa_node": index * nodes // gpus,
                "mem_used_bytes": 0,
                "parent_uuid": None,
                "mig_profile": None,
                "fraction": None,
                "context_bytes": None,
                "address": f"0000:{index + 1:02x}:00.0",
            }
            for index in range(gpus)
        ],
        "gpu_health": [healthy_gpu(hostname, index) for index in range(gpus)],
        "runtime": "1",
        "fgpu": "1" if gpus else None,
        "gpu_toolkit": "1.17.8" if gpus else None,
        "gpu_cdi": None,
        "gpu_unlinked": [],
        "images": [{"id": f"sha256:{tag}", "tags": [tag], "size_bytes": 1} for tag in IMAGES],
        "swarm": {
            "state": "active" if swarm else "inactive",
            "node_id": f"node-{hostname}" if swarm else None,
            "manager": swarm == "manager",
            "encrypts": encrypts,
        },
        "generation": 0,
        "generation_before": None,
        "database": None,
        "kernels": [],
        "networks": [],
        "spools": [],
        "files": [],
        "vanished": [],
        "leftovers": None,
        "directories": None,
    }


def holds_image(hardware: Mapping[str, Any], reference: str) -> bool:
    """Return whether a host with these facts holds the image, by its id or one of its tags."""
    held = {name for image in hardware["images"] for name in (image["id"], *image["tags"])}
    return bool(held & {reference, familiar(reference)})


def healthy_gpu(hostname: str, index: int) -> dict[str, Any]:
    """Return the health of a GPU that has no symptoms, as it comes over the wire."""
    return {
        "index": index,
        "uuid": f"GPU-{hostname}-{index}",
        "address": f"0000:{index + 1:02x}:00.0",
        "problem": "",
        "xids": [],
        "ecc_errors": 0,
        "remap_failed": False,
        "remap_pending": False,
        "throttled": [],
        "recovery": None,
        "strangers": [],
    }


_HARDWARE = frozenset(inspect.signature(report_of).parameters)


def host_of(hostname: str = "host-1", **facts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a host's report and its inventory attributes: those of `facts` that `report_of` does not take."""
    stated = {name: value for name, value in facts.items() if name not in _HARDWARE}
    inventory = {"resource_group": "default", "units_per_gpu": 0, "connection": "local", **stated}
    return report_of(hostname, **{name: value for name, value in facts.items() if name in _HARDWARE}), inventory
