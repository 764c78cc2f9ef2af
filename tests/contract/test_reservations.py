"""Reservations, and what ended sessions had of their agents."""

from dataclasses import replace

import pytest

from muster.core.model.reservation import Reservation
from muster.core.model.session import Result, Session, SessionState
from muster.core.usage.by_owner import SessionRun
from muster.core.values.errors import NameTakenError, NotFoundError
from muster.core.values.slots import Slots
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

G = 1 << 30
NIGHT = Reservation(
    "night",
    NOW + 60,
    NOW + 3600.5,
    agents=frozenset({"a1", "a2"}),
    users=frozenset({"ada"}),
    projects=frozenset({"vision", "audio"}),
    reason="big run",
)
DISKS = Reservation("disks", NOW, NOW + 60, resource_group="gpu", reason="new disks")


def test_reservations_are_read_as_they_were_made_in_the_order_in_which_they_begin(store):
    store.reservations.add(NIGHT)
    store.reservations.add(DISKS)
    assert store.reservations.all() == store.snapshot(NOW).reservations == (DISKS, NIGHT)


def test_a_snapshot_holds_those_that_are_not_over(store):
    store.reservations.add(NIGHT)
    store.reservations.add(DISKS)
    assert store.snapshot(NOW + 60).reservations == (NIGHT,)
    assert store.snapshot(NOW + 3600.5).reservations == ()
    assert len(store.reservations.all()) == 2


def test_a_name_is_given_once_until_it_is_taken_back(store):
    store.reservations.add(NIGHT)
    with pytest.raises(NameTakenError, match="'night' already; choose another name, or `muster reservation rm night`"):
        store.reservations.add(replace(DISKS, name="night"))
    assert store.reservations.remove("night") == NIGHT
    with pytest.raises(NotFoundError, match="'night'; see `muster reservation ls"):
        store.reservations.remove("night")
    store.reservations.add(replace(DISKS, name="night"))


def ended(session: Session, at: float, state: SessionState = SessionState.TERMINATED) -> Session:
    return replace(session, state=state, result=Result.SUCCESS, ended_at=at)


def test_recently_ended_runs_have_their_owner_group_slots_and_times(store):
    gang = placed_on(make_session(1, cluster_size=3, cpu=2, mem="1G", resource_group="gpu"), "a1")
    before = placed_on(make_session(2), "a1")
    never_started = make_session(3)
    runs = placed_on(make_session(4), "a1")
    store.add(
        [
            ended(gang, NOW + 10),
            ended(before, NOW + 5),
            ended(never_started, NOW + 20, SessionState.CANCELLED),
            runs,
        ]
    )
    assert store.ended_runs(NOW + 5) == {gang.id: SessionRun("ada", "gpu", Slots(cpu=6000, mem=3 * G), NOW, NOW + 10)}
    assert set(store.ended_runs(NOW)) == {gang.id, before.id}
