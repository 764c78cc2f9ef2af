"""Decide which pending sessions may be tried now, and on which agents.

Holds, begins, dependencies, arrays and limits decide. A session that is refused here delays no session behind it. A
whole queue goes through this in each pass: what several sessions have in common is worked out once, and they share one
`Wait`.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from muster.core.model.session import FINAL, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import LimitHit, LimitKind, Wait, WaitCode
from muster.core.scheduling.closures import Closures
from muster.core.scheduling.limits import RunningLimits
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.units import format_moment

_STARTED = FINAL | {SessionState.RUNNING, SessionState.TERMINATING}
_NAMED = 3
_Dependencies = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


class Admission:
    """The admission of one pass, for all resource groups: a user's limits hold across them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._now = snapshot.now
        limits = snapshot.policy.limits
        self._limits = RunningLimits(limits, snapshot.placed) if limits.of_running else None
        self._closures = Closures(snapshot, lambda session: self.refusal(session) is None)
        self._shared: dict[tuple[object, ...], Wait] = {}
        self._of_arrays: dict[tuple[str, int, int | None], Wait | None] = {}
        self._of_dependencies: dict[_Dependencies, Wait | None] = {}

    def refusal(self, session: Session) -> Wait | None:
        """Return why the session may not be tried now.

        Call it in queue order, with `admit` for each session that is placed.
        """
        spec = session.spec
        if session.held_by is not None:
            return self._held(session.held_by)
        if session.retry_at is not None and session.retry_at > self._now:
            return self._retry(session, session.retry_at)
        if spec.begin is not None and spec.begin > self._now:
            return self._begin(spec.begin)
        if spec.after or spec.after_ok or spec.after_any:
            refused = self._dependency(spec)
            if refused is not None:
                return refused
        if session.array_id is not None:
            refused = self._array(session, session.array_id)
            if refused is not None:
                return refused
        return self._limits.refusal(session) if self._limits is not None else None

    def admit(self, session: Session) -> None:
        """Count a session that was placed in this pass."""
        if self._limits is not None:
            self._limits.add(session)
        if session.array_id is not None:
            self._placed_of_arrays[session.array_id] += 1

    def more(self, session: Session) -> int:
        """Return how many spare kernels its limits allow a session that was placed in this pass."""
        return self._limits.more(session, session.spare) if self._limits is not None else len(session.spare)

    def admit_more(self, session: Session, count: int) -> None:
        """Count so many of the spare kernels of a session that was placed in this pass."""
        if self._limits is not None:
            self._limits.add_kernels(session, session.spare[:count])

    @property
    def is_bounded(self) -> bool:
        """Return whether limits, reservations or gangs that lost an agent may keep any session from starting."""
        return self._limits is not None or self._closures.is_any

    def closed_agents(self, session: Session) -> frozenset[str]:
        """Return the agents that take no such session now, for a reservation or for a gang that lost an agent."""
        return self._closures.agents(session)

    def closed_at(self, session: Session, at: float) -> frozenset[str]:
        """Return the agents that a window closes to the session if it starts at that later time."""
        return self._closures.agents_at(session, at)

    def window(self, session: Session) -> Wait:
        """Return why a session waits that would start if no agent were closed to it."""
        return self._closures.wait(session)

    def window_end(self, session: Session) -> float | None:
        """Return when the first of the windows ends that close agents to a session; None where none does."""
        return self._closures.window_end(session)

    def _held(self, by: str) -> Wait:
        key = "held", by
        if key not in self._shared:
            self._shared[key] = Wait(WaitCode.HELD, f"held by {by}")
        return self._shared[key]

    def _retry(self, session: Session, retry_at: float) -> Wait:
        # A moment, not a delay: while only time passes, the last pass's words go on to be shown.
        at = format_moment(math.ceil(retry_at))
        message = f"the last launch failed ({session.reason}); it is tried again at {at}"
        return Wait(WaitCode.RETRY, message, until=retry_at)

    def _begin(self, begin: float) -> Wait:
        key = "begin", begin
        if key not in self._shared:
            message = f"does not start before {format_moment(begin)}"
            self._shared[key] = Wait(WaitCode.BEGIN, message, until=begin)
        return self._shared[key]

    def _array(self, session: Session, array_id: str) -> Wait | None:
        placed = self._placed_of_arrays[array_id]
        # One that was placed while its array was updated, and is back in the queue, has the bound of before.
        most = session.spec.array_most
        key = array_id, placed, most
        if key not in self._of_arrays:
            self._of_arrays[key] = None if most is None or placed < most else _array_is_full(placed, most)
        return self._of_arrays[key]

    @cached_property
    def _placed_of_arrays(self) -> Counter[str]:
        return Counter(session.array_id for session in self._snapshot.placed if session.array_id is not None)

    @cached_property
    def _by_id(self) -> Mapping[str, Session]:
        return {**self._snapshot.ended, **{session.id: session for session in self._snapshot.sessions}}

    def _dependency(self, spec: SessionSpec) -> Wait | None:
        key = spec.after, spec.after_ok, spec.after_any
        if key not in self._of_dependencies:
            self._of_dependencies[key] = self._impossible(key) or self._unmet(key)
        return self._of_dependencies[key]

    def _impossible(self, dependencies: _Dependencies) -> Wait | None:
        """Return the wait for a dependency that can never come true."""
        _, after_ok, _ = dependencies
        unknown = [session_id for ids in dependencies for session_id in ids if session_id not in self._by_id]
        if unknown:
            message = f"it waits for session {unknown[0]}, which does not exist; update it without that"
            return Wait(WaitCode.NEVER_RUNS, message, waits_for=tuple(unknown))
        failed = [s for s in map(self._by_id.__getitem__, after_ok) if s.state in FINAL and not s.succeeded]
        if not failed:
            return None
        how = "was cancelled" if failed[0].state is SessionState.CANCELLED else "failed"
        message = f"it starts after {failed[0].name} succeeds, which {how}; update it without that"
        return Wait(WaitCode.NEVER_RUNS, message, waits_for=tuple(session.id for session in failed))

    def _unmet(self, dependencies: _Dependencies) -> Wait | None:
        after, after_ok, after_any = (list(map(self._by_id.__getitem__, ids)) for ids in dependencies)
        unmet = (
            ("start", "starts", [session for session in after if session.state not in _STARTED]),
            ("succeed", "succeeds", [session for session in after_ok if session.state not in FINAL]),
            ("end", "ends", [session for session in after_any if session.state not in FINAL]),
        )
        clauses = [
            f"{_names(sessions)} {several if len(sessions) > 1 else one}"
            for several, one, sessions in unmet
            if sessions
        ]
        if not clauses:
            return None
        waits_for = tuple(dict.fromkeys(session.id for _, _, sessions in unmet for session in sessions))
        return Wait(WaitCode.DEPENDENCY, f"starts after {' and '.join(clauses)}", waits_for=waits_for)


def moments(snapshot: Snapshot) -> Iterator[float]:
    """Yield later times at which the clock alone changes which sessions are admitted."""
    waiting = snapshot.waiting_for_a_time
    times = [
        *(session.retry_at for session in waiting if session.retry_at is not None),
        *(session.spec.begin for session in waiting if session.spec.begin is not None),
        *(edge for window in snapshot.reservations for edge in (window.begins_at, window.ends_at)),
    ]
    if any(session.stranded_on for session in waiting):
        silent = [agent.unreachable_since for agent in snapshot.agents]
        times += [since + snapshot.policy.hold_repaired_s for since in silent if since is not None]
    return (time for time in times if time > snapshot.now)


def _array_is_full(placed: int, most: int) -> Wait:
    hit = LimitHit(LimitKind.ARRAY, "", "sessions", most, placed, 1)
    message = f"{placed} {'session' if placed == 1 else 'sessions'} of its array run, and {most} may run at a time"
    return Wait(WaitCode.ARRAY, message, limit=hit)


def _names(sessions: Sequence[Session]) -> str:
    names = ", ".join(session.name for session in sessions[:_NAMED])
    more = len(sessions) - _NAMED
    return f"{names} and {more} others" if more > 0 else names
