"""What each owner has used in a simulation, for orders that depend on it."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from muster.core.agents.agent import Agent
from muster.core.model.session import Session
from muster.core.usage.by_owner import SessionRun, decay, decayed_usage
from muster.core.values.slots import total


class OwnerUsageMeter:
    """The owners' usage by `muster.core.usage.by_owner`, kept up to date run by run."""

    def __init__(self, agents: Iterable[Agent], half_life_s: float) -> None:
        agents = tuple(agents)
        groups = {agent.resource_group for agent in agents}
        self.capacity = {g: total(a.capacity for a in agents if a.resource_group == g) for g in groups}
        self.half_life_s = half_life_s
        # What each owner had used, and when that was.
        self._of_ended: dict[str, tuple[float, float]] = {}

    def ended(self, session: Session, at: float) -> None:
        """Count the run of a session that has ended."""
        for owner, used in decayed_usage([_run(session, at)], at, self.half_life_s, self.capacity).items():
            before, then = self._of_ended.get(owner, (0.0, at))
            self._of_ended[owner] = before * decay(at - then, self.half_life_s) + used, at

    def at(self, now: float, running: Iterable[Session]) -> "Mapping[str, float]":
        """Return the usage by owner now. It has to be read before the next run ends."""
        return _Usage(tuple(running), now, self)

    def of_ended(self, now: float) -> dict[str, float]:
        """Return what the runs count for that have ended."""
        return {owner: used * decay(now - at, self.half_life_s) for owner, (used, at) in self._of_ended.items()}


class _Usage(Mapping[str, float]):
    """The usage by owner, summed up on request: few orders need it."""

    def __init__(self, running: tuple[Session, ...], now: float, meter: OwnerUsageMeter) -> None:
        self._running = running
        self._now = now
        self._meter = meter

    @cached_property
    def _sums(self) -> dict[str, float]:
        runs = [_run(session, self._now) for session in self._running]
        so_far = decayed_usage(runs, self._now, self._meter.half_life_s, self._meter.capacity)
        of_ended = self._meter.of_ended(self._now)
        return {owner: of_ended.get(owner, 0.0) + so_far.get(owner, 0.0) for owner in {*of_ended, *so_far}}

    def __getitem__(self, owner: str) -> float:
        return self._sums[owner]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums)

    def __len__(self) -> int:
        return len(self._sums)


def _run(session: Session, until: float) -> SessionRun:
    """Return the session's run. What is still being launched has used nothing yet."""
    started_at = until if session.started_at is None else min(session.started_at, until)
    return SessionRun(session.owner, session.spec.resource_group, session.slots, started_at, until)
