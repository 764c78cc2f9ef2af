"""What a host has and what runs on it (docs/agent-contract.md, "Report")."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import host_state, mapped_mounts, names
from ..engine import overlay_networks
from ..engine.api import DESCRIPTION_PATIENCE_S, EngineError, EngineSilentError
from ..engine.id_mapping import id_mapping
from ..engine.image_store import fullest_directory
from ..engine.kernel_cgroup import Place
from ..folders.plain import plain_directories
from ..gpus import cdi, device_nodes, memory_limits, toolkit
from ..gpus.gpu_report import (
    GpuReading,
    context_costs,
    percent_by_container,
    processes_by_container,
    strangers,
    sum_of_known,
    uncapped_processes,
)
from ..launch import end_signals, key_directory, last_words, notices
from ..names import SeenContainer, SeenNetwork
from ..uptime import uptime_s
from . import app_health, disk_use, kernel_usage, numa
from .process_times import NEVER, session_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.api import EngineApi

VERSION = 1
_INSPECT_THREADS = 8
_LEAST_PATIENCE_S = 1
_AT_WORK = "it is at work on it, or a driver of its volumes, logs or GPUs hangs (docker inspect hangs likewise)"
_EXITED = re.compile(r"Exited \((\d+)\)")


def gather_report(
    engine: EngineApi,
    cluster: str,
    runtime_path: str,
    warn: Callable[[str], None],
    leftovers: list[dict[str, str]] | None = None,
    folders_root: str | None = None,
    generation_before: int | None = None,
) -> dict[str, Any]:
    """Return the report. `warn` is called with what could not be read, if the host can work without it.

    `leftovers` and `generation_before` are of the run of `converge` before it, None without one. `directories` are
    those of `folders_root`, None without it.
    """
    reading = GpuReading()
    cluster_label = names.of_cluster(cluster)
    with ThreadPoolExecutor(_INSPECT_THREADS) as pool:
        info_read = pool.submit(engine.facts)
        images_read = pool.submit(engine.images)
        networks_read = pool.submit(engine.networks, cluster_label)
        # Before the containers: what is released then, and in no list, is gone. A launch releases what is there.
        keys = key_directory.kernels_with_keys(names.ClusterPaths(cluster))
        entries = engine.containers(cluster_label)
        give_up_at = time.monotonic() + DESCRIPTION_PATIENCE_S
        kernel_entries = (entry for entry in entries if entry["Labels"].get(names.LABEL_KERNEL))
        found = pool.map(lambda entry: _kernel(engine, cluster, entry, give_up_at), kernel_entries)
        kernels = [kernel for kernel in found if kernel]
        info, images, networks = info_read.result(), images_read.result(), networks_read.result()
    for kernel in kernels:
        if not kernel.pop("described"):
            name = names.container_name(kernel["session_id"], kernel["name"])
            warn(f"the engine does not describe {name}, which is reported by the engine's list: {_AT_WORK}")
    disk_use.forget_others(names.ClusterPaths(cluster), {entry["Id"] for entry in entries})
    # With the pool's threads gone, this process may fork.
    app_health.probe_all(kernels, id_mapping(info))
    swarm = overlay_networks.swarm_of(info)
    answers = reading.result(warn)
    processes = processes_by_container(answers, [kernel["container_id"] for kernel in kernels])
    busy = percent_by_container(answers, [kernel["container_id"] for kernel in kernels])
    of_nobody = strangers(answers, _of_all_clusters(engine)) if any(answers.processes.values()) else {}
    tree = Path(names.FGPU_PATH)
    uncapped = uncapped_processes(answers, kernels, tree, lambda: GpuReading().result(warn))
    costs = context_costs(tree)
    shares = memory_limits.shares_of(kernels) if answers.memory_limits else []
    enforced = memory_limits.enforced(shares, warn)
    for gpu in answers.gpus:
        gpu["context_bytes"] = costs.get(gpu["parent_uuid"] or gpu["uuid"])
    for health in answers.health:
        health["strangers"] = of_nobody.get(health["uuid"], [])
    for kernel in kernels:
        parts = [busy.get(gpu["uuid"], {}).get(kernel["container_id"]) for gpu in kernel["gpus"]]
        known = [part for part in parts if part is not None]
        kernel["use"]["gpu_percent"] = sum(known) if parts and len(known) == len(parts) else None
        for gpu in kernel["gpus"]:
            used = processes.get(gpu["uuid"], {}).get(kernel["container_id"])
            gpu["used_bytes"] = sum_of_known(used)
            gpu["processes"] = None if used is None else len(used)
            gpu["enforced_bytes"] = enforced.get((kernel["container_id"], gpu["uuid"]))
        del kernel["pid"]
        kernel["uncapped"] = uncapped.get(kernel["container_id"], [])
    return {
        "version": VERSION,
        "hostname": socket.gethostname(),
        "boot_id": _first_line(Path("/proc/sys/kernel/random/boot_id")),
        "uptime_s": uptime_s(),
        "os": info["OperatingSystem"],
        "kernel": info["KernelVersion"],
        "architecture": info["Architecture"],
        "cpu_count": info["NCPU"],
        "numa": numa.numa_nodes(),
        "mem_bytes": info["MemTotal"],
        "mem_available_bytes": _meminfo(Path("/proc/meminfo"), "MemAvailable"),
        "disk": _disk(fullest_directory(info)),
        "docker": {
            "version": info["ServerVersion"],
            "api_version": engine.version,
            "storage_driver": info["Driver"],
            "cgroup_version": info.get("CgroupVersion", "1"),
            "remapped_ids": _remapped_ids(info),
        },
        "swarm": {**swarm, "encrypts": swarm["state"] == overlay_networks.ACTIVE and overlay_networks.can_encrypt()},
        "gpus": answers.gpus,
        "gpu_health": answers.health,
        "runtime": _first_line(Path(runtime_path, "VERSION")),
        "fgpu": _first_line(Path(names.FGPU_PATH, "VERSION")),
        "gpu_toolkit": toolkit.version() if answers.gpus else None,
        "gpu_cdi": cdi.offered_gpus(info) if answers.gpus else None,
        "gpu_unlinked": device_nodes.unlinked_nodes() if info.get("CgroupDriver") == "systemd" else [],
        # The engine lists them in another order each time, and a report that differs is decided by anew.
        "images": sorted((_image(image) for image in images), key=lambda image: image["id"]),
        "generation": host_state.read_generation(cluster),
        "generation_before": generation_before,
        "database": host_state.read_database(cluster),
        "kernels": sorted(kernels, key=lambda kernel: (kernel["session_id"], kernel["name"])),
        "networks": _networks(networks, is_manager=swarm["manager"]),
        "spools": sorted(last_words.spooled_sessions(cluster)),
        "files": key_directory.sessions_with_keys(names.ClusterPaths(cluster)),
        "vanished": _vanished(keys, [SeenContainer.from_list(entry) for entry in entries]),
        "leftovers": leftovers,
        "directories": plain_directories(folders_root) if folders_root else None,
    }


def _of_all_clusters(engine: EngineApi) -> list[str]:
    """Return the ids of all clusters' containers: several may share a host."""
    return [entry["Id"] for entry in engine.containers(names.LABEL_CLUSTER)]


