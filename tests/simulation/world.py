"""A schedule carried out: users, faults, hosts and control nodes in virtual time, and the promises that must hold."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.agent import Agent, AgentState
from muster.core.model.session import FINAL, Result, Session, SessionState, kernel_count, kernels_of
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.schedule import schedule
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import MusterError, QueueLockLostError, StoreUnavailableError
from muster.service.queue.loop import Nudge
from tests.simulated_agents import host_of
from tests.simulation.daemon import SETTINGS, Daemon, KilledError, virtual_time
from tests.simulation.hosts import Container, Host, ModuleFailedError
from tests.simulation.promises import BrokenPromiseError, Promises
from tests.simulation.schedules import SUBMIT, USERS_AND_FAULTS_END_S, Deed, Schedule
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


@dataclass(frozen=True)
class Verdict:
    """What came of a schedule: the promise that was broken, if any, and its story; which faults struck."""

    schedule: Schedule
    broken: BrokenPromiseError | None
    struck: Counter[str] = field(default_factory=Counter)
    trace: tuple[str, ...] = ()
    lasted_s: float = 0.0


class _OverError(BaseException):
    """The schedule has been carried out, and every promise was kept."""


def carry_out(schedule: Schedule, *, traced: bool = False) -> Verdict:
    """Carry out a schedule until its end, or until a promise is broken."""
    world = _World(schedule, traced=traced)
    broken = None
    with emptied(world.at_gate), virtual_time(world.timeline, world.outside):
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


class _World:
    """Everything that a schedule is about."""

    def __init__(self, schedule: Schedule, *, traced: bool) -> None:
        self.timeline = Timeline()
        self.promises = Promises()
        self.struck: Counter[str] = Counter()
        self.trace: list[str] = []
        self._schedule = schedule
        self._traced = traced
        self._overlays: dict[str, object] = {}
        self.hosts: dict[str, Host] = {}
        for host_id, facts in schedule.hosts:
            hardware, inventory = host_of(host_id, connection="ssh", **dict(facts))
            chance = Chance(schedule.seed, f"host {host_id}")
            peers = lambda: list(self.hosts.values())  # noqa: E731
            self.hosts[host_id] = Host(host_id, hardware, inventory, self.timeline, chance, self, self._overlays, peers)
        self._chance = Chance(schedule.seed, "world")
        self._numbers: dict[str, Session] = {}
        self._submissions: dict[str, Deed] = {}
        self._clock_offset_s = 0.0
        self._database_is_away = False
        self._control_is_cut = False
        self._nudges_are_lost = False
        self._ansible_fails = False
        self._healed = False
        self._ends: list[Callable[[], None]] = []
        self._acting: Daemon | None = None
        self._daemon: Daemon | None = None
        self._fate: tuple[int, Callable[[], None]] | None = None
        self._lock_is_lost = False
        self._is_paused = False
        self._gates = 0
        self._users = WatchedStore.__new__(WatchedStore)

    # What a daemon finds around it

    @contextmanager
    def outside(self) -> Iterator[None]:
        acting, self._acting = self._acting, None
        try:
            yield
        finally:
            self._acting = acting

    def clock(self) -> float:
        return _EPOCH + self.timeline.now + self._clock_offset_s

    def reaches(self, host: Host) -> bool:
        return host.is_reachable and not self._control_is_cut

    def committed(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.in_story:
                session = self.promises.sessions[event.session_id]
                self.note(f"{session.name}: {event.from_state} → {event.to_state}: {event.reason}")
        self.promises.committed(events)

    def observed(self, agents: Iterable[Agent]) -> None:
        agents = list(agents)
        for agent in agents:
            before = self.promises.agents.get(agent.id)
            if before is None or before.state is not agent.state:
                self.note(f"{agent.id} is {agent.state} {agent.problem}")
        self.promises.agents_are(agents, self.hosts)

    def forgotten(self, agent_id: str) -> None:
        self.promises.agents.pop(agent_id, None)

    def pull_fails(self, host: Host, image: str, *, permanent: bool) -> None:
        self.note(f"{host.id}: the pull of {image} fails")
        for session in self.promises.sessions.values():
            if any(k.image == image and k.allocation and k.allocation.agent_id == host.id for k in session.kernels):
                self.promises.launch_fails(host, session.id, permanent=permanent)

    def holds_lock(self, daemon: Daemon) -> bool:
        if self._lock_is_lost:
            self._lock_is_lost = False
            return False
        return daemon is self._daemon

    def at_gate(self) -> None:
        """Before each transaction: a process may die here, and the database may be away."""
        self._gates += 1
        if self._gates > _MOST_TRANSACTIONS:
            raise BrokenPromiseError("livelock", f"{_MOST_TRANSACTIONS} transactions, and no end")
        if self._acting is None:
            return
        if self._acting.is_doomed:
            raise KilledError(0.0, visits_go_on=True)
        if self._fate is not None:
            gates, strike = self._fate
            self._fate = (gates - 1, strike) if gates > 1 else None
            if self._fate is None:
                strike()
        if self._database_is_away:
            raise StoreUnavailableError("the database failed: connection refused; see to it, then try again")

    # What hosts tell of

    def container_starts(self, host: Host, container: Container) -> None:
        self.promises.container_starts(host, container)

    def command_begins(self, host: Host, container: Container) -> None:
        session = self.promises.sessions[container.session_id]
        self.note(f"{host.id}: {session.name}/{container.kernel_name} begins (launch {container.generation})")
        self.promises.command_begins(host, container)
        kernel = next(kernel for kernel in session.kernels if kernel.name == container.kernel_name)
        if kernel.command is not None:
            deed = self._submissions[session.id]
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
            self.timeline.after(0.2, partial(self._death_is_heard, host, container.session_id))

    def _death_is_heard(self, host: Host, session_id: str) -> None:
        # As `_Watchers` of muster/daemon.py: the kernels of a session that is being ended die by our own hand.
        runs = self.promises.sessions[session_id].state is _S.RUNNING
        if runs and self._daemon is not None and self.reaches(host) and host.engine_runs:
            self._daemon.hears_of_death(host.id)

    def launch_fails(self, host: Host, session_id: str, *, permanent: bool) -> None:
        self.note(f"{host.id}: the launch of {self.promises.sessions[session_id].name} fails")
        self.promises.launch_fails(host, session_id, permanent=permanent)

    def is_removed(self, host: Host, container: Container) -> None:
        self.promises.is_removed(host, container)

    # The course of a schedule

    def run(self) -> None:
        """Run until a promise is broken, or raise _OverError."""
        self._users = WatchedStore(self.committed, self.observed, self.forgotten)
        for deed in self._schedule.deeds:
            self.timeline.after(deed.at, partial(self._do, deed))
        self.timeline.after(USERS_AND_FAULTS_END_S, self._heal)
        while True:
            self._live_and_die()

    def _live_and_die(self) -> None:
        """Let a daemon live until it is killed, and time pass until there may be another."""
        daemon = self._daemon = Daemon(self, self._chance)
        daemon.ansible.fails = self._ansible_fails
        try:
            self._lives(daemon)
        except KilledError as killed:
            self.note(f"the daemon is killed for {killed.for_s} s")
            daemon.ansible.cut_short(actions_go_on=killed.visits_go_on)
            self._daemon = None
            self.timeline.sleep(killed.for_s)

    def _lives(self, daemon: Daemon) -> None:
        while True:
            self._acting = daemon
            try:
                daemon.works()
            except (QueueLockLostError, StoreUnavailableError) as error:
                self.note(f"the daemon begins anew: {error or 'its lock is lost'}")
            finally:
                self._acting = None
            self.timeline.sleep(_DAEMON_RETRIES_AFTER_S)

    def note(self, text: str) -> None:
        if self._traced:
            self.trace.append(f"{self.timeline.now:8.2f} s  {text}")

    # Deeds

    def _do(self, deed: Deed) -> None:
        self.struck[deed.kind] += 1
        self.note(f"* {deed}")
        act = (
            self._begin_ansible_fails
            if deed.kind == "Ansible fails"
            else getattr(self, "_" + deed.kind.replace(" ", "_"))
        )
        if deed.kind in {SUBMIT, "end", "restart", "drain", "resume", "hold", "let go"} and self._database_is_away:
            self.timeline.after(5.0, partial(self._do, deed))
            return
        act(deed)

    def _submit(self, deed: Deed) -> None:
        values = dict(deed.values)
        spec = {name: values[name] for name in values if name in SessionSpec.model_fields}
        for name in ("after", "after_ok", "after_any"):
            if name in spec:
                other = self._numbers.get(str(spec.pop(name)))
                spec |= {name: (other.id,)} if other is not None else {}
        number = int(deed.target)
        made = SessionSpec.model_validate({"name": f"s{number}", **spec})
        ids = tuple(
            str(uuid.UUID(int=(number << 96) | (0x4 << 76) | (0x8 << 60) | kernel, version=4))
            for kernel in range(kernel_count(made))
        )
        session = Session(ids[0], made.name, "ada", made, kernels_of(made, ids, made.image), self.clock())
        self._numbers[deed.target] = session
        self._submissions[session.id] = deed
        self._users.add([session])
        self.promises.accepted(session)
        self._wake()

    def _user_changes(self, deed: Deed, change: Callable[[Session, float], Event | None]) -> None:
        known = self._numbers.get(deed.target)
        if known is None:
            return
        session = self._users.get([known.id])[known.id]
        event = change(session, self.clock())
        if event is not None:
            self._users.apply([event])
            self._wake()

    def _end(self, deed: Deed) -> None:
        def end(session: Session, now: float) -> Event | None:
            if session.state in FINAL or session.ends_for_good:
                return None
            self.promises.truths[session.id].ended_by_user = True
            return transitions.end_by_user(session, "ada", now)

        self._user_changes(deed, end)

    def _restart(self, deed: Deed) -> None:
        def restart(session: Session, now: float) -> Event | None:
            if session.state is not _S.RUNNING:
                return None
            self.promises.truths[session.id].restarts += 1
            return transitions.restart(session, "ada", now)

        self._user_changes(deed, restart)

    def _hold(self, deed: Deed) -> None:
        def hold(session: Session, now: float) -> Event | None:
            if session.state is not _S.PENDING or session.held_by is not None:
                return None
            return transitions.hold(session, "ada", now)

        self._user_changes(deed, hold)

    def _let_go(self, deed: Deed) -> None:
        def release(session: Session, now: float) -> Event | None:
            if session.state is not _S.PENDING or session.held_by is None:
                return None
            return transitions.release(session, "ada", now)

        self._user_changes(deed, release)

    def _drain(self, deed: Deed) -> None:
        if deed.target in self.promises.agents:
            self._users.drain_agent(deed.target, "disks")
            self._wake()

    def _resume(self, deed: Deed) -> None:
        if deed.target in self.promises.agents:
            self._users.resume_agent(deed.target)
            self._wake()

    def _wake(self) -> None:
        if self._daemon is not None and not self._nudges_are_lost:
            self.timeline.after(0.02, partial(self._daemon.nudge, Nudge.QUEUE))

    # Faults of hosts

    def _lasts(self, deed: Deed, end: Callable[[], None]) -> None:
        """End a fault after its time, or when everything is put in order."""
        ended = False

        def once() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self.note(f"* {deed.kind} {deed.target} is over")
                end()

        self._ends.append(once)
        self.timeline.after(deed["for_s"], once)

    def _trouble(self, deed: Deed, end: Callable[[Host], None]) -> Host:
        host = self.hosts[deed.target]
        host.troubles += 1

        def over() -> None:
            host.troubles -= 1
            host.well_since = self.timeline.now
            end(host)

        self._lasts(deed, over)
        return host

    def _reboot(self, deed: Deed) -> None:
        host = self._trouble(deed, Host.comes_up)
        if self._daemon is not None:
            self._daemon.watched.discard(host.id)
        host.goes_down()

    def _cut(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.is_cut = False

        host = self._trouble(deed, mended)
        host.is_cut = True
        if self._daemon is not None:
            self._daemon.watched.discard(host.id)

    def _engine_stops(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.engine_runs = True

        host = self._trouble(deed, mended)
        if self._daemon is not None:
            self._daemon.watched.discard(host.id)
        host.engine_stops()

    def _hang(self, deed: Deed) -> None:
        host = self._trouble(deed, lambda _host: None)
        host.hangs_until = self.timeline.now + deed["for_s"]

    def _disk_full(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.disk_is_full = False

        self._trouble(deed, mended).disk_is_full = True

    def _launches_fail(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.launches_fail = False

        self._lasts(deed, partial(mended, self.hosts[deed.target]))
        self.hosts[deed.target].launches_fail = True

    def _stops_fail(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.stops_fail = False

        self._lasts(deed, partial(mended, self.hosts[deed.target]))
        self.hosts[deed.target].stops_fail = True

    def _pulls_fail(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.pulls_fail = ""

        self._lasts(deed, partial(mended, self.hosts[deed.target]))
        self.hosts[deed.target].pulls_fail = "transient"

    def _next_launch_fails(self, deed: Deed) -> None:
        self.hosts[deed.target].next_launches.append(deed["how"])

    def _module_dies(self, deed: Deed) -> None:
        host = self.hosts[deed.target]
        if host.locked_by is not None:
            host.ends(host.locked_by, ModuleFailedError("MODULE FAILURE: it was killed"))

    def _container_dies(self, deed: Deed) -> None:
        host = self.hosts[deed.target]
        for container in host.running()[:1]:
            host.container_ends(container, deed["exit_code"], "command", oom_killed=deed["oom"])

    def _container_vanishes(self, deed: Deed) -> None:
        host = self.hosts[deed.target]
        for container in list(host.containers.values())[:1]:
            self.promises.truths[container.session_id].harms.add("vanished")
            host.container_vanishes(container)

    def _network_gone(self, deed: Deed) -> None:
        host = self.hosts[deed.target]
        for name, network in list(host.networks.items())[:1]:
            self.promises.truths[network.session_id].harms.add("network")
            del host.networks[name]

    def _answer_lost(self, deed: Deed) -> None:
        self.hosts[deed.target].answers.append(("lost", 0.0))

    def _answer_late(self, deed: Deed) -> None:
        self.hosts[deed.target].answers.append(("late", deed["by_s"]))

    def _answer_twice(self, deed: Deed) -> None:
        self.hosts[deed.target].answers.append(("twice", 0.0))

    def _answer_malformed(self, deed: Deed) -> None:
        self.hosts[deed.target].answers.append(("malformed", 0.0))

    def _visit_breaks_off(self, deed: Deed) -> None:
        self.hosts[deed.target].answers.append(("breaks off", 0.0))

    # Faults of control nodes

    def _kill(self, deed: Deed) -> None:
        def strike() -> None:
            raise KilledError(deed["for_s"], visits_go_on=deed["visits_go_on"])

        self._fate = deed["commits"], strike

    def _lock_lost(self, _deed: Deed) -> None:
        self._lock_is_lost = True

    def _pause(self, deed: Deed) -> None:
        """Stop the process, as a machine does that sleeps; meanwhile another control node works the queue."""

        def strike() -> None:
            paused = self._daemon
            self.note(f"the daemon is paused for {deed['for_s']} s; another one takes over")
            with self.outside():
                self._another_works(deed["for_s"])
            self.note("the paused daemon goes on")
            self._daemon, self._lock_is_lost, self._is_paused = paused, True, False

        if not self._is_paused:
            self._is_paused = True
            self._fate = deed["commits"], strike

    def _another_works(self, for_s: float) -> None:
        """Let another control node work the queue, and end it; its visits go on."""
        over = False

        def end() -> None:
            nonlocal over
            over = True
            if self._daemon is not None:
                self._daemon.is_doomed = True

        self._ends.append(end)
        self.timeline.after(for_s, end)
        self._daemon = None
        self.timeline.sleep(0.5)
        while not over:
            self._live_and_die()

    def _database_away(self, deed: Deed) -> None:
        def back() -> None:
            self._database_is_away = False

        self._lasts(deed, back)
        self._database_is_away = True

    def _control_cut(self, deed: Deed) -> None:
        def mended() -> None:
            self._control_is_cut = False

        self._lasts(deed, mended)
        self._control_is_cut = True
        if self._daemon is not None:
            self._daemon.watched.clear()

    def _clock_jumps(self, deed: Deed) -> None:
        self.promises.clock_jumped = True
        self._clock_offset_s += deed["by_s"]

    def _nudges_lost(self, deed: Deed) -> None:
        def back() -> None:
            self._nudges_are_lost = False

        self._lasts(deed, back)
        self._nudges_are_lost = True

    def _ansible_fails_(self, *, fails: bool) -> None:
        self._ansible_fails = fails
        if self._daemon is not None:
            self._daemon.ansible.fails = fails

    def _begin_ansible_fails(self, deed: Deed) -> None:
        self._lasts(deed, lambda: self._ansible_fails_(fails=False))
        self._ansible_fails_(fails=True)

    # What must come true in the end

    def _heal(self) -> None:
        """Put everything in order; from now on the control node has time to do what it promised."""
        self._healed = True
        self.note("* everything is in order from now on")
        for end in self._ends:
            end()
        for host in self.hosts.values():
            host.next_launches.clear()
            host.answers.clear()
            host.hangs_until = 0.0
        if not self._is_paused:
            self._fate = None
        for agent_id in list(self.promises.agents):
            self._users.resume_agent(agent_id)
        for number in self._numbers:
            self._let_go(Deed(0.0, "let go", number))
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
        found = self.promises.unsettled(self.hosts)
        found += [f"{host_id} is in order, and not ALIVE" for host_id in self.hosts if not self._is_alive(host_id)]
        if found:
            return found
        snapshot = self._users.snapshot(self.clock())
        if not snapshot.pending:
            return []
        plan = schedule(snapshot)
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
        for number in self._numbers:
            self._end(Deed(0.0, "end", number))
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
        ids = list(self.promises.sessions)
        stored = self._users.get(ids)
        for session_id in ids:
            known = self.promises.sessions[session_id]
            if session_id not in stored:
                raise BrokenPromiseError("forgotten", f"{known.name} is not in the store")
            if replace(stored[session_id], wait=None, progress=()) != replace(known, wait=None, progress=()):
                raise BrokenPromiseError("forgotten", f"the store holds {stored[session_id]}, and committed {known}")
            self.promises.story_is_legal(session_id, self._users.story(session_id))
