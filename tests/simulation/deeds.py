"""What users do and what befalls the cluster: a method for each kind of deed, by its name."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.lifecycle.update import updated
from muster.core.model.overrides import Limited, LimitOverride
from muster.core.model.policy import Limit
from muster.core.model.reservation import Reservation
from muster.core.model.session import FINAL, Session, SessionState, kernel_count, kernels_of, spare_kernels_of
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import NotFoundError
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.updating import Update
from tests.simulation.checks.promises import BrokenPromiseError
from tests.simulation.containers import ModuleFailedError
from tests.simulation.daemon import KilledError
from tests.simulation.hosts import Host
from tests.simulation.schedules import (
    BACK_UP,
    LIMIT,
    OVERTAKES,
    OWNERS,
    RESERVE,
    RESTORE,
    SUBMIT,
    UPDATE,
    USERS,
    Deed,
)
from tests.simulation.store import backup, restore

if TYPE_CHECKING:
    import sqlite3

    from tests.simulation.world import World

_S = SessionState
_USERS_RETRY_AFTER_S = 5.0


class Deeds:
    """The deeds done to a world. `numbers` are sessions by their numbers, `submissions` their deeds by session id."""

    def __init__(self, world: "World") -> None:
        self.numbers: dict[str, Session] = {}
        self.submissions: dict[str, Deed] = {}
        self._world = world
        self._backup: sqlite3.Connection | None = None
        self._are_over = False

    def everybody_ends(self) -> None:
        """Let users end all sessions, and do nothing any more that they were kept from so far."""
        self._are_over = True
        for number in self.numbers:
            self._end(Deed(0.0, "end", number))

    def everybody_lets_go(self) -> None:
        """Let users release what they hold."""
        for number in self.numbers:
            self._let_go(Deed(0.0, "let go", number))

    def do(self, deed: Deed) -> None:
        """Do it now; what users do, once the database answers, or while a decision is made."""
        if commits := dict(deed.values).get(OVERTAKES):
            values = tuple((name, value) for name, value in deed.values if name != OVERTAKES)
            self._world.is_overtaken(commits, partial(self.do, replace(deed, values=values)))
            return
        if deed.kind in {SUBMIT, RESERVE, BACK_UP, RESTORE, LIMIT, UPDATE, *USERS}:
            if self._are_over:
                return
            if self._world.database_is_away or (deed.kind == RESTORE and self._world.is_paused):
                self._world.timeline.after(_USERS_RETRY_AFTER_S, partial(self.do, deed))
                return
        self._world.struck[deed.kind] += 1
        self._world.note(f"* {deed}")
        getattr(self, "_" + deed.kind.lower().replace(" ", "_"))(deed)

    def _submit(self, deed: Deed) -> None:
        values = dict(deed.values)
        spec = {name: values[name] for name in values if name in SessionSpec.model_fields}
        for name in ("after", "after_ok", "after_any"):
            if name in spec:
                other = self.numbers.get(str(spec.pop(name)))
                spec |= {name: (other.id,)} if other is not None else {}
        number = int(deed.target)
        made = SessionSpec.model_validate({"name": f"s{number}", **spec})
        ids = tuple(
            str(uuid.UUID(int=(number << 96) | (0x4 << 76) | (0x8 << 60) | kernel, version=4))
            for kernel in range(kernel_count(made))
        )
        kernels, spare = (make(made, ids, made.image) for make in (kernels_of, spare_kernels_of))
        session = Session(
            ids[0], made.name, values.get("owner", OWNERS[0]), made, kernels, self._world.clock(), spare=spare
        )
        self.numbers[deed.target] = session
        self.submissions[session.id] = deed
        self._world.users.add([session])
        self._world.promises.accepted(session)
        self._world.wake()

    def _user_changes(self, deed: Deed, change: Callable[[Session, float], Event | None]) -> None:
        known = self.numbers.get(deed.target)
        if known is None:
            return
        session = self._world.users.get([known.id]).get(known.id)
        if session is None:
            raise BrokenPromiseError("forgotten", f"{known.name} is not in the store")
        event = change(session, self._world.clock())
        if event is not None:
            self._world.users.apply([event])
            self._world.wake()

    def _end(self, deed: Deed) -> None:
        def end(session: Session, now: float) -> Event | None:
            if session.state in FINAL or session.ends_for_good:
                return None
            self._world.promises.truths[session.id].ended_by_user = True
            return transitions.end_by_user(session, "ada", now)

        self._user_changes(deed, end)

    def _restart(self, deed: Deed) -> None:
        def restart(session: Session, now: float) -> Event | None:
            if session.state is not _S.RUNNING:
                return None
            self._world.promises.truths[session.id].restarts += 1
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
        if deed.target in self._world.promises.agents:
            self._world.users.agents.drain(deed.target, "disks")
            self._world.promises.drained.add(deed.target)
            self._world.wake()

    def _resume(self, deed: Deed) -> None:
        if deed.target in self._world.promises.agents:
            self._world.users.agents.resume(deed.target)
            self._world.promises.drained.discard(deed.target)
            self._world.wake()

    def _drain_and_end(self, deed: Deed) -> None:
        """Drain an agent as `muster agent drain --end-sessions` does."""
        self._drain(deed)
        for number, known in self.numbers.items():

            def end(session: Session, now: float) -> Event | None:
                if session.state in FINAL or session.ends_for_good or deed.target not in session.agents:
                    return None
                self._world.promises.truths[session.id].ended_by_user = True
                return transitions.end_by_drain(session, "drain", now)

            if known.id not in self._world.promises.not_in_backup:
                self._user_changes(Deed(deed.at, "end", number), end)

    def _extend(self, deed: Deed) -> None:
        def extend(session: Session, now: float) -> Event | None:
            if session.state is not _S.RUNNING or session.time_limit is None:
                return None
            return transitions.extend(session, deed["by_s"], "ada", now)

        self._user_changes(deed, extend)

    def _update(self, deed: Deed) -> None:
        known = self.numbers.get(deed.target)
        session = self._world.users.get([known.id])[known.id] if known is not None else None
        # One that has run keeps what its use was counted with, as `update_errors` says.
        if session is None or session.state is not _S.PENDING or session.requeues:
            return
        if self._world.users.queue.adoption() is not None:
            return
        spec = SessionSpec.model_validate({**session.spec.model_dump(mode="json"), **dict(deed.values)})
        number = (int(deed.target) << 96) | (0x4 << 76) | (0x8 << 60) | ((session.updates + 1) << 32)
        ids = (str(uuid.UUID(int=number | kernel, version=4)) for kernel in count())
        update = Update(session, updated(session, spec, lambda: next(ids)), "updated by ada")
        users, now = self._world.users, self._world.clock()
        for done in users.update([update], now, PendingCheck(users.pending(), lambda _: None)):
            self._world.promises.updated(replace(done.after, reason=done.reason))
        self._world.wake()

    def _reserve(self, deed: Deed) -> None:
        now = self._world.clock()
        begins_at = now + deed["begins_in_s"]
        agents = frozenset({deed.target} if deed.target else ())
        users = frozenset(deed["users"])
        reservation = Reservation("r1", begins_at, begins_at + deed["for_s"], agents=agents, users=users)
        self._world.users.reservations.add(reservation)
        self._world.promises.reserved(reservation)
        self._world.wake()

    def _back_up(self, _deed: Deed) -> None:
        self._backup = backup()

    def _restore(self, deed: Deed) -> None:
        """Restore the backup as `muster restore` does, while nothing works the queue."""
        if self._backup is None:
            return
        if self._world.daemon is not None:
            self._world.daemon.is_doomed = True
        restore(self._backup)
        self._world.opens_its_store()
        self._world.users.queue.note_restore(holds=deed["hold"])
        forgotten = self._world.promises.restored(self._world.users)
        self.numbers = {number: known for number, known in self.numbers.items() if known.id not in forgotten}
        if deed["hold"]:
            for number in self.numbers:
                self._hold(Deed(0.0, "hold", number))

    # Faults of hosts

    def _lasts(self, deed: Deed, end: Callable[[], None]) -> None:
        """End a fault after its time, or when everything is put in order."""
        ended = False

        def once() -> None:
            nonlocal ended
            if not ended:
                ended = True
                self._world.note(f"* {deed.kind} {deed.target} is over")
                end()

        self._world.ends.append(once)
        self._world.timeline.after(deed["for_s"], once)

    def _trouble(self, deed: Deed, end: Callable[[Host], None]) -> Host:
        host = self._world.hosts[deed.target]
        host.troubles += 1

        def over() -> None:
            host.troubles -= 1
            # An answer of it may be late for longer.
            host.well_since = max(host.well_since, self._world.timeline.now)
            end(host)

        self._lasts(deed, over)
        return host

    def _reboot(self, deed: Deed) -> None:
        host = self._trouble(deed, Host.comes_up)
        if self._world.daemon is not None:
            self._world.daemon.watched.discard(host.id)
        self._world.promises.is_harmed("reboot", host)
        host.goes_down()

    def _reinstall(self, deed: Deed) -> None:
        self._reboot(deed)
        self._world.hosts[deed.target].is_emptied()
        self._world.promises.forgetful.add(deed.target)

    def _prune(self, deed: Deed) -> None:
        host = self._world.hosts[deed.target]
        if not host.is_up or not host.engine_runs:
            return
        for container in host.containers.values():
            if container.state != "running":
                self._world.promises.truths[container.session_id].harms.add("vanished")
        host.is_pruned(all_images=deed["all_images"])

    def _state_lost(self, deed: Deed) -> None:
        self._world.hosts[deed.target].loses_its_state()
        self._world.promises.forgetful.add(deed.target)

    def _leave(self, deed: Deed) -> None:
        """Take a host out of the inventory for a time. What it has goes on."""

        def back(host: Host) -> None:
            host.is_in_inventory = True

        self._trouble(deed, back).is_in_inventory = False

    def _shrink(self, deed: Deed) -> None:
        """Take half of a host's cores away for a time, or a GPU that fell off its bus."""
        host = self._world.hosts[deed.target]
        names = ("cpu_count",) if deed["part"] == "cpu" else ("gpus", "gpu_health")
        whole = {name: host.hardware[name] for name in names}

        def mended() -> None:
            host.hardware.update(whole)

        self._lasts(deed, mended)
        host.has_shrunk = True
        host.hardware.update({n: all_ // 2 if isinstance(all_, int) else all_[:-1] for n, all_ in whole.items()})

    def _recut(self, deed: Deed) -> None:
        """Cut a host's GPUs into other units for a time. What shares them goes on as it was made."""
        host = self._world.hosts[deed.target]
        self._lasts(deed, partial(setattr, host, "inventory", host.inventory))
        host.inventory = {**host.inventory, "units_per_gpu": deed["units"]}

    def _limit(self, deed: Deed) -> None:
        """Set a limit for a time, in place of the settings'."""
        limited, overrides = Limited(deed["of"]), self._world.users.overrides
        limit = Limit({deed["counted"]: deed["most"]})
        overrides.set_limit(LimitOverride(limited, deed.target, limit, "root", self._world.clock()))
        self._world.wake()

        def unset() -> None:
            # A database that was restored meanwhile may not have it.
            with suppress(NotFoundError):
                self._world.users.overrides.unset_limit(limited, deed.target)
            self._world.wake()

        self._lasts(deed, unset)

    def _settings_change(self, deed: Deed) -> None:
        """Let the daemon be started anew, with other settings."""

        def strike() -> None:
            self._world.has_settings_of(deed["site"])
            raise KilledError(deed["for_s"], visits_go_on=True)

        self._world.meets(1, strike, is_after=False)

    def _cut(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.is_cut = False

        host = self._trouble(deed, mended)
        host.is_cut = True
        if self._world.daemon is not None:
            self._world.daemon.watched.discard(host.id)

    def _engine_stops(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.engine_runs = True

        host = self._trouble(deed, mended)
        if self._world.daemon is not None:
            self._world.daemon.watched.discard(host.id)
        host.engine_stops()

    def _hang(self, deed: Deed) -> None:
        host = self._trouble(deed, lambda _host: None)
        host.hangs_until = self._world.timeline.now + deed["for_s"]

    def _is_so_for_a_time(self, deed: Deed, name: str, value: object) -> None:
        """Give an attribute of a host another value, for as long as the deed lasts."""
        host = self._world.hosts[deed.target]
        self._lasts(deed, partial(setattr, host, name, type(value)()))
        setattr(host, name, value)

    def _host_clock_wrong(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "clock_wrong_by_s", float(deed["by_s"]))

    def _disk_full(self, deed: Deed) -> None:
        def mended(host: Host) -> None:
            host.disk_is_full = False

        self._trouble(deed, mended).disk_is_full = True

    def _launches_fail(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "launches_fail", value=True)

    def _stops_fail(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "stops_fail", value=True)

    def _removals_fail(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "removals_fail", deed["of"])

    def _pulls_fail(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "pulls_fail", "transient")

    def _pulls_refused(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "pulls_fail", "permanent")

    def _pulls_slow(self, deed: Deed) -> None:
        self._is_so_for_a_time(deed, "pulls_take_s", float(deed["by_s"]))

    def _next_launch_fails(self, deed: Deed) -> None:
        self._world.hosts[deed.target].next_launches.append(deed["how"])

    def _module_dies(self, deed: Deed) -> None:
        host = self._world.hosts[deed.target]
        if host.locked_by is not None:
            host.ends(host.locked_by, ModuleFailedError("MODULE FAILURE: it was killed"))

    def _module_dies_removing(self, deed: Deed) -> None:
        self._world.hosts[deed.target].dies_removing += 1

    def _container_dies(self, deed: Deed) -> None:
        host = self._world.hosts[deed.target]
        for container in host.running()[:1]:
            host.container_ends(container, deed["exit_code"], "command", oom_killed=deed["oom"])

    def _container_vanishes(self, deed: Deed) -> None:
        host = self._world.hosts[deed.target]
        for container in list(host.containers.values())[:1]:
            self._world.promises.truths[container.session_id].harms.add("vanished")
            host.container_vanishes(container)

    def _network_gone(self, deed: Deed) -> None:
        host = self._world.hosts[deed.target]
        for name in list(host.networks)[:1]:
            for container in host.containers.values():
                if container.network == name:
                    self._world.promises.truths[container.session_id].harms.add("network")
            del host.networks[name]

    def _answer_lost(self, deed: Deed) -> None:
        self._world.hosts[deed.target].answers.append(("lost", 0.0))

    def _answer_late(self, deed: Deed) -> None:
        self._world.hosts[deed.target].answers.append(("late", deed["by_s"]))

    def _answer_twice(self, deed: Deed) -> None:
        self._world.hosts[deed.target].answers.append(("twice", 0.0))

    def _answer_malformed(self, deed: Deed) -> None:
        self._world.hosts[deed.target].answers.append(("malformed", 0.0))

    def _visit_breaks_off(self, deed: Deed) -> None:
        self._world.hosts[deed.target].answers.append(("breaks off", 0.0))

    # Faults of control nodes

    def _kill(self, deed: Deed) -> None:
        def strike() -> None:
            raise KilledError(deed["for_s"], visits_go_on=deed["visits_go_on"])

        self._world.meets(deed["commits"], strike, is_after=deed["after"])

    def _lock_lost(self, _deed: Deed) -> None:
        self._world.lock_is_lost = True

    def _pause(self, deed: Deed) -> None:
        """Stop the process, as a machine does that sleeps; meanwhile another control node works the queue."""

        def strike() -> None:
            paused = self._world.daemon
            self._world.note(f"the daemon is paused for {deed['for_s']} s; another one takes over")
            with self._world.outside():
                self._world.another_works(deed["for_s"])
            self._world.note("the paused daemon goes on")
            self._world.daemon, self._world.lock_is_lost, self._world.is_paused = paused, True, False

        if not self._world.is_paused:
            self._world.is_paused = True
            self._world.meets(deed["commits"], strike, is_after=deed["after"])

    def _database_away(self, deed: Deed) -> None:
        def back() -> None:
            self._world.database_is_away = False

        self._lasts(deed, back)
        self._world.database_is_away = True

    def _control_cut(self, deed: Deed) -> None:
        def mended() -> None:
            self._world.control_is_cut = False

        self._lasts(deed, mended)
        self._world.control_is_cut = True
        if self._world.daemon is not None:
            self._world.daemon.watched.clear()

    def _clock_jumps(self, deed: Deed) -> None:
        self._world.promises.clock_jumped = True
        self._world.clock_offset_s += deed["by_s"]

    def _nudges_lost(self, deed: Deed) -> None:
        def back() -> None:
            self._world.nudges_are_lost = False

        self._lasts(deed, back)
        self._world.nudges_are_lost = True

    def _ansible_fails(self, deed: Deed) -> None:
        def over() -> None:
            self._world.ansible_fails = False

        self._lasts(deed, over)
        self._world.ansible_fails = True
