"""What containers use right now, as their engine tells."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import NotFound

from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_engine import ANSWER_ERRORS, cause

# A container's answer takes the engine a second: it measures over that.
_THREADS = 16


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """A container's usage: `cpu_cores` over the last second; memory without droppable files; bytes since the start."""

    cpu_cores: float | None
    mem_bytes: int | None
    mem_limit_bytes: int | None
    net_rx_bytes: int
    net_tx_bytes: int
    processes: int


def container_usages(
    agent: Agent, client: docker.DockerClient, container_ids: Iterable[str]
) -> dict[str, ContainerUsage]:
    """Return usages by container id, without containers that do not run. Raises AgentUnreachableError."""

    def ask(container_id: str) -> tuple[str, ContainerUsage | None]:
        try:
            # The engine of a client that several threads use: a connection each, from its pool.
            return container_id, _read(client.api.stats(container_id, stream=False))
        except NotFound:
            return container_id, None

    ids = list(container_ids)
    try:
        with ThreadPoolExecutor(max(1, min(_THREADS, len(ids)))) as pool:
            return {container_id: use for container_id, use in pool.map(ask, ids) if use is not None}
    except ANSWER_ERRORS as error:
        raise AgentUnreachableError(f"agent {agent.id}: {cause(error)}") from None


def _read(stats: Mapping[str, Any]) -> ContainerUsage | None:
    memory: Mapping[str, Any] = stats["memory_stats"]
    if not memory.get("usage"):
        return None
    details = memory.get("stats", {})
    cached = details.get("total_inactive_file", details.get("inactive_file", 0))
    networks = (stats.get("networks") or {}).values()
    return ContainerUsage(
        cpu_cores=_cores(stats["cpu_stats"], stats["precpu_stats"]),
        mem_bytes=max(0, _amount(memory["usage"]) - _amount(cached)),
        mem_limit_bytes=_amount(memory["limit"]) if memory.get("limit") is not None else None,
        net_rx_bytes=sum(_amount(network["rx_bytes"]) for network in networks),
        net_tx_bytes=sum(_amount(network["tx_bytes"]) for network in networks),
        processes=_amount(stats["pids_stats"].get("current", 0)),
    )


def _amount(value: object) -> int:
    """Return the engine's number. Raises TypeError for anything else, and ValueError for one that nothing can have."""
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} is no number")
    if not 0 <= value < 1 << 64:
        raise ValueError("a number is too large")
    return value


def _cores(now: Mapping[str, Any], before: Mapping[str, Any]) -> float | None:
    """Return the share of the host's time that went to the container, times its cores."""
    elapsed = _amount(now.get("system_cpu_usage", 0)) - _amount(before.get("system_cpu_usage", 0))
    if elapsed <= 0 or not before.get("system_cpu_usage"):
        return None
    used = _amount(now["cpu_usage"]["total_usage"]) - _amount(before["cpu_usage"]["total_usage"])
    return float(used / elapsed * _amount(now.get("online_cpus", 1)))
