"""The usage of kernels in their present launches, and what follows from it for their sessions.

The store holds the same, so that the next worker of the queue goes on from there.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from muster.contract.report import UseSample
from muster.core.lifecycle.idle import IdleRules, ends, judged
from muster.core.lifecycle.transitions import Event
from muster.core.model.reported import Reports, reported_kernels
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.usage.kernel import KernelUsage, first_usage, next_usage

IdleRulesOf = Callable[[str], IdleRules]
"""The rules of a resource group."""
_Launch = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of a session's kernel; `is_last`: the kernel has ended."""

    session: Session
    kernel_id: str
    use: UseSample
    is_last: bool


@dataclass(frozen=True, slots=True)
class LaunchUsage:
    """The usage by kernel id. `read` holds the launches (session id, generation) that were read from the store."""

    by_kernel: Mapping[str, KernelUsage] = field(default_factory=dict)
    read: frozenset[_Launch] = frozenset()

    def unread(self, sessions: Iterable[Session]) -> list[Session]:
        """Return those of the sessions whose usage has not been read from the store yet."""
        return [s for s in sessions if s.started_at is not None and _launch(s) not in self.read]

    def with_read(self, sessions: Collection[Session], usage: Iterable[KernelUsage]) -> "LaunchUsage":
        """Return this with the store's usage of these sessions in all launches."""
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

    def changed_by(self, samples: Iterable[Sample], now: float, rules_of: IdleRulesOf) -> dict[str, KernelUsage]:
        """Return, by kernel id, the usage that is new with these samples."""
        changed: dict[str, KernelUsage] = {}
        for sample in samples:
            before = changed.get(sample.kernel_id, self.by_kernel.get(sample.kernel_id))
            use = _next(before, sample, now, rules_of)
            if use is not None:
                changed[use.kernel_id] = use
        return changed

    def with_changed(self, changed: Mapping[str, KernelUsage]) -> "LaunchUsage":
        return LaunchUsage({**self.by_kernel, **changed}, self.read) if changed else self

    def events(
        self,
        snapshot: Snapshot,
        rules_of: IdleRulesOf,
        decided: Collection[str] = (),
        asked: frozenset[str] = frozenset(),
    ) -> list[Event]:
        """Return warnings before the end of sessions, and ends of those that were idle for too long.

        Sessions that something else was `decided` of are left out. None ends on agents that are `asked`: it may have
        been used since.
        """
        found = [
            (session, ends(session, self._of(session), rules_of(session.spec.resource_group), snapshot.now))
            for session in snapshot.placed
            if session.state is SessionState.RUNNING and session.id not in decided
        ]
        return [
            event
            for session, event in found
            if event is not None and (event.to_state is SessionState.RUNNING or asked.isdisjoint(session.agents))
        ]

    def _of(self, session: Session) -> dict[str, KernelUsage]:
        usage = {kernel.id: self.by_kernel.get(kernel.id) for kernel in session.kernels}
        return {key: use for key, use in usage.items() if use is not None and use.generation == session.generation}


def samples_in(reports: Reports, snapshot: Snapshot) -> list[Sample]:
    """Return the usage samples in the reports, by agent id, of sessions that run or end."""
    return [
        Sample(session, entry.kernel_id, entry.use, is_last=entry.state != "running")
        for session in _on(reports, snapshot)
        if session.started_at is not None
        for entry in reported_kernels(session, reports).values()
        if entry.use is not None
    ]


def _on(reports: Reports, snapshot: Snapshot) -> Iterator[Session]:
    """Yield the sessions that these reports could speak of."""
    named = {entry.session_id for report in reports.values() for entry in report.kernels}
    return (session for session_id in named if (session := snapshot.on_agents.get(session_id)) is not None)


def _next(before: KernelUsage | None, sample: Sample, now: float, rules_of: IdleRulesOf) -> KernelUsage | None:
    """Return the kernel's usage after another sample of it; None where nothing is new."""
    session = sample.session
    kernel = next((kernel for kernel in session.kernels if kernel.id == sample.kernel_id), None)
    if kernel is None or session.started_at is None:
        return None
    if before is None or before.generation != session.generation:
        return first_usage(kernel.id, session.generation, session.id, session.started_at, sample.use, now)
    use = next_usage(before, sample.use, now, is_last=sample.is_last)
    found = judged(before, use, kernel, rules_of(session.spec.resource_group))
    return None if found == before else found


def _launch(session: Session) -> _Launch:
    return session.id, session.generation
