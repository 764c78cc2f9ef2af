"""What the site adds to a snapshot before it is decided on: its policy, and what its users have used."""

from collections.abc import Collection

from muster.core.model.policy import SchedulingPolicy
from muster.core.model.snapshot import Snapshot
from muster.core.usage.by_owner import SessionRun, decay, decayed_usage, group_capacity, runs_so_far
from muster.service.scheduler.overrides import policy_in_force
from muster.service.scheduler.plugins import needs_usage
from muster.settings import Settings
from muster.store.store import Store

# What is older counts for less than a thousandth.
_HALF_LIVES = 10
# An end is written some time after the moment that it tells.
_LATE_S = 300.0


class SiteScheduling:
    """The site's policy. It remembers the usage of ended runs, so that a pass reads only those that ended since."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._used: dict[str, float] = {}
        self._as_of: float | None = None
        self._counted: set[str] = set()
        # By session id and generation.
        self._counted_earlier: set[tuple[str, int]] = set()
        # When those began that run, by session id.
        self._running: dict[str, float] = {}

    def complete(self, snapshot: Snapshot) -> Snapshot:
        """Raises SettingsError when a scheduler plugin cannot be used."""
        return snapshot.under(self.policy(), self._usage(snapshot) if self._needs_usage else {})

    def policy(self) -> SchedulingPolicy:
        """Return the policy that holds now. Raises SettingsError when a scheduler plugin cannot be used."""
        return policy_in_force(self._settings, self._store)

    @property
    def _needs_usage(self) -> bool:
        settings = self._settings
        groups = (settings.scheduling.of(group) for group in settings.resource_groups.values())
        return any(needs_usage(chosen.order, settings.scheduler_plugins) for chosen in (settings.scheduling, *groups))

    def _usage(self, snapshot: Snapshot) -> dict[str, float]:
        now, half_life_s = snapshot.now, self._settings.usage_half_life_s
        capacity = group_capacity(snapshot)
        oldest = now - _HALF_LIVES * half_life_s
        ended = self._store.ended_runs(oldest if self._as_of is None else self._as_of - _LATE_S)
        new = [run for session_id, run in ended.items() if session_id not in self._counted]
        new += self._earlier(snapshot, oldest, ended.keys() - self._counted)
        left = 1.0 if self._as_of is None else decay(max(0.0, now - self._as_of), half_life_s)
        self._used = _sum(
            {owner: used * left for owner, used in self._used.items()},
            decayed_usage(new, now, half_life_s, capacity),
        )
        counted = {session_id for session_id, run in ended.items() if run.ended_at > now - 2 * _LATE_S}
        gone = (self._counted | ended.keys()) - counted
        self._counted_earlier = {run for run in self._counted_earlier if run[0] not in gone}
        self._counted = counted
        self._as_of = now
        return _sum(self._used, decayed_usage(runs_so_far(snapshot), now, half_life_s, capacity))

    def _earlier(self, snapshot: Snapshot, oldest: float, ended: Collection[str]) -> list[SessionRun]:
        """Return runs not counted yet after which sessions were queued again or restarted, none that is too old.

        They are looked for where a session runs no more, or anew; the first time, everywhere.
        """
        running = {session.id: session.started_at for session in snapshot.placed if session.started_at is not None}
        stopped = {session_id for session_id, began in self._running.items() if running.get(session_id) != began}
        self._running = running
        among = None if self._as_of is None else sorted(stopped.union(ended))
        found = {} if among == [] else self._store.uses.earlier_runs(oldest, among)
        new = {key: run for key, run in found.items() if key not in self._counted_earlier}
        self._counted_earlier |= new.keys()
        return list(new.values())


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {owner: one.get(owner, 0.0) + other.get(owner, 0.0) for owner in one | other}
