"""Numbers of the whole cluster for Prometheus, without a name of a session or a user."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from muster.core.agents.agent import AgentState
from muster.core.model.session import FINAL, SessionState
from muster.core.values.slots import Slots, total
from muster.service.agents.agents import agents_in_use, shown_agents
from muster.service.queue.pass_durations import PassDurations, pass_durations
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class Group:
    """Of one resource group: the sessions that wait, the seconds that the oldest of them has, and its slots."""

    queued: int
    oldest_wait_s: float
    capacity: Slots
    free: Slots


@dataclass(frozen=True, slots=True)
class Measures:
    """`agents` by group and state, `entered` how often sessions have come into each state since the first.

    `last_pass_at` is 0 for a queue that was never worked.
    """

    groups: Mapping[str, Group]
    sessions: Mapping[str, int]
    agents: Mapping[tuple[str, str], int]
    drained: Mapping[str, int]
    entered: Mapping[str, int]
    passes: PassDurations
    last_pass_at: float


class Meter:
    """Counts changes once: each measurement reads only what happened since the one before."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._counted_until = 0
        self._entered: Counter[str] = Counter({state.value: 0 for state in SessionState})

    def measure(self) -> Measures:
        """Raises StoreUnavailableError."""
        snapshot = shown_agents(self._store, self._settings)
        heartbeat = self._store.heartbeats.last()
        uses = agents_in_use(snapshot)
        queued: dict[str, list[float]] = {}
        for session in snapshot.pending:
            queued.setdefault(session.spec.resource_group, []).append(session.submitted_at)
        groups = {
            name: Group(
                queued=len(queued.get(name, ())),
                oldest_wait_s=max(0.0, snapshot.now - min(queued.get(name, [snapshot.now]))),
                capacity=total([use.agent.capacity for use in uses if use.agent.resource_group == name]),
                free=total([use.free for use in uses if use.agent.resource_group == name]),
            )
            for name in sorted({*queued, *(use.agent.resource_group for use in uses)})
        }
        states = Counter(session.state.value for session in snapshot.sessions)
        agents = Counter((use.agent.resource_group, use.agent.state.value) for use in uses)
        return Measures(
            groups=groups,
            sessions={state.value: states[state.value] for state in SessionState if state not in FINAL},
            agents={(name, state.value): agents[name, state.value] for name in groups for state in AgentState},
            drained={name: sum(bool(use.drain) for use in uses if use.agent.resource_group == name) for name in groups},
            entered=self._count(),
            passes=pass_durations(self._store),
            last_pass_at=0.0 if heartbeat is None else heartbeat.at,
        )

    def _count(self) -> dict[str, int]:
        with self._lock:
            self._counted_until, new = self._store.changes.counted(self._counted_until)
            self._entered.update(new)
            return dict(self._entered)
