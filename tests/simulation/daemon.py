"""The control node in virtual time: the real loop and worker, which may die between any two transactions."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from queue import Empty
from types import ModuleType
from typing import Any, Protocol
from unittest import mock

from muster.ansible_gateway.templates import Templates
from muster.core.agents.agent import Agent
from muster.core.lifecycle.idle import IdleRules
from muster.core.lifecycle.transitions import Event
from muster.core.scheduling.closures import could_hold
from muster.core.turn.ledger import TurnRules
from muster.core.values.errors import AnsibleFailedError, QueueLockLostError
from muster.service.queue import loop as loop_module
from muster.service.queue.loop import KernelDied, Nudge, QueueLoop
from muster.service.queue.worker import WorkerDependencies
from muster.service.scheduler.site_policy import SiteScheduling
from muster.service.secrets.secrets import Secrets
from muster.settings import Settings
from tests.simulation.hosts import Host
from tests.simulation.schedules import Site
from tests.simulation.store import WatchedStore
from tests.simulation.timeline import Chance, Timeline
from tests.simulation.visits import SimulatedAnsible
from tests.strategies.values import fake_key_pair

SETTINGS = Settings(
    observe_interval_s=50,
    lost_after_s=120,
    slow_after_s=15,
    start_timeout_s=45,
    stop_grace_s=10,
    hold_repaired_s=30,
)
IDLE_RULES = IdleRules(grace_s=10, warn_before_s=20)
_RENDER = Templates().render
# Visits end when their modules do: visits.py.
_LAUNCH_POLICY = replace(SETTINGS.launch_policy(), visit_slack_s=5)


@cache
def settings_of(site: Site) -> Settings:
    """Return the settings of the site."""
    chosen = ("order", "placement", "backfill", "reserve_after_passes", "preemption", "defragment")
    limits: dict[str, dict[str, Any]] = {}
    for kind, name, counted, most in site.limits:
        limits.setdefault(kind, {})[name] = {"running": {counted: most}}
    return SETTINGS.model_validate(
        {
            **SETTINGS.model_dump(exclude_unset=True),
            "scheduling": {name: getattr(site, name) for name in chosen},
            "limits": limits,
            "shares": dict(site.shares),
        }
    )


class KilledError(BaseException):
    """The process is gone; it comes back after a time."""

    def __init__(self, for_s: float, *, visits_go_on: bool) -> None:
        super().__init__(for_s)
        self.for_s = for_s
        self.visits_go_on = visits_go_on


class Inbox:
    """The loop's inbox: waiting for a message lets virtual time pass. Once closed, messages to it are lost."""

    def __init__(self, timeline: Timeline, outside: Callable[[], AbstractContextManager[None]]) -> None:
        self._timeline = timeline
        self._outside = outside
        self._messages: deque[Any] = deque()
        self._held: list[Any] | None = None
        self._is_closed = False

    def put(self, message: Any) -> None:
        if self._held is not None:
            self._held.append(message)
        elif not self._is_closed:
            self._messages.append(message)

    def get(self, timeout: float) -> Any:
        """Return the next message; raise Empty when none has come in that time. `outside` is where it passes."""
        until = self._timeline.now + timeout
        with self._outside():
            while not self._messages:
                if not self._timeline.step(until):
                    raise Empty
        return self._messages.popleft()

    def get_nowait(self) -> Any:
        if not self._messages:
            raise Empty
        return self._messages.popleft()

    def hold(self, run: Callable[[], None]) -> list[Any]:
        """Run, and return what was put meanwhile."""
        self._held = []
        try:
            run()
            return self._held
        finally:
            self._held = None

    def close(self) -> None:
        self._is_closed = True


class VirtualTime:
    """The `time` of the queue's modules."""

    def __init__(self, timeline: Timeline, outside: Callable[[], AbstractContextManager[None]]) -> None:
        self._timeline = timeline
        self._outside = outside

    def sleep(self, seconds: float) -> None:
        with self._outside():
            self._timeline.sleep(seconds)

    def monotonic(self) -> float:
        return self._timeline.now


