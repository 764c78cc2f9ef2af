"""Forecast the effect of taking agents out of service, on the sessions there and on those that wait."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.future import end_of
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.hypothesis import queued_again


@dataclass(frozen=True, slots=True)
class Hit:
    """A session on the agents. `ends_at` is None where unknown; `fits_elsewhere` if it were queued again now.

    One that is being ended for good fits nowhere else.
    """

    session: Session
    ends_at: float | None
    fits_elsewhere: bool


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """The effects of a drain. `empty_at` holds, by agent id, when nothing is left there; None where unknown.

    `delayed` holds pending sessions.
    """

    hits: tuple[Hit, ...]
    empty_at: dict[str, float | None]
    delayed: tuple[Session, ...]


def drain_plan(snapshot: Snapshot, agent_ids: Collection[str]) -> DrainPlan:
    """Return the plan, with the sessions in the order in which they end; those whose end is unknown come last."""
    on_them = [session for session in snapshot.placed if set(agent_ids).intersection(session.agents)]
    ends = {session.id: end_of(session, snapshot.now) for session in on_them}
    drained = _without(snapshot, agent_ids)
    elsewhere = _placed_elsewhere(drained, on_them)
    hits = [
        Hit(session, _known(ends[session.id]), session.id in elsewhere)
        for session in sorted(on_them, key=lambda session: (ends[session.id], session.submitted_at, session.id))
    ]
    empty_at = {
        agent_id: _known(max((ends[s.id] for s in on_them if agent_id in s.agents), default=snapshot.now))
        for agent_id in agent_ids
    }
    return DrainPlan(tuple(hits), empty_at, _delayed(snapshot, drained))


def _without(snapshot: Snapshot, agent_ids: Collection[str]) -> Snapshot:
    agents = (replace(a, drain_reason="planned") if a.id in agent_ids else a for a in snapshot.agents)
    return replace(snapshot, agents=tuple(agents))


def _placed_elsewhere(drained: Snapshot, sessions: Collection[Session]) -> set[str]:
    """Return the ids of sessions that would all start at once if they were queued before everything that waits.

    Those that are being ended for good are left out: they take nobody's place.
    """
    again = {session.id: queued_again(session) for session in sessions if not session.ends_for_good}
    others = [session for session in drained.placed if session.id not in again]
    plan = schedule(replace(drained, sessions=(*others, *again.values())))
    return {placement.session_id for placement in plan.placements}


def _delayed(snapshot: Snapshot, drained: Snapshot) -> tuple[Session, ...]:
    before, after = _starts(snapshot), _starts(drained)
    return tuple(session for session in snapshot.pending if after[session.id] > before[session.id])


def _starts(snapshot: Snapshot) -> dict[str, float]:
    """Return when each pending session starts, as far as it is known."""
    plan = schedule(snapshot)
    waits = {session_id: wait.estimated_start for session_id, wait in plan.waits.reasons.items()}
    starts = {session_id: math.inf if start is None else start for session_id, start in waits.items()}
    return starts | {placement.session_id: snapshot.now for placement in plan.placements}


def _known(moment: float) -> float | None:
    return None if math.isinf(moment) else moment
