"""The usage of sessions at this moment, from all of their agents at once."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.contract.report import KernelReport
from muster.core.agents.agent import Agent
from muster.core.model.session import Kernel, Session, SessionState
from muster.core.values.counters import growth_rate
from muster.core.values.errors import AgentUnreachableError
from muster.engine.agent_engine import engine_of
from muster.engine.container_usage import ContainerUsage, container_usages

_ANSWER_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class CurrentUsage:
    """A kernel with its usage at this moment; `problem` says why it is not known. Rates are in bytes a second.

    The usage of GPUs is that of the agent's last report: an engine does not know it.
    """

    session: Session
    kernel: Kernel
    use: ContainerUsage | None = None
    net_rx_per_s: float | None = None
    net_tx_per_s: float | None = None
    gpu_percent: float | None = None
    gpu_mem_bytes: int | None = None
    problem: str = ""


class UsagePoller:
    """A poller of agents, each in a thread of its own, so that one that does not answer delays none of the others."""

    def __init__(self, sessions: Sequence[Session], agents: Mapping[str, Agent], interval_s: float) -> None:
        self._kernels = [
            (session, kernel)
            for session in sessions
            if session.state is SessionState.RUNNING
            for kernel in session.kernels
            if kernel.allocation
        ]
        self._agents = agents
        self._interval_s = interval_s
        self._answered = threading.Condition()
        self._now: dict[str, CurrentUsage] = {}
        self._rounds: dict[str, int] = {}
        # By kernel id: each is touched by its agent's thread only.
        self._earlier: dict[str, tuple[float, ContainerUsage]] = {}
        self._stopped = threading.Event()

    def start(self) -> None:
        for agent_id in sorted({_agent_of(kernel) for _, kernel in self._kernels} & self._agents.keys()):
            self._rounds[agent_id] = 0
            threading.Thread(target=self._watch, args=[agent_id], daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def update_agents(self, agents: Mapping[str, Agent]) -> None:
        """Take newer reports of agents, for callers that poll for long."""
        self._agents = {**self._agents, **agents}

    def all(self, timeout_s: float, *, rounds: int = 1) -> list[CurrentUsage]:
        """Return all kernels by session and rank, once each agent has answered `rounds` times or the time is over."""
        deadline = time.monotonic() + timeout_s
        with self._answered:
            while any(done < rounds for done in self._rounds.values()) and time.monotonic() < deadline:
                self._answered.wait(max(0.0, deadline - time.monotonic()))
            known = dict(self._now)
        return [
            known.get(kernel.id) or CurrentUsage(session, kernel, problem=f"agent {_agent_of(kernel)} does not answer")
            for session, kernel in self._kernels
        ]

    def _watch(self, agent_id: str) -> None:
        while not self._stopped.is_set():
            try:
                agent = self._agents[agent_id]
                with engine_of(agent, answer_timeout_s=_ANSWER_TIMEOUT_S) as client:
                    while not self._stopped.is_set():
                        began = time.monotonic()
                        containers = [kernel.container_id for _, kernel in self._on(agent_id) if kernel.container_id]
                        self._take(agent, container_usages(agent, client, containers), began)
                        self._stopped.wait(max(0.0, self._interval_s - (time.monotonic() - began)))
            except AgentUnreachableError as error:
                self._record({k.id: CurrentUsage(s, k, problem=str(error)) for s, k in self._on(agent_id)}, agent_id)
                self._stopped.wait(self._interval_s)

    def _on(self, agent_id: str) -> Iterator[tuple[Session, Kernel]]:
        return ((session, kernel) for session, kernel in self._kernels if _agent_of(kernel) == agent_id)

    def _take(self, agent: Agent, uses: Mapping[str, ContainerUsage], at: float) -> None:
        entries = {entry.kernel_id: entry for entry in self._agents[agent.id].report.kernels}
        found = {}
        for session, kernel in self._on(agent.id):
            use = uses.get(kernel.container_id or "")
            now = CurrentUsage(session, kernel, use, problem="" if use else "its container does not run")
            now = self._with_rates(now, at)
            found[kernel.id] = replace(now, **_gpu_use(entries.get(kernel.id)))
        self._record(found, agent.id)

    def _with_rates(self, now: CurrentUsage, at: float) -> CurrentUsage:
        earlier = self._earlier.get(now.kernel.id)
        if now.use is None:
            return now
        self._earlier[now.kernel.id] = (at, now.use)
        if earlier is None:
            return now
        elapsed, before = at - earlier[0], earlier[1]
        return replace(
            now,
            net_rx_per_s=growth_rate(before.net_rx_bytes, now.use.net_rx_bytes, elapsed),
            net_tx_per_s=growth_rate(before.net_tx_bytes, now.use.net_tx_bytes, elapsed),
        )

    def _record(self, found: Mapping[str, CurrentUsage], agent_id: str) -> None:
        with self._answered:
            self._now |= found
            self._rounds[agent_id] += 1
            self._answered.notify_all()


def _gpu_use(entry: KernelReport | None) -> dict[str, Any]:
    if entry is None:
        return {"gpu_percent": None, "gpu_mem_bytes": None}
    parts = [gpu.used_bytes for gpu in entry.gpus if gpu.used_bytes is not None]
    return {
        "gpu_percent": entry.use.gpu_percent if entry.use else None,
        "gpu_mem_bytes": sum(parts) if parts and len(parts) == len(entry.gpus) else None,
    }


def _agent_of(kernel: Kernel) -> str:
    return kernel.allocation.agent_id if kernel.allocation else ""
