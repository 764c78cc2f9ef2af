"""When an agent on which launches fail becomes suspect, and when it does not."""

import pytest

from muster.core.agents.launch_record import (
    FailedLaunch,
    LaunchOutcome,
    LaunchRecord,
    SuspectRules,
    records_after,
)
from tests.strategies.values import NOW

ALL = frozenset({"a1", "a2"})
RULES = SuspectRules()


def failed(agent_id: str, number: int, owner: str = "", *, failed_elsewhere: bool = False) -> LaunchOutcome:
    owner = owner or f"user-{number}"
    return LaunchOutcome(agent_id, f"s{number}", owner, False, failed_elsewhere)


def went_well(agent_id: str) -> LaunchOutcome:
    return LaunchOutcome(agent_id, "s9", "ada", True)


def after(*outcomes: LaunchOutcome, owners: int = 2, takers: frozenset[str] = ALL) -> dict[str, LaunchRecord]:
    records: dict[str, LaunchRecord] = {}
    for outcome in outcomes:
        records |= records_after(records, [outcome], owners, takers, NOW)
    return records


def suspects(records: dict[str, LaunchRecord]) -> set[str]:
    return {agent_id for agent_id, record in records.items() if record.suspect_until is not None}


SEVERAL = [failed("a1", number) for number in range(RULES.after)]


def test_an_agent_on_which_launches_of_several_sessions_fail_in_a_row_is_suspect_for_a_while():
    assert suspects(after(*SEVERAL[:-1])) == set()
    record = after(*SEVERAL)["a1"]
    assert record.suspect_until == NOW + RULES.for_s
    assert record.reason == "launches of 3 sessions failed there in a row"


def test_the_site_says_after_how_many_sessions_and_for_how_long():
    records: dict[str, LaunchRecord] = {}
    for number in range(2):
        assert suspects(records) == set()
        records |= records_after(records, [failed("a1", number)], 2, ALL, NOW, SuspectRules(after=2, for_s=60.0))
    assert records["a1"].suspect_until == NOW + 60
    assert records["a1"].reason == "launches of 2 sessions failed there in a row"


def test_repeated_failures_of_one_session_make_no_agent_suspect():
    assert suspects(after(*[failed("a1", 1)] * 9)) == set()


def test_a_launch_that_goes_well_clears_the_agent():
    assert suspects(after(*SEVERAL[:-1], went_well("a1"), SEVERAL[-1])) == set()
    assert after(*SEVERAL, went_well("a1"))["a1"] == LaunchRecord()


def test_sessions_that_fail_elsewhere_too_are_held_against_neither_agent():
    records = after(*SEVERAL, failed("a2", 0))
    assert suspects(records) == set()
    assert "a2" not in records
    assert suspects(after(*(failed("a1", n, failed_elsewhere=True) for n in range(5)))) == set()


@pytest.mark.parametrize(("owners", "suspect"), [(1, True), (2, False)])
def test_one_user_makes_an_agent_suspect_only_where_nobody_else_has_sessions(owners, suspect):
    records = after(*(failed("a1", number, "ada") for number in range(5)), owners=owners)
    assert bool(suspects(records)) == suspect


def test_the_last_agent_that_takes_sessions_is_never_suspect():
    assert suspects(after(*SEVERAL, takers=frozenset({"a1"}))) == set()


def test_an_agent_on_trial_is_suspect_again_after_one_failure_and_cleared_by_one_success():
    trial = after(*SEVERAL)["a1"].on_trial()
    assert (trial.suspect_until, len(trial.failures)) == (None, RULES.after)
    assert suspects(records_after({"a1": trial}, [failed("a1", 7)], 2, ALL, NOW)) == {"a1"}
    assert records_after({"a1": trial}, [went_well("a1")], 2, ALL, NOW) == {"a1": LaunchRecord()}


def test_only_the_latest_failures_are_kept():
    record = after(*(failed("a1", number) for number in range(9)))["a1"]
    assert record.failures == tuple(FailedLaunch(f"s{number}", f"user-{number}") for number in (6, 7, 8))
