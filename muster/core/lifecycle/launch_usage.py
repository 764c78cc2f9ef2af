"""The usage of kernels in their present launches, and what follows from it for their sessions.

The store holds the same, so that the next worker of the queue goes on from there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.lifecycle.idle import IdleRules, ends, judged
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.usage.kernel import KernelUsage, first_usage, next_usage

IdleRulesOf = Callable[[str], IdleRules]
"""The rules of a resource group."""
_Launch = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LaunchUsage:
    """The usage by kernel id. `read` holds the launches (session id, generation) that were read from the store."""

    by_kernel: Mapping[str, KernelUsage] = field(default_factory=dict)
    read: frozenset[_Launch] = frozenset()

    def unread(self, sessions: Iterable[Session]) -> list[Session]:
        """Return those of the sessions whose usage has not been read from the store yet."""
        return [s for s in sessions if s.started_at is not None and _launch(s) not in self.read]

    def with_read(self, sessions: Collection[Session], usage: Iterable[KernelUsage]) -> "LaunchUsage":
        """Return this with the store's usage of these sessions, of whichever launch."""
        launches = {_launch(session) for session in sessions}
        found = {use.kernel_id: use for use in usage if (use.session_id, use.generation) in launches}
        return LaunchUsage({**self.by_kernel, **found}, self.read | launches)

    def only(self, snapshot: Snapshot) -> "LaunchUsage":
        """Return this without sessions that are not on agents any more."""
        launches = {_launch(session) for session in snapshot.placed}
        if self.read <= launches:
            return self
        kernels = {kernel.id for session in snapshot.placed for kernel in session.kernels}
        return LaunchUsage({key: use for key, use in self.by_kernel.items() if key in kernels}, self.read & launches)

    def changed_by(
        self, samples: Iterable[tuple[Session, Mapping[str, Any]]], now: float, rules_of: IdleRulesOf, *, is_last: bool
    ) -> dict[str, KernelUsage]:
        """Return, by kernel id, the usage that is new with these kernels of a report or of last words.

        With `is_last` all of them have ended; otherwise those that do not run.
        """
        changed: dict[str, KernelUsage] = {}
        for session, entry in samples:
            last = is_last or entry["state"] != "running"
            before = changed.get(entry["kernel_id"], self.by_kernel.get(entry["kernel_id"]))
            use = _next(before, session, entry, now, rules_of, is_last=last)
            if use is not None:
                changed[use.kernel_id] = use
        return changed

    def with_changed(self, changed: Mapping[str, KernelUsage]) -> "LaunchUsage":
        return LaunchUsage({**self.by_kernel, **changed}, self.read) if changed else self

    def events(self, snapshot: Snapshot, rules_of: IdleRulesOf, decided: Collection[str] = ()) -> list[Event]:
        """Return warnings before the end of sessions, and ends of those that were idle for too long.

        Sessions that something else was `decided` of are left out.
        """
        found = [
            ends(session, self._of(session), rules_of(session.spec.resource_group), snapshot.now)
            for session in snapshot.placed
            if session.state is SessionState.RUNNING and session.id not in decided
        ]
        return [event for event in found if event is not None]

    def _of(self, session: Session) -> dict[str, KernelUsage]:
        usage = {kernel.id: self.by_kernel.get(kernel.id) for kernel in session.kernels}
        return {key: use for key, use in usage.items() if use is not None and use.generation == session.generation}


def samples_in(reports: Iterable[Mapping[str, Any]], snapshot: Snapshot) -> list[tuple[Session, Mapping[str, Any]]]:
    """Return the kernels whose usage is in the reports, each with its session that runs or ends."""
    return [
        (session, entry)
        for report in reports
        for entry in report.get("kernels", ())
        if entry.get("use") is not None
        and (session := snapshot.on_agents.get(entry["session_id"])) is not None
        and session.started_at is not None
        and entry["generation"] == session.generation
    ]


def _next(
    before: KernelUsage | None,
    session: Session,
    entry: Mapping[str, Any],
    now: float,
    rules_of: IdleRulesOf,
    *,
    is_last: bool,
) -> KernelUsage | None:
    """Return the kernel's usage after another sample of it; None where nothing is new."""
    kernel = next((kernel for kernel in session.kernels if kernel.id == entry["kernel_id"]), None)
    if kernel is None or session.started_at is None:
        return None
    if before is None or before.generation != session.generation:
        return first_usage(kernel.id, session.generation, session.id, session.started_at, entry["use"], now)
    use = next_usage(before, entry["use"], now, is_last=is_last)
    found = judged(before, use, kernel, rules_of(session.spec.resource_group))
    return None if found == before else found


def _launch(session: Session) -> _Launch:
    return session.id, session.generation
