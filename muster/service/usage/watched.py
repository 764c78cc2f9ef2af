"""The usage of sessions that pages show: a session's agents are polled once, however many pages show it."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from muster.core.agents.agent import Agent
from muster.core.model.session import Session, SessionState
from muster.core.model.token import Token
from muster.core.values.errors import StoreUnavailableError
from muster.service.usage.live import CurrentUsage, UsagePoller
from muster.store.store import Store

log = logging.getLogger("muster.live")
INTERVAL_S = 2.0
LINGER_S = 15.0
MOST_SESSIONS = 64
MOST_OF_ONE_OWNER = 16
_FIRST_ANSWER_S = 15.0
_SAMPLES = 150


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel's usage at one time, in seconds since the epoch; None where it could not be measured."""

    at: float
    cpu_cores: float | None
    mem_bytes: int | None


@dataclass(frozen=True, slots=True)
class KernelUsageHistory:
    """A kernel's usage now, and that of the last minutes, the oldest first."""

    now: CurrentUsage
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """A session's usage by kernel id; empty before the first answers. `problem` says why it is not polled."""

    kernels: Mapping[str, KernelUsageHistory] = field(default_factory=dict)
    problem: str = ""


NO_USAGE = SessionUsage()
StartPoller = Callable[[Sequence[Session], Mapping[str, Agent], float], UsagePoller]


class UsageCache:
    """A cache with one poller for each watched session; it ends some seconds after the last request."""

    def __init__(
        self, store: Store, start_poller: StartPoller = UsagePoller, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._start_poller = start_poller
        self._clock = clock
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}

    def of(self, session: Session, token: Token) -> SessionUsage:
        """Return the newest usage at once; none of a session that the token may not see."""
        if session.state is not SessionState.RUNNING or not token.sees(session.owner):
            return NO_USAGE
        with self._lock:
            watch = self._watches.get(session.id)
            if watch is None or watch.containers != _containers(session):
                if watch is None and (problem := self._refusal(session)):
                    return SessionUsage(problem=problem)
                if watch is not None:
                    watch.stop()
                watch = self._begin(session)
            watch.requested_at = self._clock()
        return watch.usage

    @property
    def watched(self) -> int:
        """Return how many sessions are watched."""
        with self._lock:
            return len(self._watches)

    def close(self) -> None:
        with self._lock:
            for watch in self._watches.values():
                watch.stop()
            self._watches.clear()

    def _refusal(self, session: Session) -> str:
        own = sum(watch.session.owner == session.owner for watch in self._watches.values())
        if own >= MOST_OF_ONE_OWNER:
            return f"{own} sessions of {session.owner} are watched already; close one of their pages to see this one"
        if len(self._watches) >= MOST_SESSIONS:
            return (
                f"{MOST_SESSIONS} sessions are watched already; the usage of this one is shown once another is closed"
            )
        return ""

    def _begin(self, session: Session) -> "_Watch":
        agents = {agent.id: agent for agent in self._store.agents.all()}
        watch = _Watch(session, self._start_poller([session], agents, INTERVAL_S))
        self._watches[session.id] = watch
        threading.Thread(target=self._follow, args=[watch], name=f"usage of {session.name}", daemon=True).start()
        return watch

    def _follow(self, watch: "_Watch") -> None:
        try:
            while not self._is_left(watch):
                watch.poll(self._agents())
        finally:
            watch.stop()
            self._forget(watch)

    def _is_left(self, watch: "_Watch") -> bool:
        # Forgotten under the same lock: the next request begins anew, and gets no watch that is about to end.
        with self._lock:
            left = watch.stopped.is_set() or self._clock() - watch.requested_at > LINGER_S
            if left and self._watches.get(watch.session.id) is watch:
                del self._watches[watch.session.id]
            return left

    def _forget(self, watch: "_Watch") -> None:
        with self._lock:
            if self._watches.get(watch.session.id) is watch:
                del self._watches[watch.session.id]

    def _agents(self) -> Mapping[str, Agent]:
        try:
            return {agent.id: agent for agent in self._store.agents.all()}
        except StoreUnavailableError as error:
            log.warning("%s", error)
            return {}


class _Watch:
    """A session's poller. `usage` is replaced as a whole, so that it can be read without a lock."""

    def __init__(self, session: Session, poller: UsagePoller) -> None:
        self.session = session
        self.containers = _containers(session)
        self.usage = NO_USAGE
        self.requested_at = 0.0
        self.stopped = threading.Event()
        self._poller = poller
        self._rounds = 0
        self._samples: dict[str, deque[Sample]] = {}
        poller.start()

    def stop(self) -> None:
        self.stopped.set()
        self._poller.stop()

    def poll(self, agents: Mapping[str, Agent]) -> None:
        """Wait for the agents' next answers, and for the rest of the interval."""
        began = time.monotonic()
        self._poller.update_agents(agents)
        self._rounds += 1
        kernels = self._poller.all(_FIRST_ANSWER_S if self._rounds == 1 else INTERVAL_S, rounds=self._rounds)
        at = time.time()
        for now in kernels:
            use = now.use
            sample = Sample(at, use.cpu_cores if use else None, use.mem_bytes if use else None)
            self._samples.setdefault(now.kernel.id, deque(maxlen=_SAMPLES)).append(sample)
        self.usage = SessionUsage(
            {now.kernel.id: KernelUsageHistory(now, tuple(self._samples[now.kernel.id])) for now in kernels}
        )
        self.stopped.wait(max(0.0, INTERVAL_S - (time.monotonic() - began)))


def _containers(session: Session) -> tuple[str | None, ...]:
    """Return the containers' ids; a restart makes other containers."""
    return tuple(kernel.container_id for kernel in session.kernels)
