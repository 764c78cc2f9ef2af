"""What running sessions use, kept up to date with each report; warnings and ends that follow from it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from muster.core.lifecycle.idle import IdleRules, ends, judged
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Kernel, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.usage.kernel import KernelUse, first_use, next_use
from muster.settings import Settings
from muster.store.store import Store

_LEAST_GAP_S = 60.0


class SessionEnds:
    """What it remembers is what the store holds: whoever works the queue next goes on from there."""

    def __init__(self, store: Store, rules_of: Callable[[str], IdleRules]) -> None:
        self._store = store
        self._rules_of = rules_of
        self._uses: dict[str, KernelUse] = {}
        self._read: set[tuple[str, int]] = set()

    def observe(self, snapshot: Snapshot, reports: Iterable[Mapping[str, Any]], now: float) -> None:
        """Takes in what reports say of the kernels of sessions that run or end."""
        seen = [
            (session, entry)
            for report in reports
            for entry in report.get("kernels", ())
            if entry.get("use") is not None
            and (session := snapshot.on_agents.get(entry["session_id"])) is not None
            and session.started_at is not None
            and entry["generation"] == session.generation
        ]
        self._remember([session for session, _ in seen])
        self._save(
            self._updated(session, entry["kernel_id"], entry["use"], now, is_last=entry["state"] != "running")
            for session, entry in seen
        )

    def hear_last_words(self, session_id: str, words: Iterable[Mapping[str, Any]], now: float) -> None:
        """What kernels had used when they ended."""
        told = [word for word in words if word.get("use") is not None]
        session = self._store.get([session_id]).get(session_id)
        if session is None or session.started_at is None or not told:
            return
        self._remember([session])
        self._save(self._updated(session, word["kernel_id"], word["use"], now, is_last=True) for word in told)

    def events(self, snapshot: Snapshot, decided: Collection[str] = ()) -> list[Event]:
        """Warnings before the end of sessions, and ends of those that were idle for too long; of no `decided` one."""
        running = [session for session in snapshot.placed if session.state is SessionState.RUNNING]
        self._remember(running)
        here = {kernel.id for session in snapshot.placed for kernel in session.kernels}
        self._uses = {kernel_id: use for kernel_id, use in self._uses.items() if kernel_id in here}
        self._read &= {_launch(session) for session in snapshot.placed}
        found = [
            ends(session, self._of(session), self._rules_of(session.spec.resource_group), snapshot.now)
            for session in running
            if session.id not in decided
        ]
        return [event for event in found if event is not None]

    def _of(self, session: Session) -> dict[str, KernelUse]:
        uses = {kernel.id: self._uses.get(kernel.id) for kernel in session.kernels}
        return {key: use for key, use in uses.items() if use is not None and use.generation == session.generation}

    def _remember(self, sessions: Iterable[Session]) -> None:
        unknown = {_launch(session): session for session in sessions if _launch(session) not in self._read}
        if not unknown:
            return
        for use in self._store.uses.of_sessions([session.id for session in unknown.values()]):
            if (use.session_id, use.generation) in unknown:
                self._uses[use.kernel_id] = use
        self._read |= unknown.keys()

    def _updated(
        self, session: Session, kernel_id: str, sample: Mapping[str, Any], now: float, *, is_last: bool
    ) -> KernelUse | None:
        """None where nothing is new."""
        kernel = next((kernel for kernel in session.kernels if kernel.id == kernel_id), None)
        if kernel is None or session.started_at is None:
            return None
        before = self._uses.get(kernel_id)
        if before is None or before.generation != session.generation:
            return first_use(kernel_id, session.generation, session.id, session.started_at, sample, now)
        return self._judged(before, next_use(before, sample, now, is_last=is_last), kernel, session)

    def _judged(self, before: KernelUse, use: KernelUse, kernel: Kernel, session: Session) -> KernelUse | None:
        found = judged(before, use, kernel, self._rules_of(session.spec.resource_group))
        return None if found == before else found

    def _save(self, uses: Iterable[KernelUse | None]) -> None:
        changed = [use for use in uses if use is not None]
        if changed:
            self._store.uses.save(changed)
            self._uses |= {use.kernel_id: use for use in changed}


def idle_rules(settings: Settings) -> Callable[[str], IdleRules]:
    """By resource group. What three observations in a row could have told counts."""
    gap_s = max(_LEAST_GAP_S, 3 * settings.observe_interval_s)
    return lambda resource_group: settings.idle.rules(resource_group, gap_s)


def _launch(session: Session) -> tuple[str, int]:
    return session.id, session.generation
