"""Numbers of the whole cluster for Prometheus, without a name of a session or a user."""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.core.agents.agent import AgentState, Gpu
from muster.core.model.agent_sample import Amount, sample
from muster.core.model.session import FINAL, SessionState
from muster.core.model.token import Scope, Token
from muster.core.values.slots import Slots, total
from muster.service.agents.agents import AgentOccupancy, agents_in_use, shown_agents
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.queue.heartbeat import unworked_queue
from muster.service.queue.pass_durations import PassDurations, pass_durations
from muster.service.scheduler.known_groups import known_groups
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class Group:
    """A resource group: its waiting sessions, the seconds of the one that waits longest, and its slots."""

    queued: int
    oldest_wait_s: float
    capacity: Slots
    free: Slots


# Of sessions whose group is not known: no name of an agent's group, and one series whatever users write.
NO_GROUP = "(none)"
# From a container whose image is present to a gang whose images are pulled first.
LAUNCH_BOUNDS_S = (1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0, 600.0, 1800.0)


@dataclass(frozen=True, slots=True)
class Host:
    """An agent by its last report: `gpu` in thousandths of GPUs, `gpu_mem` and its disk in bytes.

    `image_bytes` counts layers that images share once for each image.
    """

    agent_id: str
    gpu: Amount
    gpu_mem: Amount
    disk_bytes: int
    disk_free_bytes: int
    image_bytes: int
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True)
class Launches:
    """A histogram of launches: by upper bound in seconds, those that took no longer; the number and sum of all."""

    buckets: Mapping[float, int]
    count: int
    sum_s: float

    def with_further(self, durations: Sequence[float]) -> "Launches":
        buckets = {
            bound: count + sum(seconds <= bound for seconds in durations) for bound, count in self.buckets.items()
        }
        return Launches(buckets, self.count + len(durations), self.sum_s + sum(durations))


@dataclass(frozen=True, slots=True)
class Measures:
    """The numbers at one time: `agents` by group and state, `entered` how often sessions have come into each state.

    `last_pass_at` is 0 for a queue that was never worked. `entered` and `launches` count since the first measurement.
    """

    groups: Mapping[str, Group]
    sessions: Mapping[str, int]
    agents: Mapping[tuple[str, str], int]
    drained: Mapping[str, int]
    entered: Mapping[str, int]
    passes: PassDurations
    last_pass_at: float
    is_unworked: bool
    hosts: tuple[Host, ...]
    launches: Launches


class Meter:
    """A meter that counts changes once: each measurement reads only what happened since the one before."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._lock = threading.Lock()
        self._counted_until: int | None = None
        self._launches = Launches(dict.fromkeys(LAUNCH_BOUNDS_S, 0), 0, 0.0)
        self._entered: Counter[str] = Counter({state.value: 0 for state in SessionState})

    def measure(self, token: Token | None) -> Measures:
        """Return the numbers, for the holder of a token; without one only where the site lets some networks read them.

        A token that only reads is enough: one that can submit sessions has no place in Prometheus' configuration.
        Raises NoTokenError, ScopeError and StoreUnavailableError.
        """
        if token is None and not self._settings.web.metrics_from:
            raise NoTokenError(
                "metrics are read with a token here; send one as a bearer token in the header Authorization"
            )
        if token is not None and token.scope is Scope.USER:
            raise ScopeError("scope user reads no metrics; use one of scope read or admin")
        snapshot = shown_agents(self._store, self._settings)
        heartbeat = self._store.heartbeats.last()
        uses = agents_in_use(snapshot)
        known = known_groups(self._store, self._settings, snapshot.agents)
        queued: dict[str, list[float]] = {}
        for session in snapshot.pending:
            name = session.spec.resource_group
            queued.setdefault(name if name in known else NO_GROUP, []).append(session.submitted_at)
        groups = {
            name: Group(
                queued=len(queued.get(name, ())),
                oldest_wait_s=max(0.0, snapshot.now - min(queued.get(name, [snapshot.now]))),
                capacity=total([use.agent.capacity for use in uses if use.agent.resource_group == name]),
                free=total([use.free for use in uses if use.agent.resource_group == name]),
            )
            for name in sorted({*queued, *(use.agent.resource_group for use in uses)})
        }
        entered, launches = self._count()
        states = Counter(session.state.value for session in snapshot.sessions)
        agents = Counter((use.agent.resource_group, use.agent.state.value) for use in uses)
        return Measures(
            groups=groups,
            sessions={state.value: states[state.value] for state in SessionState if state not in FINAL},
            agents={(name, state.value): agents[name, state.value] for name in groups for state in AgentState},
            drained={name: sum(bool(use.drain) for use in uses if use.agent.resource_group == name) for name in groups},
            entered=entered,
            passes=pass_durations(self._store),
            last_pass_at=0.0 if heartbeat is None else heartbeat.at,
            is_unworked=unworked_queue(self._store, self._settings) is not None,
            hosts=tuple(_host(use) for use in uses),
            launches=launches,
        )

    def _count(self) -> tuple[dict[str, int], Launches]:
        with self._lock:
            after = self._counted_until
            number, new = self._store.changes.counted(after or 0)
            # A counter may begin anew with its process, and reading all launches ever would take long.
            if after is not None:
                self._launches = self._launches.with_further(self._store.changes.launch_durations(after, number))
            self._counted_until = number
            self._entered.update(new)
            return dict(self._entered), self._launches


def _host(use: AgentOccupancy) -> Host:
    report = use.agent.report
    amounts = sample(use.agent, [kernel for _, kernel in use.kernels], None).amounts
    return Host(
        use.agent.id,
        amounts["gpu"],
        amounts["gpu_mem"],
        report.disk.total_bytes,
        report.disk.free_bytes,
        sum(image.size_bytes for image in report.images),
        use.agent.gpus,
    )
