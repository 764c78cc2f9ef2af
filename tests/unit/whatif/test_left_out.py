"""What is said of the agents that a wait counts as left out."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from muster.core.agents.launch_record import LaunchRecord
from muster.core.model.reservation import Reservation
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.left_out import left_out
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

SMALL, LARGE = make_agent("a1", cpus=4), make_agent("a2", cpus=64)
DISKS = Reservation("disks", NOW - 60, NOW + 3600, agents=frozenset({"a2"}), reason="new disks")
EVENT = Reservation("event", NOW - 60, NOW + 3600, users=frozenset({"bob"}), reason="a course")


def lines(agents: Sequence, windows: Sequence[Reservation] = (), **asked: object) -> list[str]:
    session = make_session(1, **{"cpu": 32, **asked})
    snapshot = Snapshot(tuple(agents), (session,), NOW, reservations=tuple(windows))
    return left_out(session, schedule(snapshot).waits[session.id], snapshot)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"drain_reason": "new disks"}, "agent a2 is drained: new disks"),
        (
            {"launch_record": LaunchRecord((), NOW + 60, "launches of 3 sessions failed there in a row")},
            "agent a2 is suspect: launches of 3 sessions failed there in a row",
        ),
        ({"problem": "it has no cgroups"}, "agent a2 is misconfigured: it has no cgroups"),
    ],
)
def test_the_reason_of_an_agent_that_takes_no_sessions_is_told(changes, line):
    assert lines([SMALL, replace(LARGE, **changes)]) == [line]


def test_agents_of_other_groups_are_not_told():
    drained = replace(make_agent("b1", cpus=64, resource_group="big"), drain_reason="new disks")
    assert lines([SMALL, drained, replace(LARGE, drain_reason="ours")]) == ["agent a2 is drained: ours"]


@pytest.mark.parametrize("asked", [{}, {"time_limit": "1m"}])
def test_the_reason_of_a_window_that_closes_agents_is_told(asked):
    assert lines([SMALL, LARGE], [DISKS], **asked) == ["maintenance disks: new disks"]
    event = replace(EVENT, agents=frozenset({"a1"}))
    both = ["maintenance disks: new disks", "reservation event: a course"]
    assert lines([SMALL, LARGE], [DISKS, event], cpu=2, **asked) == both


def test_a_window_is_told_only_to_sessions_that_it_closes_agents_to():
    ahead = replace(DISKS, begins_at=NOW + 1800)
    assert lines([SMALL, LARGE], [ahead], time_limit="1h") == ["maintenance disks: new disks"]
    assert lines([SMALL], [ahead, EVENT], time_limit="1m", owner="bob") == []
    assert lines([SMALL, LARGE], [replace(DISKS, reason="")]) == []


def test_no_more_than_a_few_lines_are_told():
    drained = [replace(make_agent(f"c{n}", cpus=64), drain_reason=f"reason {n}") for n in range(8)]
    named = [f"agent c{n} is drained: reason {n}" for n in range(5)]
    assert lines([SMALL, *drained]) == [*named, "and 3 more; to list agents: muster agents"]
