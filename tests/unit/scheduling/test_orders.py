"""The queue orders of plugins/scheduler, as schedule() uses them: live, while sessions are placed."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.policy import QueueView
from muster.core.model.session import Session
from muster.core.values.slots import Slots
from muster.service.scheduler.plugins import load_order
from tests.properties import cheap
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

CAPACITY = Slots(cpu=9000, mem=18 << 30)
A = {"cpu": 1, "mem": "4G", "shm": 0}
B = {"cpu": 3, "mem": "1G", "shm": 0}


def of(owner: str, count: int, *, first: int = 1, **values: Any) -> list[Session]:
    return [make_session(number, owner=owner, **values) for number in range(first, first + count)]


def worked(name: str, sessions: list[Session], **view: Any) -> list[Session]:
    """Return the order in which a cluster of CAPACITY takes the sessions. One that does not fit is passed over."""
    allocated: dict[str, Slots] = dict(view.pop("allocated", {}))
    shown = QueueView(NOW, CAPACITY, allocated, **view)
    free, placed = CAPACITY, []
    for session in load_order(name)(sessions, shown):
        if not session.slots.beyond(free):
            free -= session.slots
            allocated[session.owner] = allocated.get(session.owner, Slots()) + session.slots
            placed.append(session)
    return placed


def test_drf_serves_the_example_of_its_paper():
    """Ghodsi et al., NSDI 2011, table 1: 9 cpu, 18 GB; A asks for 1 cpu, 4 GB, B for 3 cpu, 1 GB: three and two."""
    sessions = [*of("A", 9, **A), *of("B", 9, first=10, **B)]
    assert [session.owner for session in worked("drf", sessions)] == ["A", "B", "A", "B", "A"]


def test_drf_counts_what_is_held_already_and_what_each_is_entitled_to():
    sessions = [*of("A", 3, **A), *of("B", 3, first=10, **B)]
    held = {"A": Slots(cpu=3000, mem=12 << 30)}
    assert [s.owner for s in worked("drf", sessions, allocated=held)][:2] == ["B", "B"]
    assert [s.owner for s in worked("drf", sessions, shares={"A": 4.0})] == ["A", "B", "A", "A", "B"]


def test_fair_share_puts_the_owner_with_the_least_of_their_share_first():
    sessions = [*of("A", 2, **A), *of("B", 2, first=10, **A), *of("C", 2, first=20, **A)]
    usage = {"A": 0.5, "B": 0.25}
    assert [s.owner for s in worked("fair_share", sessions, usage=usage)] == ["C", "C", "B", "B"]
    entitled = worked("fair_share", sessions, usage=usage, shares={"A": 100.0})
    assert [session.owner for session in entitled] == ["C", "A", "A", "C"]


def test_fair_share_does_not_give_everything_to_a_newcomer():
    sessions = [*of("A", 3, **A), *of("B", 3, first=10, **A)]
    owners = [session.owner for session in worked("fair_share", sessions, usage={"A": 0.1})]
    assert owners == ["B", "A", "B", "A"]


def test_fifo_and_lifo_go_by_age():
    sessions = of("A", 4)
    assert [s.name for s in load_order("fifo")(sessions[::-1], QueueView(NOW, CAPACITY, {}))] == [
        "s1",
        "s2",
        "s3",
        "s4",
    ]
    assert [s.name for s in load_order("lifo")(sessions, QueueView(NOW, CAPACITY, {}))] == ["s4", "s3", "s2", "s1"]


@st.composite
def queues(draw: st.DrawFn) -> list[Session]:
    return [
        replace(
            make_session(number, owner=draw(st.sampled_from("ABC")), cpu=draw(st.integers(1, 4)), mem="1G"),
            submitted_at=NOW - draw(st.integers(0, 2)),
        )
        for number in range(1, draw(st.integers(0, 12)) + 1)
    ]


@pytest.mark.parametrize("name", ["fifo", "lifo", "drf", "fair_share"])
@given(queues(), st.dictionaries(st.sampled_from("ABC"), st.floats(0, 1)))
def test_every_order_gives_each_session_once_whatever_is_placed(name, queue, usage):
    view = QueueView(NOW, CAPACITY, {}, usage)
    assert sorted(s.id for s in load_order(name)(queue, view)) == sorted(s.id for s in queue)
    placed = worked(name, queue, usage=usage)
    assert len({session.id for session in placed}) == len(placed)


@pytest.mark.parametrize("name", ["drf", "fair_share"])
@given(queues())
def test_an_owners_sessions_stay_in_the_order_of_their_age(name, queue):
    for owner in "ABC":
        ages = [
            (s.submitted_at, s.id) for s in load_order(name)(queue, QueueView(NOW, CAPACITY, {})) if s.owner == owner
        ]
        assert ages == sorted(ages)


@cheap
@given(queues())
def test_drf_always_serves_the_waiting_owner_with_the_least_dominant_share(queue):
    allocated: dict[str, Slots] = {}
    view = QueueView(NOW, CAPACITY, allocated)
    waiting = {session.id: session.owner for session in queue}
    for session in load_order("drf")(queue, view):
        least = min(view.dominant_share(owner) for owner in waiting.values())
        assert view.dominant_share(session.owner) == least
        del waiting[session.id]
        allocated[session.owner] = allocated.get(session.owner, Slots()) + session.slots
