"""The promises, checked while a schedule goes on: what was committed is compared with what really happened on hosts."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.lifecycle.applied import applied_to
from muster.core.lifecycle.transitions import MAX_LAUNCHES, TRANSITIONS, Event
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.reservation import Reservation
from muster.core.model.session import FINAL, PLACED, Kernel, Result, Session, SessionState, StoryLine
from muster.core.usage.kernel import KernelUsage
from muster.store.store import Store
from tests.simulation.checks.adoptions import Unknown, is_disturbed, unknown_launch
from tests.simulation.checks.end_signals import Signalled, broken_signal, is_planned, time_of_signal
from tests.simulation.checks.good_ends import unheard_success
from tests.simulation.checks.histories import broken_story, untrue_usage
from tests.simulation.checks.kept_limits import beyond_limits
from tests.simulation.checks.overtaking import unheeded
from tests.simulation.checks.truths import Begun, Truth
from tests.simulation.containers import Container
from tests.simulation.hosts import Host
from tests.strategies.capacity import Ledger

_S = SessionState
_UNDER_WAY = frozenset({_S.SCHEDULED, _S.PREPARING, _S.TERMINATING})
_BEFORE_ITS_COMMAND = "before its command"
# Ends of a kernel that its host or another process caused.
_HARMS = frozenset({"reboot", "engine", "vanished", "network", "lost"})


class BrokenPromiseError(BaseException):
    """A promise was broken; `kind` names it in a word or two. No code of Muster's may catch this."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Promises:
    """The checker. It keeps sessions as the events that were committed make them, and what hosts really did."""

    def __init__(
        self,
        stored_agents: Callable[[], Iterable[Agent]],
        policy: Callable[[], SchedulingPolicy],
        hosts: Mapping[str, Host],
    ) -> None:
        """`policy` returns the one in force."""
        self._stored_agents = stored_agents
        self._hosts = hosts
        self._policy = policy
        self._reservations: list[Reservation] = []
        self.sessions: dict[str, Session] = {}
        self.truths: dict[str, Truth] = {}
        self.agents: dict[str, Agent] = {}
        self.drained: set[str] = set()
        self.stranded: set[tuple[str, int, str]] = set()
        self._given_up: set[tuple[str, int, str]] = set()
        self.not_in_backup: set[str] = set()
        self._to_adopt: dict[str, Unknown] = {}
        self.forgetful: set[str] = set()
        self.clock_jumped = False

    # What is committed

    def accepted(self, session: Session) -> None:
        self.sessions[session.id] = session
        self.truths[session.id] = Truth(session)

    def updated(self, session: Session) -> None:
        """Take in that a session that waits asks for something else. Its launches that failed count no longer."""
        truth = self.truths[session.id]
        truth.priorities.add(self.sessions[session.id].spec.priority)
        truth.failed_on.clear()
        self.sessions[session.id] = session

    def reserved(self, reservation: Reservation) -> None:
        self._reservations.append(reservation)

    def committed(self, events: Iterable[Event]) -> None:
        """Take in what one transaction changed."""
        placed_on: set[str] = set()
        placed: list[Session] = []
        for event in events:
            before = self.sessions.get(event.session_id)
            if before is None:
                raise BrokenPromiseError("forgotten", f"an event of a session that nobody submitted: {event}")
            if event.to_state not in TRANSITIONS[before.state]:
                raise BrokenPromiseError("illegal event", f"{before.name}: {before.state} → {event.to_state}")
            after = applied_to(before, event)
            if after is before:
                raise BrokenPromiseError("illegal event", f"{before.name}: the store took what does not apply: {event}")
            self.sessions[after.id] = after
            if after.generation != before.generation:
                self.truths[after.id].gangs[after.generation] = {kernel.name for kernel in after.kernels}
            self._heeds_people(before, after, event)
            self._makes_room_rightly(before, event)
            self._waits_for_its_signal(before, event)
            self._has_not_ended_well(before, event)
            self._is_not_tried_for_ever(before, after)
            if event.to_state is _S.SCHEDULED:
                placed_on |= set(after.agents)
            # A restarted one keeps its place.
            if (before.state, after.state) == (_S.PENDING, _S.SCHEDULED):
                self._is_open_to(after, event.at)
                placed.append(after)
            if after.state in {_S.TERMINATED, _S.ERROR} or (after.state is _S.TERMINATING and after.result):
                self._has_a_true_cause(before, after)
        if placed_on:
            self._gives_no_slot_twice(placed_on)
        self._are_within_limits(placed)

    def restored(self, store: Store) -> set[str]:
        """Take in that the database is an older one by now. Return the sessions that it does not know.

        What was PENDING then, or being launched or restarted, may begin again unless it runs, and what has ended since
        has vanished.
        """
        stored = store.get([session_id for session_id in self.sessions if session_id not in self.not_in_backup])
        forgotten = self.sessions.keys() - stored.keys() - self.not_in_backup
        self.not_in_backup |= forgotten
        for session_id in forgotten:
            self.sessions[session_id] = replace(self.sessions[session_id], state=_S.TERMINATED)
        updated = [session for session in stored.values() if session.updates != self.sessions[session.id].updates]
        for session in stored.values():
            self.sessions[session.id] = session
            self.truths[session.id].harms.add("restored")
            restarts = session.state is _S.TERMINATING and not session.ends_for_good
            begins = session.state in {_S.PENDING, _S.SCHEDULED, _S.PREPARING} or restarts
            self.truths[session.id].restarts += begins
        alive = [s for s in stored.values() if s.state not in FINAL and not s.ends_for_good]
        unknown = {
            session.id: unknown_launch(session, self.truths[session.id].gangs, self._hosts.values())
            for session in alive
        }
        self._to_adopt = {session_id: launch for session_id, launch in unknown.items() if launch is not None}
        for session in updated:
            # It may run with other containers than the backup knows, or as many that have more.
            self._to_adopt.pop(session.id, None)
            for host in self._hosts.values():
                host.has_shrunk = host.has_shrunk or any(key[0] == session.id for key in host.containers)
        for host in self._hosts.values():
            for container in host.containers.values():
                session = self.sessions[container.session_id]
                if session.generation != container.generation or host.id not in session.agents:
                    self.stranded.add((container.session_id, container.generation, host.id))
        self.agents = {agent.id: agent for agent in store.agents.all()}
        self.drained = {agent.id for agent in self.agents.values() if agent.drain_reason is not None}
        there = {reservation.name for reservation in store.reservations.all()}
        self._reservations = [one for one in self._reservations if one.name in there]
        return forgotten

    def _is_adopted(self, session: Session, container: Container) -> None:
        """Check, where a container is removed, that it is not of a launch that a restored database should know."""
        unknown = self._to_adopt.get(session.id)
        if unknown is None or unknown.generation != container.generation:
            return
        del self._to_adopt[session.id]
        is_excused = self._of(container).ended_by_user or is_disturbed(unknown, session, self._hosts.values())
        if session.generation != unknown.generation and not is_excused:
            message = f"{session.name}/{container.kernel_name} ran when the backup was restored, and is removed"
            raise BrokenPromiseError("not adopted", message)

    def agents_are(self, agents: Iterable[Agent]) -> None:
        """Take in what the control node holds of agents."""
        for agent in agents:
            if agent.state is AgentState.LOST and not self._is(agent.id, AgentState.LOST):
                host = self._hosts[agent.id]
                if not host.was_in_trouble:
                    message = f"{agent.id} counts as LOST, and was never out of order by itself: {agent.problem}"
                    raise BrokenPromiseError("lost wrongly", message)
                for container in host.containers.values():
                    self.stranded.add((container.session_id, container.generation, host.id))
                for session in self.sessions.values():
                    if agent.id in session.agents:
                        self.truths[session.id].harms.add("lost")
                        self._given_up.add((session.id, session.generation, host.id))
            self.agents[agent.id] = agent

    def _is(self, agent_id: str, state: AgentState) -> bool:
        return agent_id in self.agents and self.agents[agent_id].state is state

    def _gives_no_slot_twice(self, agents: Collection[str]) -> None:
        """Check the agents that sessions were just placed on: others may have shrunk below what runs there."""
        ledger = Ledger.of(agent for agent in self.agents.values() if agent.id in agents)
        for session in self.sessions.values():
            if session.state in PLACED and not session.holds_nothing:
                least, most = session.spec.sizes
                if not least <= len(session.kernels) <= most or any(kernel.allocation for kernel in session.spare):
                    raise BrokenPromiseError("size", f"{session.name} has {len(session.kernels)} of {least}-{most}")
                for kernel in session.kernels:
                    if kernel.allocation is None:
                        raise BrokenPromiseError("slots", f"{session.name} is {session.state} and holds no room")
                    if kernel.allocation.agent_id in ledger.cpu:
                        ledger.charge(kernel)
        if ledger.overdrawn:
            raise BrokenPromiseError("slots", f"given twice: {', '.join(ledger.overdrawn)}")

    def _are_within_limits(self, placed: Sequence[Session]) -> None:
        """Check sessions that were just placed."""
        holding = [session for session in self.sessions.values() if session.state in PLACED]
        if placed and (beyond := beyond_limits(self._policy().limits, holding, placed)):
            raise BrokenPromiseError("limits", beyond)

    def _heeds_people(self, before: Session, after: Session, event: Event) -> None:
        if overtaken := unheeded(before, after, event, self.drained):
            raise BrokenPromiseError("overtaken", overtaken)

    def _is_open_to(self, session: Session, at: float) -> None:
        """Check that no agent of a session that was placed was set aside for others, or will be while it runs."""
        for reservation in self._reservations:
            if reservation.ends_at <= at or session.owner in reservation.users:
                continue
            limit_s = session.spec.time_limit
            meets = limit_s is None or at + limit_s > reservation.begins_at
            closed = [a for a in session.agents if reservation.covers(a, session.spec.resource_group)]
            if meets and closed:
                raise BrokenPromiseError("reserved", f"{session.name} is placed on {closed} despite {reservation}")

    def _waits_for_its_signal(self, session: Session, event: Event) -> None:
        truth = self.truths[session.id]
        if event.session.get("signalled_at") is not None:
            truth.signals_decided.append(event.session["signalled_at"])
        ends = (event.from_state, event.to_state) == (_S.RUNNING, _S.TERMINATING) and is_planned(event.reason)
        if not ends or not session.spec.signal_s or self.clock_jumped:
            return
        if not any(event.at - at >= time_of_signal(session) for at in truth.signals_decided):
            seconds = [round(event.at - at, 1) for at in truth.signals_decided]
            raise BrokenPromiseError("signal", f"{session.name} ends ({event.reason}) {seconds} s after its signals")
        problem = broken_signal(session, truth.signalled, self._hosts, self.agents)
        if problem:
            raise BrokenPromiseError("signal", f"{session.name} ends ({event.reason}), and {problem}")

    def _has_not_ended_well(self, session: Session, event: Event) -> None:
        if (event.from_state, event.to_state) != (_S.RUNNING, _S.TERMINATING) or not is_planned(event.reason):
            return
        found = unheard_success(session, _deciding(session), event.reason, self._hosts, self.agents)
        if found and not self.clock_jumped and not self.truths[session.id].ended_by_user:
            raise BrokenPromiseError("untrue result", f"{session.name} ends ({event.reason}), and {found}")

    def _is_not_tried_for_ever(self, before: Session, after: Session) -> None:
        """Check a launch that failed, of a session that may run on one agent only."""
        fails_again = after.attempts > max(before.attempts, MAX_LAUNCHES - 1) and after.state is _S.PENDING
        if fails_again and after.spec.agents == after.failed_on:
            message = f"{after.name} failed {after.attempts} times on {after.failed_on[0]}, and may run on no other"
            raise BrokenPromiseError("tried for ever", message)

    def _makes_room_rightly(self, session: Session, event: Event) -> None:
        # What is being ended has ended some time later, when the policy may be another.
        if event.reason.startswith("preempted by ") and event.from_state is not _S.TERMINATING:
            self._is_preempted_rightly(session, event.reason)
        if event.session.get("moved_for"):
            self._is_moved_rightly(session)

    def _is_preempted_rightly(self, session: Session, reason: str) -> None:
        # The end of the reason may say that the session is queued again.
        priority = int(reason.partition(";")[0].rpartition(" ")[2])
        # The one that needed its place may have been updated meanwhile, as it may have been ended.
        had = {priority for truth in self.truths.values() for priority in truth.priorities}
        there_is = priority in had or any(other.spec.priority == priority for other in self.sessions.values())
        may_be = self._policy().of(session.spec.resource_group).preemption and session.spec.preemptible
        if not there_is or not may_be or session.spec.priority >= priority:
            raise BrokenPromiseError("preempted wrongly", f"{session.name}, {reason}")

    def _is_moved_rightly(self, session: Session) -> None:
        may_be = session.spec.requeue or session.spec.preemptible
        if not self._policy().of(session.spec.resource_group).defragment or not may_be:
            raise BrokenPromiseError("moved wrongly", f"{session.name} is moved, and may not be")

    def _has_a_true_cause(self, before: Session, after: Session) -> None:
        truth = self.truths[after.id]
        if after.state is _S.TERMINATING and before.result is after.result and before.state is _S.TERMINATING:
            return
        commands = truth.commands(after.generation)
        deciding = [kernel.name for kernel in _deciding(after)]
        story = f"{after.name} ({after.result}, {after.reason!r})"
        if after.state is _S.ERROR:
            self._failed_to_launch_truly(after, truth, story)
        elif after.result is Result.SUCCESS and after.spec.is_batch:
            if any(name not in commands or commands[name][0] != 0 for name in deciding):
                raise BrokenPromiseError("untrue result", f"{story}: its commands ended so: {commands}")
        elif after.reason.startswith("idle for "):
            self._was_idle(after, truth, story)
        elif after.result is Result.SUCCESS and not truth.ended_by_user:
            raise BrokenPromiseError("untrue result", f"{story}: nobody ended it")
        elif after.result is Result.FAILURE and not truth.ended_by_user:
            self._failed_truly(after, truth, story)
        # A host that went down with its containers gives them exit codes that mean nothing.
        codes = {code for _, cause, code, _ in truth.ends[after.generation] if cause != "reboot"}
        if after.exit_code is not None and after.exit_code not in codes:
            raise BrokenPromiseError("untrue result", f"{story}: exit code {after.exit_code}, but {codes}")

    def _failed_truly(self, session: Session, truth: Truth, story: str) -> None:
        generation = session.generation
        deciding = {kernel.name for kernel in _deciding(session)}
        failed = {name for name, (code, _) in truth.commands(generation).items() if code or name not in deciding}
        died_early = any(cause == _BEFORE_ITS_COMMAND for _, cause, _, _ in truth.ends[generation])
        if failed or died_early or (session.spec.time_limit and "time limit" in session.reason):
            return
        if session.spec.time_limit and self.clock_jumped:
            return
        if session.reason.startswith("preempted by ") and not session.spec.requeue:
            return
        harms = set(truth.harms)
        knew_nothing = any(kernel.agent_generation is None for kernel in session.kernels)
        if "rebooted during the launch" in session.reason and (knew_nothing or self.forgetful & set(session.agents)):
            # Nobody can tell whether the launch had come to a host that has forgotten what did, or had known nothing.
            harms.add("reboot")
        if not harms:
            raise BrokenPromiseError("untrue result", f"{story}: nothing of it failed")
        if session.spec.requeue and harms <= {"lost", "reboot"}:
            raise BrokenPromiseError("not requeued", f"{story}: it only lost its host ({', '.join(sorted(harms))})")

    def _was_idle(self, session: Session, truth: Truth, story: str) -> None:
        """Check that nothing of it was in use for as long as its timeout says."""
        if session.spec.idle_timeout is None:
            raise BrokenPromiseError("untrue result", f"{story}: it may be idle for ever")
        idle_s = truth.idle_s(session.generation)
        if idle_s < session.spec.idle_timeout and not self.clock_jumped:
            raise BrokenPromiseError("untrue result", f"{story}: it was idle for {max(idle_s, 0.0):.0f} s")

    def _failed_to_launch_truly(self, session: Session, truth: Truth, story: str) -> None:
        if truth.permanent_failure:
            return
        failed_on = set(truth.failed_on)
        if len(truth.failed_on) < 3:
            raise BrokenPromiseError("untrue error", f"{story}: its launch failed on {truth.failed_on or 'no agent'}")
        # As stored: an observed agent does not know whether it is drained or suspect.
        others = [agent for agent in self._stored_agents() if agent.id not in failed_on and agent.takes_sessions]
        others = [agent for agent in others if not session.spec.agents or agent.id in session.spec.agents]
        could = [agent.id for agent in others if not session.slots.beyond(agent.capacity)]
        if len(failed_on) == 1 and could:
            message = f"{story}: its launches failed on {truth.failed_on[0]} alone, and {could[0]} could have had it"
            raise BrokenPromiseError("one agent's trouble", message)

    # What really happens

    def container_starts(self, host: Host, container: Container) -> None:
        """Take in that a container runs; `command_begins` says when it may do its work."""
        self._of(container).started.append((host, container))
        running = host.running()
        cpus = sum(other.cpu_milli for other in running)
        if cpus > host.hardware["cpu_count"] * 1000 and not host.has_shrunk:
            names = ", ".join(f"{self.sessions[c.session_id].name}/{c.kernel_name}" for c in running)
            raise BrokenPromiseError("slots", f"{host.id} runs more than it has: {names}")
        if overdrawn := host.overdrawn_gpus():
            raise BrokenPromiseError("slots", f"GPUs of {host.id} are given twice: {overdrawn}")
        # One that has ended is on its network in name only: docs/adr/0019.
        others = {c.session_id for c in running if c.network == container.network}
        if others != {container.session_id}:
            names = ", ".join(sorted(self.sessions[session_id].name for session_id in others))
            raise BrokenPromiseError("one network", f"on {host.id}, {container.network} is shared by {names}")

    def command_begins(self, host: Host, container: Container) -> None:
        truth = self._of(container)
        session = self.sessions[container.session_id]
        generation = container.generation
        earlier = {begun.generation for begun in truth.begun}
        again = [b for b in truth.begun if (b.generation, b.kernel) == (generation, container.kernel_name)]
        name = f"{session.name}/{container.kernel_name}"
        if again and again[0].container is container:
            return
        if again:
            raise BrokenPromiseError("twice", f"{name} began again in the same launch, on {host.id}")
        if (session.id, generation, host.id) in self._given_up and not self.clock_jumped:
            raise BrokenPromiseError("too late", f"{name} begins on {host.id}, which was LOST since that launch")
        missing = truth.gangs[generation] - truth.ever_up(generation)
        if missing:
            raise BrokenPromiseError("not whole", f"{name} began on {host.id}, but never up were {sorted(missing)}")
        if not session.spec.requeue and len(earlier | {generation}) > 1 + truth.restarts:
            message = f"{name} begins on {host.id} in launch {generation}, and began in {sorted(earlier)}"
            raise BrokenPromiseError("twice", message)
        for begun in truth.begun:
            lives = begun.container.state == "running" and begun.host.is_released(begun.container)
            either = {(session.id, begun.generation, begun.host.id), (session.id, generation, host.id)}
            if begun.generation != generation and lives and not either & self.stranded:
                message = (
                    f"{name} begins on {host.id}, while {begun.kernel} of an earlier launch runs on {begun.host.id}"
                )
                raise BrokenPromiseError("two gangs", message)
        truth.begun.append(Begun(0.0, generation, container.kernel_name, host, container))

    def container_ends(self, container: Container, cause: str) -> None:
        truth = self._of(container)
        if cause == "command" and all(begun.container is not container for begun in truth.begun):
            # Somebody's hand or the engine: an exit code of 0 is no success then.
            cause = _BEFORE_ITS_COMMAND
        end = (container.kernel_name, cause, container.exit_code, container.oom_killed)
        truth.ends[container.generation].append(end)
        if cause in _HARMS:
            truth.harms.add(cause)

    def is_harmed(self, harm: str, host: Host) -> None:
        """Take in that something befell all sessions that are placed on a host."""
        for session in self.sessions.values():
            if host.id in session.agents:
                self.truths[session.id].harms.add(harm)

    def is_removed(self, host: Host, container: Container) -> None:
        session = self.sessions[container.session_id]
        self._is_adopted(session, container)
        is_present = session.state is _S.RUNNING and session.generation == container.generation
        if is_present and host.id in session.agents:
            raise BrokenPromiseError(
                "removed", f"{session.name}/{container.kernel_name} ran, and is removed on {host.id}"
            )

    def is_signalled(self, host: Host, container: Container) -> None:
        truth = self._of(container)
        before = [one for one in truth.signalled if one.container is container]
        if before and before[-1].number >= container.signals:
            raise BrokenPromiseError("signal", f"{container.kernel_name} is sent signal {container.signals} again")
        truth.signalled.append(Signalled(host.timeline.now, container.signals, host, container))

    def launch_fails(self, host: Host, session_id: str, *, permanent: bool) -> None:
        truth = self.truths[session_id]
        truth.failed_on.append(host.id)
        truth.permanent_failure = truth.permanent_failure or permanent

    def _of(self, container: Container) -> Truth:
        return self.truths[container.session_id]

    # What must come true once nothing is in the way any more

    def unsettled(self) -> list[str]:
        """Return what is still under way, or not as it shall stay."""
        found = []
        for session in self.sessions.values():
            if session.state in _UNDER_WAY:
                found.append(f"{session.name} is {session.step or session.state}: {session.reason}")
            elif session.state is _S.RUNNING:
                found += self._not_running(session)
                found += self._idle(session)
        return found

    def _idle(self, session: Session) -> list[str]:
        timeout_s = session.spec.idle_timeout
        # The clock by which idleness is counted stands still after it was set back.
        if timeout_s is None or self.clock_jumped:
            return []
        idle_s = self.truths[session.id].idle_s(session.generation)
        return [f"{session.name} is idle for {idle_s:.0f} s"] if idle_s > timeout_s else []

    def _not_running(self, session: Session) -> list[str]:
        found = []
        for kernel in session.kernels:
            host = self._hosts[kernel.allocation.agent_id] if kernel.allocation else None
            container = host.containers.get((session.id, kernel.name)) if host else None
            if host is None or container is None or container.generation != session.generation:
                found.append(f"{session.name} is RUNNING, and {kernel.name} is not there")
            elif container.state != "running" and self._matters(session, kernel, container):
                found.append(f"{session.name} is RUNNING, and {kernel.name} has ended ({container.exit_code})")
            elif container.state == "running" and not host.is_released(container):
                found.append(f"{session.name} is RUNNING, and {kernel.name} was never released")
            elif not (container.network in host.networks or container.network in host.overlays):
                found.append(f"{session.name} is RUNNING, and {kernel.name} has no network")
        return found

    def _matters(self, session: Session, kernel: Kernel, container: Container) -> bool:
        """Return whether the session must not go on after this kernel's end: others of the same command may run."""
        deciding = [other.name for other in _deciding(session)]
        if kernel.name in deciding and container.exit_code == 0:
            ended = self.truths[session.id].commands(session.generation)
            return all(name in ended for name in deciding)
        return True

    def histories_are_true(
        self, session_id: str, story: Sequence[StoryLine], recorded: Sequence[KernelUsage], logged: Mapping[str, int]
    ) -> None:
        """Check what the store holds of a session's changes and usage, as in tests/simulation/checks/histories.py."""
        session, truth = self.sessions[session_id], self.truths[session_id]
        if broken := broken_story(session, story):
            raise BrokenPromiseError("story", broken)
        if untrue := untrue_usage(session, truth, recorded, logged):
            raise BrokenPromiseError("usage", untrue)

    @property
    def all_have_ended(self) -> bool:
        return all(session.state in FINAL for session in self.sessions.values())


def _deciding(session: Session) -> list[Kernel]:
    """Return the kernels whose end ends the session; written from docs/states.md, not from the code that it judges."""
    if not session.spec.is_batch:
        return []
    return list(session.kernels) if session.spec.run_on == "all" else [session.kernels[0]]
