"""How launches went on an agent lately: one on which those of several sessions fail in a row is suspect."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SuspectRules:
    """The site's settings: an agent is suspect after launches of so many sessions failed there, for so long."""

    after: int = 3
    for_s: float = 600.0


class FailedLaunch(NamedTuple):
    """The session of a launch that failed, and its owner."""

    session_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """The launches that failed on an agent since one went well there, at most one of each session.

    It is suspect until `suspect_until`, for the `reason`. After that it is on trial: one more failure suffices.
    """

    failures: tuple[FailedLaunch, ...] = ()
    suspect_until: float | None = None
    reason: str = ""

    def without(self, session_id: str, rules: SuspectRules) -> "LaunchRecord":
        """Return the record without a session that has failed elsewhere too; too few are left to suspect the agent."""
        failures = tuple(failure for failure in self.failures if failure.session_id != session_id)
        if len(failures) == len(self.failures):
            return self
        return replace(self, failures=failures) if len(failures) >= rules.after else LaunchRecord(failures)

    def is_over(self, now: float, rules: SuspectRules) -> bool:
        """Return whether its time as a suspect is over, or longer ahead than it lasts: the clock was set back."""
        # Compared by the same sum that made it: a difference would have rounding errors.
        return self.suspect_until is not None and not now < self.suspect_until <= now + rules.for_s

    def on_trial(self) -> "LaunchRecord":
        """Return the record once its time as a suspect is over."""
        return LaunchRecord(self.failures)

    def failed(self, failure: FailedLaunch, now: float, rules: SuspectRules, *, may_suspect: bool) -> "LaunchRecord":
        """Return the record with another session's failed launch.

        All users see the reason, so that it does not say what a session's launch failed with.
        """
        others = self.without(failure.session_id, rules).failures
        failures = (*others, failure)[-rules.after :]
        if len(failures) < rules.after or not may_suspect:
            return replace(self, failures=failures)
        reason = f"launches of {len(failures)} sessions failed there in a row"
        return LaunchRecord(failures, now + rules.for_s, reason)


class LaunchOutcome(NamedTuple):
    """The result of a launch on one agent."""

    agent_id: str
    session_id: str
    owner: str
    went_well: bool
    failed_elsewhere: bool = False


def records_after(
    records: Mapping[str, LaunchRecord],
    outcomes: Iterable[LaunchOutcome],
    owners: int,
    takers: frozenset[str],
    now: float,
    rules: SuspectRules = SuspectRules(),
) -> dict[str, LaunchRecord]:
    """Return, by agent id, the records that these outcomes change.

    A session that fails on a second agent is itself the cause: it is held against neither. No user can make an agent
    suspect alone while others have sessions: `owners` counts those who have. Nor does an agent become suspect where no
    other agent takes sessions; `takers` are those that do.
    """
    after = dict(records)
    for outcome in outcomes:
        record = after.get(outcome.agent_id, LaunchRecord())
        if outcome.went_well:
            after[outcome.agent_id] = LaunchRecord()
            continue
        elsewhere = [key for key, other in after.items() if key != outcome.agent_id and _names(other, outcome)]
        if elsewhere or outcome.failed_elsewhere:
            after |= {
                key: after[key].without(outcome.session_id, rules)
                for key in (*elsewhere, outcome.agent_id)
                if key in after
            }
            continue
        failure = FailedLaunch(outcome.session_id, outcome.owner)
        blamed = {failure.owner, *(known.owner for known in record.without(outcome.session_id, rules).failures)}
        may_suspect = bool(takers - {outcome.agent_id}) and len(blamed) >= min(2, owners)
        after[outcome.agent_id] = record.failed(failure, now, rules, may_suspect=may_suspect)
    return {key: record for key, record in after.items() if record != records.get(key, LaunchRecord())}


def _names(record: LaunchRecord, outcome: LaunchOutcome) -> bool:
    return any(failure.session_id == outcome.session_id for failure in record.failures)