def _kernel(engine: EngineApi, cluster: str, entry: dict[str, Any], give_up_at: float) -> dict[str, Any] | None:
    seen, is_described = SeenContainer.from_list(entry), True
    try:
        found = engine.container(seen.id, max(_LEAST_PATIENCE_S, give_up_at - time.monotonic()))
    except EngineSilentError:
        # The others of this host are reported all the same.
        found, is_described = _as_description(entry), False
    except EngineError as error:
        if error.status == 404:  # removed since the list was read
            return None
        raise
    labels = found["Config"]["Labels"]
    port = f"{labels.get(names.LABEL_SSHD_PORT)}/tcp"
    bindings = (found["NetworkSettings"]["Ports"] or {}).get(port)
    keys = names.ClusterPaths(cluster).kernel_keys(seen.session_id, seen.kernel_name)
    sent = end_signals.read_sent(keys)
    place = Place(cluster, seen.session_id, seen.generation, seen.kernel_name)
    addresses = [network["IPAddress"] for network in found["NetworkSettings"]["Networks"].values()]
    times = session_times(found["State"])
    if found["State"]["Status"] == "running":
        times["oom_killed"] = times["oom_killed"] or kernel_usage.ran_out_of_memory(place)
    return {
        "kernel_id": seen.kernel_id,
        "session_id": seen.session_id,
        "name": seen.kernel_name,
        "generation": int(seen.generation),
        "container_id": seen.id,
        "described": is_described,
        "pid": found["State"]["Pid"],
        "state": found["State"]["Status"],
        **times,
        "released": key_directory.released_generation(keys) == seen.generation,
        "public_key": labels.get(names.LABEL_PUBLIC_KEY),
        "address": next(filter(None, addresses), None),
        "ssh_port": int(bindings[0]["HostPort"]) if bindings else None,
        # An earlier version wrote no amounts, or not of how much.
        "gpus": [{"amount": None, "capacity": None, **gpu} for gpu in json.loads(labels.get(names.LABEL_GPUS, "[]"))],
        "apps": app_health.probe_of(found),
        "use": kernel_usage.kernel_use(place, found["State"]["Pid"]),
        "disk_bytes": disk_use.disk_use(names.ClusterPaths(cluster), found),
        "notice": notices.read_notice(keys) or None,
        "signals": sent.times,
        "signal_receivers": sent.receivers,
    }


