"""What could be otherwise: changes of one pending session or of its surroundings, to replay the scheduler with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core.model.policy import EACH, Limit, Limits
from muster.core.model.session import Result, Session, SessionState, kernel_count, kernels_of, spare_kernels_of
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import LimitHit, LimitKind

_FIELDS_OF_LIMITS: Mapping[LimitKind, str] = {
    LimitKind.USER: "users",
    LimitKind.PROJECT: "projects",
    LimitKind.RESOURCE_GROUP: "resource_groups",
}


@dataclass(frozen=True, slots=True)
class SpecChange:
    """A hypothesis: the session's spec has other values in these fields."""

    fields: Mapping[str, Any]

    def applied(self, snapshot: Snapshot, session_id: str) -> Snapshot:
        sessions = (changed(s, self.fields) if s.id == session_id else s for s in snapshot.sessions)
        return replace(snapshot, sessions=tuple(sessions))


@dataclass(frozen=True, slots=True)
class AgentsBack:
    """A hypothesis: these agents take sessions again. They answer, in time, and are neither drained nor suspect.

    Their GPUs stay as they are, be it in quarantine.
    """

    agent_ids: frozenset[str]

    def applied(self, snapshot: Snapshot, session_id: str) -> Snapshot:
        del session_id
        agents = (replace(a.in_service(), gpus=a.gpus) if a.id in self.agent_ids else a for a in snapshot.agents)
        return replace(snapshot, agents=tuple(agents), slow=snapshot.slow - self.agent_ids)


@dataclass(frozen=True, slots=True)
class LimitRaised:
    """The limit lets the session through."""

    hit: LimitHit

    @property
    def value(self) -> int:
        return self.hit.used + self.hit.requested

    def applied(self, snapshot: Snapshot, session_id: str) -> Snapshot:
        del session_id
        limits = with_limit(snapshot.policy.limits, self.hit, self.value)
        return replace(snapshot, policy=replace(snapshot.policy, limits=limits))


@dataclass(frozen=True, slots=True)
class Later:
    """A hypothesis: it is `at`, and these sessions have ended well by then; with None they end now.

    `started` are sessions that wait, as they run by then.
    """

    ended: tuple[str, ...] = ()
    at: float | None = None
    started: tuple[Session, ...] = ()

    def applied(self, snapshot: Snapshot, session_id: str) -> Snapshot:
        del session_id
        now = snapshot.now if self.at is None else self.at
        gone = frozenset(self.ended)
        over = {
            s.id: replace(s, state=SessionState.TERMINATED, result=Result.SUCCESS, ended_at=now)
            for s in snapshot.sessions
            if s.id in gone
        }
        running = {session.id: session for session in self.started}
        rest = tuple(running.get(s.id, s) for s in snapshot.sessions if s.id not in gone)
        return replace(snapshot, sessions=rest, now=now, ended={**snapshot.ended, **over})


@dataclass(frozen=True, slots=True)
class Moved:
    """A hypothesis: these running sessions are queued again, right behind the session."""

    session_ids: tuple[str, ...]

    def applied(self, snapshot: Snapshot, session_id: str) -> Snapshot:
        ahead = next(session for session in snapshot.sessions if session.id == session_id)
        rest = tuple(_behind(s, ahead) if s.id in self.session_ids else s for s in snapshot.sessions)
        return replace(snapshot, sessions=rest)


Change = SpecChange | AgentsBack | LimitRaised | Later | Moved


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A line with the changes after which the session starts; `starts_at` None: at once.

    `effort` orders suggestions: below 1 the part of its wish that the user gives up, from 1 on what somebody else must
    do, from 2 on waiting. `flags` is what to write at `muster submit`. `nameless` is the text for those who may not see
    the sessions that it names; empty where it names none.
    """

    text: str
    changes: tuple[Change, ...]
    effort: float
    flags: tuple[str, ...] = ()
    starts_at: float | None = field(default=None)
    nameless: str = ""

    def applied(self, snapshot: Snapshot, session_id: str) -> Snapshot:
        return applied(self.changes, snapshot, session_id)


def applied(changes: Sequence[Change], snapshot: Snapshot, session_id: str) -> Snapshot:
    for change in changes:
        snapshot = change.applied(snapshot, session_id)
    return snapshot


def changed(session: Session, fields: Mapping[str, Any]) -> Session:
    """Return the pending session as if it had been submitted with these fields. It has no more kernels than before."""
    spec = session.spec.model_copy(update=dict(fields))
    ids = tuple(kernel.id for kernel in session.possible_kernels)[: kernel_count(spec)]
    held_by = session.held_by if spec.hold else None
    kernels, spare = (make(spec, ids, session.main.image) for make in (kernels_of, spare_kernels_of))
    return replace(session, spec=spec, kernels=kernels, spare=spare, held_by=held_by)


def _behind(session: Session, ahead: Session) -> Session:
    """Return a running session as it waits behind another, to be started anew."""
    waiting = queued_again(session)
    spec = waiting.spec.model_copy(update={"priority": min(session.spec.priority, ahead.spec.priority)})
    return replace(waiting, spec=spec, submitted_at=max(session.submitted_at, ahead.submitted_at + 1))


def queued_again(session: Session) -> Session:
    """Return a placed session as it waits when it is queued again.

    It waits for no other one: those that it had to wait for have started or ended, and no snapshot need have them.
    """
    kernels = tuple(replace(kernel, allocation=None) for kernel in session.kernels)
    spec = session.spec.model_copy(update={"after": (), "after_ok": (), "after_any": ()})
    waiting = replace(
        session, spec=spec, state=SessionState.PENDING, kernels=kernels, step=None, started_at=None, wait=None
    )
    return waiting.of_size(None) if session.spec.is_elastic else waiting


def with_limit(limits: Limits, hit: LimitHit, value: int) -> Limits:
    """Return the limits with the one that was hit at `value`, for the one whom it hit."""
    kind = _FIELDS_OF_LIMITS[hit.kind]
    by_name: Mapping[str, Limit] = getattr(limits, kind)
    limit = by_name.get(hit.who) or by_name.get(EACH, Limit())
    higher = replace(limit, running={**limit.running, hit.counted: value})
    replaced: Limits = replace(limits, **{kind: {**by_name, hit.who: higher}})
    return replaced
