"""A schedule carried out: users, faults, hosts and control nodes in virtual time, and the promises that must hold."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from muster.core.agents.agent import Agent, AgentState
from muster.core.lifecycle.transitions import Event
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.session import FINAL, SessionState
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import QueueLockLostError, StoreUnavailableError
from muster.service.queue.loop import Nudge
from muster.service.scheduler.plugins import scheduling_policy
from muster.service.scheduler.site_policy import SiteScheduling
from tests.simulated.hosts import host_of
from tests.simulation.checks.promises import BrokenPromiseError, Promises
from tests.simulation.containers import Container
from tests.simulation.daemon import Daemon, KilledError, settings_of, virtual_time
from tests.simulation.deeds import Deeds
from tests.simulation.hosts import Host
from tests.simulation.schedules import USERS_AND_FAULTS_END_S, Deed, Schedule, Site
from tests.simulation.store import WatchedStore, emptied
from tests.simulation.timeline import Chance, Timeline

_S = SessionState
_EPOCH = 1_763_724_000.0
# Retries, an agent that is lost, and what then follows.
_PATIENCE_S = 420.0
_LOOK_EVERY_S = 4.0
_MOST_TRANSACTIONS = 5_000
_DAEMON_RETRIES_AFTER_S = 2.0
"""As `muster/daemon.py` does."""
_OVERTAKES_WITHIN_S = 5.0


@dataclass(frozen=True)
class Verdict:
    """The verdict on a schedule: the promise that was broken, if any, its story, and the faults that struck."""

    schedule: Schedule
    broken: BrokenPromiseError | None
    struck: Counter[str] = field(default_factory=Counter)
    trace: tuple[str, ...] = ()
    lasted_s: float = 0.0


@dataclass
class _Fate:
    """What strikes the process that works the queue, before or after the last one of so many transactions."""

    transactions: int
    strike: Callable[[], None]
    is_after: bool


@dataclass(eq=False)
class _Overtaking:
    """A person who acts right before the last one of so many transactions of the process that works the queue."""

    transactions: int
    act: Callable[[], None]


class _OverError(BaseException):
    """The schedule has been carried out, and every promise was kept."""


def carry_out(schedule: Schedule, *, traced: bool = False) -> Verdict:
    """Carry out a schedule until its end, or until a promise is broken."""
    world = World(schedule, traced=traced)
    broken = None
    with emptied(world), virtual_time(world.timeline, world.outside), _no_collection():
        try:
            world.run()
        except _OverError:
            pass
        except BrokenPromiseError as error:
            broken = error
        except Exception as error:  # noqa: BLE001 - whatever it is, no daemon may end by it
            broken = BrokenPromiseError("crash", f"{type(error).__name__}: {error}")
            broken.__cause__ = error
    if broken is not None:
        world.note(f"BROKEN {broken}")
    return Verdict(schedule, broken, world.struck, tuple(world.trace), world.timeline.now)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Leave cycles of objects uncollected: looking for them takes a tenth of the time, and a schedule makes few."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class World:
    """The world of a schedule."""

    def __init__(self, schedule: Schedule, *, traced: bool) -> None:
        self.timeline = Timeline()
        self._settings = settings_of(schedule.site)
        self._passes_every_s = schedule.site.passes_every_s
        self.hosts: dict[str, Host] = {}
        self.promises = Promises(self._stored_agents, self._policy, self.hosts)
        self.struck: Counter[str] = Counter()
        self.trace: list[str] = []
        self._schedule = schedule
        self._traced = traced
        self._overlays: dict[str, object] = {}
        for host_id, facts in schedule.hosts:
            hardware, inventory = host_of(host_id, connection="ssh", **dict(facts))
            chance = Chance(schedule.seed, f"host {host_id}")
            peers = lambda: list(self.hosts.values())  # noqa: E731
            self.hosts[host_id] = Host(host_id, hardware, inventory, self.timeline, chance, self, self._overlays, peers)
        self._chance = Chance(schedule.seed, "world")
        self.deeds = Deeds(self)
        self.clock_offset_s = 0.0
        self.database_is_away = False
        self.control_is_cut = False
        self.nudges_are_lost = False
        self.ansible_fails = False
        self.ends: list[Callable[[], None]] = []
        self._acting: Daemon | None = None
        self.daemon: Daemon | None = None
        self.fate: _Fate | None = None
        self._overtaking: list[_Overtaking] = []
        self.lock_is_lost = False
        self.is_paused = False
        self._gates = 0
        self.users = WatchedStore.__new__(WatchedStore)

    # What a daemon finds around it

    @contextmanager
    def outside(self) -> Iterator[None]:
        acting, self._acting = self._acting, None
        try:
            yield
        finally:
            self._acting = acting

    def clock(self) -> float:
        return _EPOCH + self.timeline.now + self.clock_offset_s

    def _stored_agents(self) -> Sequence[Agent]:
        with self.outside():
            return self.users.agents.all()

    def _policy(self) -> SchedulingPolicy:
        # One that was paused has the settings with which it began.
        settings = self.daemon.settings if self.daemon is not None else self._settings
        with self.outside():
            return self.users.overrides.all().policy_over(scheduling_policy(settings))

    def has_settings_of(self, site: Site) -> None:
        """Let a daemon that starts from now on read these settings."""
        self._settings = settings_of(site)

    def reaches(self, host: Host) -> bool:
        return host.is_reachable and not self.control_is_cut

    def committed(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.in_story:
                session = self.promises.sessions[event.session_id]
                self.note(f"{session.name}: {event.from_state} → {event.to_state}: {event.reason}")
        self.promises.committed(events)
        self.after_transaction()

    def observed(self, agents: Iterable[Agent]) -> None:
        agents = list(agents)
        for agent in agents:
            before = self.promises.agents.get(agent.id)
            if before is None or before.state is not agent.state:
                self.note(f"{agent.id} is {agent.state} {agent.problem}")
        self.promises.agents_are(agents)
        self.after_transaction()

    def forgotten(self, agent_id: str) -> None:
        self.promises.agents.pop(agent_id, None)
        self.after_transaction()

    def pull_fails(self, host: Host, image: str, *, permanent: bool) -> None:
        self.note(f"{host.id}: the pull of {image} fails")
        for session in self.promises.sessions.values():
            if any(k.image == image and k.allocation and k.allocation.agent_id == host.id for k in session.kernels):
                self.promises.launch_fails(host, session.id, permanent=permanent)

    def holds_lock(self, daemon: Daemon) -> bool:
        if self.lock_is_lost:
            self.lock_is_lost = False
            return False
        return daemon is self.daemon

    def before_transaction(self) -> None:
        """Count a transaction. Before it, a process may die or the database be away."""
        self._gates += 1
        if self._gates > _MOST_TRANSACTIONS:
            raise BrokenPromiseError("livelock", f"{_MOST_TRANSACTIONS} transactions, and no end")
        if self._acting is None:
            return
        if self._acting.is_doomed:
            raise KilledError(0.0, visits_go_on=True)
        for one in list(self._overtaking):
            one.transactions -= 1
            if one.transactions <= 0:
                self._acts(one)
        if self.fate is not None:
            self.fate.transactions -= 1
            if self.fate.transactions <= 0 and not self.fate.is_after:
                self._meet_fate(self.fate)
        if self.database_is_away:
            raise StoreUnavailableError("the database failed: connection refused; see to it, then try again")

    def after_transaction(self) -> None:
        """Let the process die right after a commit, before it acts on it."""
        if self._acting is not None and self.fate is not None and self.fate.transactions <= 0:
            self._meet_fate(self.fate)

    def meets(self, transactions: int, strike: Callable[[], None], *, is_after: bool) -> None:
        """Let this strike the process that works the queue, before or after one of its next transactions."""
        self.fate = _Fate(transactions, strike, is_after)

    def is_overtaken(self, transactions: int, act: Callable[[], None]) -> None:
        """Let a person act right before one of the next transactions of the process that works the queue.

        Where it has less to do than that, they act a few seconds later.
        """
        one = _Overtaking(transactions, act)
        self._overtaking.append(one)
        self.timeline.after(_OVERTAKES_WITHIN_S, partial(self._acts, one))

    def _acts(self, one: _Overtaking) -> None:
        if one in self._overtaking:
            self._overtaking.remove(one)
            with self.outside():
                one.act()

    def _meet_fate(self, fate: _Fate) -> None:
        self.fate = None
        fate.strike()

    # What hosts tell of

    def container_starts(self, host: Host, container: Container) -> None:
        self.promises.container_starts(host, container)

    def command_begins(self, host: Host, container: Container) -> None:
        session = self.promises.sessions[container.session_id]
        self.note(f"{host.id}: {session.name}/{container.kernel_name} begins (launch {container.generation})")
        self.promises.command_begins(host, container)
        kernel = next((kernel for kernel in session.possible_kernels if kernel.name == container.kernel_name), None)
        if kernel is not None and kernel.command is not None:
            deed = self.deeds.submissions[session.id]
            self.timeline.after(deed["run_s"], partial(self._command_ends, host, container, deed))

    def _command_ends(self, host: Host, container: Container, deed: Deed) -> None:
        if container.state == "running" and host.is_up and host.is_released(container):
            code = 137 if deed["oom"] == "killed" else 0 if deed["oom"] == "survived" else deed["exit_code"]
            host.container_ends(container, code, "command", oom_killed=bool(deed["oom"]))

    def container_ends(self, host: Host, container: Container, cause: str) -> None:
        session = self.promises.sessions[container.session_id]
        self.note(f"{host.id}: {session.name}/{container.kernel_name} ends by {cause} ({container.exit_code})")
        self.promises.container_ends(container, cause)
        if host.is_up and host.engine_runs:
            self.timeline.after(0.2, partial(self._report_death, host, container.session_id))

    def _report_death(self, host: Host, session_id: str) -> None:
        # As `_Watchers` of muster/daemon.py: kernels of a session that is being ended are stopped by Muster itself.
        runs = self.promises.sessions[session_id].state is _S.RUNNING
        if runs and self.daemon is not None and self.reaches(host) and host.engine_runs:
            self.daemon.learns_of_death(host.id, session_id)

    def launch_fails(self, host: Host, session_id: str, *, permanent: bool) -> None:
        self.note(f"{host.id}: the launch of {self.promises.sessions[session_id].name} fails")
        self.promises.launch_fails(host, session_id, permanent=permanent)

    def remembers_nothing(self, host: Host) -> None:
        self.promises.is_harmed("reboot", host)

    def busy_for_s(self, container: Container) -> float:
        deed = self.deeds.submissions[container.session_id]
        return float(dict(deed.values).get("busy_s", 1000.0))

    def is_signalled(self, host: Host, container: Container) -> None:
        session, deed = self.promises.sessions[container.session_id], self.deeds.submissions[container.session_id]
        self.note(f"{host.id}: {session.name}/{container.kernel_name} gets signal {container.signals}")
        self.promises.is_signalled(host, container)
        if dict(deed.values).get("heeds_signal"):
            self.timeline.after(1.0, partial(self._command_ends, host, container, deed))

    def is_removed(self, host: Host, container: Container) -> None:
        self.promises.is_removed(host, container)

    # The course of a schedule

    def run(self) -> None:
        """Run until a promise is broken, or raise _OverError."""
        self.opens_its_store()
        for deed in self._schedule.deeds:
            self.timeline.after(deed.at, partial(self.deeds.do, deed))
        self.timeline.after(USERS_AND_FAULTS_END_S, self._heal)
        while True:
            self._live_and_die()

    def opens_its_store(self) -> None:
        """Open the store anew by which users act."""
        self.users = WatchedStore(self.committed, self.observed, self.forgotten)

    def _live_and_die(self) -> None:
        """Let a daemon live until it is killed, and time pass until there may be another."""
        daemon = self.daemon = Daemon(self, self._chance, self._settings, passes=self._passes_every_s is not None)
        try:
            self._lives(daemon)
        except KilledError as killed:
            self.note(f"the daemon is killed for {killed.for_s} s")
            daemon.ansible.cut_short(actions_go_on=killed.visits_go_on)
            self.daemon = None
            self.timeline.sleep(killed.for_s)

    def _lives(self, daemon: Daemon) -> None:
        while True:
            self._acting = daemon
            try:
                daemon.works()
            except (QueueLockLostError, StoreUnavailableError) as error:
                self.note(f"the queue is worked anew: {error or 'the lock is lost'}")
            finally:
                self._acting = None
            self.timeline.sleep(self._passes_every_s or _DAEMON_RETRIES_AFTER_S)

    def note(self, text: str) -> None:
        if self._traced:
            self.trace.append(f"{self.timeline.now:8.2f} s  {text}")

    def wake(self) -> None:
        if self.daemon is not None and not self.nudges_are_lost:
            self.timeline.after(0.02, partial(self.daemon.nudge, Nudge.QUEUE))

    def another_works(self, for_s: float) -> None:
        """Let another control node work the queue, and end it; its visits go on."""
        over = False

        def end() -> None:
            nonlocal over
            over = True
            if self.daemon is not None:
                self.daemon.is_doomed = True

        self.ends.append(end)
        self.timeline.after(for_s, end)
        self.daemon = None
        self.timeline.sleep(0.5)
        while not over:
            self._live_and_die()

    # What must come true in the end

    def _heal(self) -> None:
        """Put everything in order; from now on the control node has time to do what it promised."""
        self.note("* everything is in order from now on")
        for end in self.ends:
            end()
        for host in self.hosts.values():
            host.next_launches.clear()
            host.answers.clear()
            host.hangs_no_more()
        if not self.is_paused:
            self.fate = None
        for agent_id in list(self.promises.agents):
            self.users.agents.resume(agent_id)
        self.promises.drained.clear()
        # A database that was restored may have some again.
        for override in self.users.overrides.all().limits:
            self.users.overrides.unset_limit(override.limited, override.name)
        self.deeds.everybody_lets_go()
        self._look_until(self.timeline.now + _PATIENCE_S, self._unsettled, self._everybody_ends)

    def _look_until(self, until: float, missing: Callable[[], list[str]], then: Callable[[], None]) -> None:
        found = missing()
        if not found:
            then()
        elif self.timeline.now >= until:
            raise BrokenPromiseError("liveness", "; ".join(found[:3]))
        else:
            self.timeline.after(_LOOK_EVERY_S, partial(self._look_until, until, missing, then))

    def _unsettled(self) -> list[str]:
        found = self.promises.unsettled()
        found += [f"{host_id} is in order, and not ALIVE" for host_id in self.hosts if not self._is_alive(host_id)]
        if found:
            return found
        snapshot = self.users.snapshot(self.clock())
        if not snapshot.pending:
            return []
        plan = schedule(SiteScheduling(self._settings, self.users).complete(snapshot))
        return [f"{self.promises.sessions[p.session_id].name} could run, and waits" for p in plan.placements] + [
            f"{session.name} is PENDING until {session.retry_at - snapshot.now:.0f} s from now"
            for session in snapshot.pending
            if session.retry_at is not None and session.retry_at > snapshot.now
        ]

    def _is_alive(self, agent_id: str) -> bool:
        agent = self.promises.agents.get(agent_id)
        return agent is not None and agent.state is AgentState.ALIVE

    def _everybody_ends(self) -> None:
        self.note("* everybody ends what they have")
        self._agrees_with_the_store()
        self.deeds.everybody_ends()
        self._look_until(self.timeline.now + _PATIENCE_S, self._left, self._over)

    def _left(self) -> list[str]:
        found = [f"{s.name} is {s.state}: {s.reason}" for s in self.promises.sessions.values() if s.state not in FINAL]
        found += [f"{host.id} holds {thing}" for host in self.hosts.values() for thing in host.holds()]
        return found + [f"overlay {name}" for name in self._overlays]

    def _over(self) -> None:
        self._agrees_with_the_store()
        raise _OverError

    def _agrees_with_the_store(self) -> None:
        """Compare what the store holds with what it said that it committed."""
        ids = [session_id for session_id in self.promises.sessions if session_id not in self.promises.not_in_backup]
        stored = self.users.get(ids)
        for session_id in ids:
            known = self.promises.sessions[session_id]
            if session_id not in stored:
                raise BrokenPromiseError("forgotten", f"{known.name} is not in the store")
            if replace(stored[session_id], wait=None, progress=()) != replace(known, wait=None, progress=()):
                raise BrokenPromiseError("forgotten", f"the store holds {stored[session_id]}, and committed {known}")
            uses = self.users.uses.of_sessions([session_id])
            names = [kernel.name for kernel in known.possible_kernels]
            logs = {name: self.users.log(session_id, name) for name in names}
            logged = {name: int(log) for name, log in logs.items() if log is not None}
            self.promises.histories_are_true(session_id, self.users.story(session_id), uses, logged)
