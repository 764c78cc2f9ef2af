"""Agents that are closed to some sessions: by a reservation, for a gang that lost one of its agents, or by a failure.

A gang that lost an agent is queued again. The capacity of its agents that answer is kept for it while it waits for the
others. That ends `hold_repaired_s` after those fell silent, or once all are back and have capacity for it. A session
whose launch has failed on an agent keeps off that one, as long as others that are not closed could take it.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.reservation import Reservation
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.placement import Gang, PlacementState, gang_of
from muster.core.values.units import format_moment

_NO_AGENTS: frozenset[str] = frozenset()
_FOR_A_GANG = "a session that lost an agent"
_Key = tuple[str, frozenset[str], int, str]


@dataclass(frozen=True, slots=True)
class _Closed:
    """The reasons for closed agents, by agent id; and the windows among the reasons."""

    agents: frozenset[str]
    causes: Mapping[str, str]
    windows: tuple[Reservation, ...] = field(default=())


def window_cause(window: Reservation) -> str:
    """Return the cause by which waits count the agents that a window closes."""
    return f"{'maintenance' if window.is_maintenance else 'reservation'} {window.name}"


def could_hold(session: Session, agents: Sequence[Agent], snapshot: Snapshot) -> bool:
    """Return whether these agents of its group could hold a session if they were empty."""
    if not agents:
        return False
    gang = gang_of(session, overlay=snapshot.overlay_keeper is not None)
    policy = snapshot.policy.of(session.spec.resource_group).placement
    return PlacementState.of(agents, {}, policy).fits(gang)


class Closures:
    """The closures of one pass. `may_start` says of a session whether it may be tried at all."""

    def __init__(self, snapshot: Snapshot, may_start: Callable[[Session], bool]) -> None:
        self._snapshot = snapshot
        self._may_start = may_start
        self._windows = [window for window in snapshot.reservations if window.ends_at > snapshot.now]
        self._begins = sorted(window.begins_at for window in self._windows)
        self._admitting: dict[tuple[str, str], frozenset[str]] = {}
        self._known: dict[_Key, _Closed] = {}
        self._keeping_off: dict[tuple[_Key, tuple[str, ...], Gang], _Closed] = {}

    @property
    def is_any(self) -> bool:
        """Return whether agents are closed to sessions whose launches have not failed."""
        return bool(self._windows or self._held)

    def agents(self, session: Session) -> frozenset[str]:
        """Return the ids of the agents that take no such session now; one object for all sessions of a kind."""
        if not self.is_any and not session.failed_on:
            return _NO_AGENTS
        return self._closed(session).agents

    def wait(self, session: Session) -> Wait:
        """Return why a session waits that would start if no agent were closed to it.

        It says until when where agents are closed by windows alone: nobody knows for how long they are kept for a gang.
        """
        closed = self._closed(session)
        filtered = Counter(closed.causes.values())
        message = "agents are closed to it: " + ", ".join(f"{n} for {cause}" for cause, n in sorted(filtered.items()))
        coming = [window.begins_at for window in closed.windows if window.begins_at > self._snapshot.now]
        if coming:
            at = format_moment(min(coming))
            message += f"; with a time limit that ends before {at} it could start sooner"
        until = None if _FOR_A_GANG in filtered else self.window_end(session)
        return Wait(WaitCode.WINDOW, message, filtered=dict(filtered), until=until)

    def window_end(self, session: Session) -> float | None:
        """Return when the first of the windows ends that close agents to a session; None where none does."""
        return min((window.ends_at for window in self._closed(session).windows), default=None)

    def agents_at(self, session: Session, at: float) -> frozenset[str]:
        """Return the ids of the agents that a window closes to the session if it starts at that later time."""
        if not self._windows:
            return _NO_AGENTS
        windows = [window for window in self._met(session, at) if window.ends_at > at]
        covered = (a.id for a in self._group(session) if any(w.covers(a.id, a.resource_group) for w in windows))
        return frozenset(covered) if windows else _NO_AGENTS

    def _closed(self, session: Session) -> _Closed:
        group, admitting = session.spec.resource_group, self._admitting_windows(session)
        begun = self._begun(session, self._snapshot.now)
        key = group, admitting, begun, session.id if session.id in self._held else ""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._found(session)
        return self._without_failed(session, key, known) if session.failed_on else known

    def _begun(self, session: Session, at: float) -> int:
        """Return how many windows have begun before a session that starts at that time has ended."""
        limit = session.time_limit
        return len(self._begins) if limit is None else bisect_left(self._begins, at + limit)

    def _met(self, session: Session, at: float) -> list[Reservation]:
        """Return the windows that a session which starts at that time would meet, or that are over by then."""
        begins, admitting = self._begins[: self._begun(session, at)], self._admitting_windows(session)
        return [w for w in self._windows if w.begins_at in begins and w.name not in admitting]

    def _found(self, session: Session) -> _Closed:
        causes: dict[str, str] = {}
        closing = []
        for window in self._met(session, self._snapshot.now):
            cause = window_cause(window)
            ids = [a.id for a in self._group(session) if window.covers(a.id, a.resource_group)]
            causes |= dict.fromkeys(ids, cause)
            closing += [window] if ids else []
        for holder_id, kept in self._held.items():
            if holder_id != session.id:
                causes |= dict.fromkeys(kept, _FOR_A_GANG)
        return _Closed(frozenset(causes), causes, tuple(closing))

    def _without_failed(self, session: Session, key: _Key, closed: _Closed) -> _Closed:
        """Return with what is closed the agents on which its launches failed, if it could have others when empty."""
        gang = gang_of(session, overlay=self._snapshot.overlay_keeper is not None)
        of_kind = key, session.failed_on, gang
        known = self._keeping_off.get(of_kind)
        if known is None:
            shut = {*session.failed_on, *self._snapshot.slow, *closed.agents}
            others = [a for a in self._group(session) if a.takes_sessions and a.id not in shut]
            if could_hold(session, others, self._snapshot):
                failed = dict.fromkeys(session.failed_on, "an earlier launch of it that failed there")
                closed = replace(closed, agents=closed.agents.union(failed), causes={**failed, **closed.causes})
            known = self._keeping_off[of_kind] = closed
        return known

    def _admitting_windows(self, session: Session) -> frozenset[str]:
        key = session.owner, session.spec.project
        known = self._admitting.get(key)
        if known is None:
            known = self._admitting[key] = frozenset(w.name for w in self._windows if w.admits(*key))
        return known

    def _group(self, session: Session) -> Iterator[Agent]:
        return (a for a in self._snapshot.agents if a.resource_group == session.spec.resource_group)

    @cached_property
    def _held(self) -> Mapping[str, frozenset[str]]:
        """Return, by the id of a session that lost an agent, the agents that are kept for it."""
        return {
            session.id: held
            for session in self._snapshot.pending
            if session.stranded_on and self._may_start(session) and (held := self._kept_for(session))
        }

    def _kept_for(self, session: Session) -> frozenset[str]:
        agents = [self._by_id[agent_id] for agent_id in session.stranded_on if agent_id in self._by_id]
        if any(
            window.covers(a.id, a.resource_group) for window in self._met(session, self._snapshot.now) for a in agents
        ):
            return _NO_AGENTS
        answering = [agent for agent in agents if agent.takes_sessions]
        away = [agent for agent in agents if agent.state is not AgentState.ALIVE]
        if len(agents) < len(session.stranded_on) or len(answering) + len(away) < len(agents):
            return _NO_AGENTS
        kept = bool(answering) and (all(map(self._may_be_back, away)) if away else self._has_room(session, answering))
        return frozenset(agent.id for agent in answering) if kept else _NO_AGENTS

    def _may_be_back(self, agent: Agent) -> bool:
        now = self._snapshot.now
        since = now if agent.unreachable_since is None else agent.unreachable_since
        return now - since <= self._snapshot.policy.hold_repaired_s

    def _has_room(self, session: Session, agents: list[Agent]) -> bool:
        kernels: dict[str, list[Kernel]] = {agent.id: [] for agent in agents}
        for placed in self._snapshot.placed:
            for kernel in placed.kernels:
                if kernel.allocation and kernel.allocation.agent_id in kernels:
                    kernels[kernel.allocation.agent_id].append(kernel)
        policy = self._snapshot.policy.of(session.spec.resource_group).placement
        state = PlacementState.of(agents, kernels, policy)
        return state.fits(gang_of(session, overlay=self._snapshot.overlay_keeper is not None))

    @cached_property
    def _by_id(self) -> Mapping[str, Agent]:
        return {agent.id: agent for agent in self._snapshot.agents}