@contextmanager
def virtual_time(timeline: Timeline, outside: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let all modules of the queue live in virtual time."""
    virtual = VirtualTime(timeline, outside)
    for module in _timed_modules():
        module.time = virtual  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in _timed_modules():
            module.time = time  # type: ignore[attr-defined]


@cache
def _timed_modules() -> list[ModuleType]:
    prefix = loop_module.__name__.rpartition(".")[0]
    modules = [module for name, module in sys.modules.items() if name.startswith(f"{prefix}.")]
    return [module for module in modules if getattr(module, "time", None) is time]


class Surroundings(Protocol):
    """The surroundings of a daemon."""

    timeline: Timeline
    hosts: Mapping[str, Host]
    ansible_fails: bool

    def outside(self) -> AbstractContextManager[None]:
        """Let others act: what happens meanwhile is not this process's doing."""

    def clock(self) -> float:
        """Return the time of day on the control node."""

    def reaches(self, host: Host) -> bool: ...

    def committed(self, events: Sequence[Event]) -> None: ...

    def observed(self, agents: Iterable[Agent]) -> None: ...

    def forgotten(self, agent_id: str) -> None: ...

    def pull_fails(self, host: Host, image: str, *, permanent: bool) -> None: ...

    def holds_lock(self, daemon: "Daemon") -> bool: ...


class Daemon:
    """A process of `muster daemon`, or of `muster pass` where the site has passes.

    `works` is a loop's whole life, as in muster/daemon.py. A process that is doomed dies at its next transaction.
    """

    def __init__(self, around: Surroundings, chance: Chance, settings: Settings, *, passes: bool) -> None:
        self.ansible = SimulatedAnsible(
            around.timeline, chance, around.hosts, around.reaches, lambda: around.ansible_fails, around.pull_fails
        )
        self.watched: set[str] = set()
        self.loop: QueueLoop | None = None
        self.is_doomed = False
        self._around = around
        self.settings = settings
        self._passes = passes
        self._store = WatchedStore(around.committed, around.observed, around.forgotten)
        self._secrets = Secrets(self._store.secrets, Path("/nonexistent"))
        self._inbox: Inbox | None = None

    def works(self) -> None:
        """Work the queue for a pass, or until the lock or the database is lost.

        Answers of the visits under way are then lost too.
        """
        inbox = self._inbox = Inbox(self._around.timeline, self._around.outside)
        shell = WorkerDependencies(
            store=self._store,
            gateway=self.ansible,
            pull_image=self.ansible.pull,
            render=_RENDER,
            make_key_pair=fake_key_pair,
            launch_policy=_LAUNCH_POLICY,
            start=lambda run: self.ansible.start(run, inbox.hold, inbox.put),
            with_policy=SiteScheduling(self.settings, self._store).complete,
            secrets=self._secrets,
            rules=TurnRules(SETTINGS.lost_after_s, SETTINGS.slow_after_s, could_hold, lambda _group: IDLE_RULES),
            clock=self._around.clock,
        )
        self.watched.clear()
        try:
            with mock.patch.object(loop_module, "SimpleQueue", new=partial(_given, inbox)):
                loop = QueueLoop(self.settings, shell, self, self._watch)
            if self._passes:
                # The next pass reads everything again.
                with suppress(AnsibleFailedError):
                    loop.run_until_idle()
                return
            self.loop = loop
            loop.run()
        finally:
            inbox.close()
            self.loop = None

    def check(self) -> None:
        """Raise QueueLockLostError where another may work the queue by now: this is the loop's lock, too."""
        if not self._around.holds_lock(self):
            raise QueueLockLostError

    def nudge(self, nudge: Nudge) -> None:
        if self.loop is not None:
            self.loop.send(nudge)

    def learns_of_death(self, agent_id: str, session_id: str) -> None:
        """Notice by the agent's engine that a container ended."""
        if self.loop is not None and agent_id in self.watched:
            self.loop.send(KernelDied(agent_id, session_id))

    def _watch(self, agent: Agent) -> None:
        self.watched.add(agent.id)


def _given(inbox: Inbox) -> Inbox:
    return inbox
