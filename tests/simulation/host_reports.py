"""What simulated hosts say: their reports, and the last words of kernels."""

import base64
import gzip
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.modules.agent_code import agent_names
from tests.simulation.containers import Container, Network

if TYPE_CHECKING:
    from tests.simulation.hosts import Host

_EPOCH = 1_763_724_000


def report(host: "Host", leftovers: list[str] | None) -> dict[str, Any]:
    """Return the host's report. `leftovers` are those of the run that it ends; None where that removes nothing."""
    left = None if leftovers is None else [{"name": what, "error": "it is busy"} for what in leftovers]
    return {
        **host.hardware,
        "leftovers": left,
        "boot_id": f"boot-{host.boots}",
        "uptime_s": host.uptime_s,
        "generation": host.generation,
        "generation_before": None,
        "database": host.database,
        "spools": sorted(host.spool),
        "files": sorted(host.keys),
        "vanished": [
            {"session_id": session_id, "name": name, "generation": generation}
            for session_id, kernels in host.keys.items()
            for name, generation in kernels.items()
            if generation and (session_id, name) not in host.containers
        ],
        "kernels": [_seen(host, container) for container in host.containers.values()],
        "networks": [
            {"name": n.name, "session_id": n.session_id, "driver": n.driver, "generation": n.generation}
            for n in networks(host)
            if not agent_names.is_lent(n.name)
        ],
    }


def last_words(host: "Host", container: Container) -> dict[str, Any]:
    return {
        "session_id": container.session_id,
        "kernel_id": container.kernel_id,
        "name": container.kernel_name,
        "exit_code": container.exit_code,
        "oom_killed": container.oom_killed,
        "started_at": _moment(container.started_clock),
        "finished_at": _moment(container.finished_clock),
        "log_gz_b64": _log(container.generation),
        "log_truncated": False,
        "use": _use(host, container),
    }


def networks(host: "Host") -> list[Network]:
    """Return those that this host could remove; overlays are seen by managers alone."""
    return [*host.networks.values(), *(host.overlays.values() if host.manages_overlays else ())]


def is_joined(host: "Host", container: Container) -> bool:
    return container.network in host.networks or container.network in host.overlays


def _seen(host: "Host", container: Container) -> dict[str, Any]:
    lives = container.state == "running"
    joined = is_joined(host, container)
    return {
        "kernel_id": container.kernel_id,
        "session_id": container.session_id,
        "name": container.kernel_name,
        "generation": container.generation,
        "container_id": f"c{container.number}",
        "state": container.state,
        "released": host.is_released(container),
        "public_key": container.public_key,
        "exit_code": container.exit_code,
        "oom_killed": container.oom_killed,
        "started_at": _moment(container.started_clock),
        "finished_at": _moment(container.finished_clock),
        "address": "10.1.2.3" if lives and joined else None,
        "ssh_port": 49153 if lives and joined and container.kernel_name == "main1" else None,
        "gpus": [{**gpu, "used_bytes": 0, "processes": 0, "enforced_bytes": None} for gpu in container.gpus],
        "uncapped": [],
        "signals": container.signals,
        "signal_receivers": min(1, container.signals),
        "apps": {},
        "use": _use(host, container),
        "disk_bytes": None,
        "notice": container.notice,
    }


def _use(host: "Host", container: Container) -> dict[str, Any]:
    """Return its counters: a core, a network and its GPUs are used while it is busy, and nothing after that."""
    now, most_s = host.timeline.now, host.witness.busy_for_s(container)
    busy_s = container.busy_s(most_s, now)
    is_busy = container.state == "running" and container.busy_s(now, now) < most_s
    return {
        "at": _EPOCH + host.clock,
        "cpu_seconds": busy_s,
        "mem_bytes": 1_000_000,
        "mem_peak_bytes": 1_000_000,
        "net_rx_bytes": int(busy_s * 100_000),
        "net_tx_bytes": 0,
        "gpu_percent": 50.0 * len(container.gpus) * is_busy if container.gpus else None,
    }


@cache
def _log(generation: int) -> str:
    """Return what a kernel of this launch has written: which launch that was."""
    return base64.b64encode(gzip.compress(str(generation).encode(), mtime=0)).decode()


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(_EPOCH + at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