def _vanished(keys: dict[str, dict[str, str]], containers: list[SeenContainer]) -> list[dict[str, Any]]:
    """Return the kernels that were released and have no container: others removed it, or a stop is at work on it."""
    there = {(seen.session_id, seen.kernel_name, seen.generation) for seen in containers}
    return [
        {"session_id": session_id, "name": name, "generation": int(generation)}
        for session_id, kernels in sorted(keys.items())
        for name, generation in sorted(kernels.items())
        if generation.isdigit() and (session_id, name, generation) not in there
    ]


def _as_description(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the engine's list's entry of a container in the form of a description. What it does not say is unknown."""
    ended = _EXITED.match(entry["Status"])
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in entry["Ports"] or ():
        if "PublicPort" in port:
            bound = {"HostPort": str(port["PublicPort"])}
            bindings.setdefault(f"{port['PrivatePort']}/{port['Type']}", []).append(bound)
    return {
        "Id": entry["Id"],
        "Config": {"Labels": entry["Labels"]},
        "State": {
            "Status": entry["State"],
            "Pid": 0,
            "ExitCode": int(ended.group(1)) if ended else None,
            "OOMKilled": False,
            "StartedAt": NEVER,
            "FinishedAt": NEVER,
        },
        "NetworkSettings": {"Ports": bindings, "Networks": entry["NetworkSettings"]["Networks"]},
        "Mounts": [],
        "HostConfig": {},
    }


def _remapped_ids(info: dict[str, Any]) -> dict[str, Any] | None:
    mapping = id_mapping(info)
    if mapping is None:
        return None
    return {"uids": mapping.uid_count, "gids": mapping.gid_count, "mounts": mapped_mounts.are_supported()}


def _networks(entries: list[dict[str, Any]], *, is_manager: bool) -> list[dict[str, Any]]:
    """Return the sessions' networks that this host can remove: a worker sees overlays that only a manager may."""
    seen = [SeenNetwork.from_list(entry) for entry in entries]
    return [
        {
            "name": network.name,
            "session_id": network.session_id,
            "driver": network.driver,
            "generation": int(network.generation or 0),
        }
        for network in sorted(seen, key=lambda network: network.name)
        if not names.is_lent(network.name) and (is_manager or network.driver != names.OVERLAY)
    ]


def _image(image: dict[str, Any]) -> dict[str, Any]:
    tags = [tag for tag in image["RepoTags"] or [] if tag != "<none>:<none>"]
    return {"id": image["Id"], "tags": sorted(tags), "size_bytes": image["Size"]}


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
