"""Events of sessions: applied once, whole or not at all, and kept in the story."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
import sqlalchemy as sa

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.plan import Placement, Plan, Waits
from muster.core.model.reservation import Reservation
from muster.core.model.session import Allocation, GpuShare, Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.store.agents.known import REVISION
from muster.store.database.connection import writing
from muster.store.database.counters import increment_counter
from muster.store.database.tables import agents
from muster.store.store import Store
from tests.contract.forked import Forked
from tests.contract.reading import only
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState


def event(session: Session, to: SessionState, reason: str = "because", **changes: Any) -> Event:
    return Event(session.id, NOW, session.state, to, reason, changes)


def test_an_event_changes_state_reason_and_fields_and_is_a_story_line(store):
    store.add([session := make_session()])
    allocation = Allocation("a1", (GpuShare("GPU-1", 500, whole=False),))
    change = replace(
        event(session, S.SCHEDULED, "placed on a1", placed_mode="single-node"),
        kernels={session.main.id: {"allocation": allocation}},
    )
    assert store.apply([change]) == [change]
    after = only(store, session)
    assert (after.state, after.reason, after.placed_mode) == (S.SCHEDULED, "placed on a1", "single-node")
    assert after.main.allocation == allocation
    assert [(line.from_state, line.to_state, line.reason) for line in store.story(session.id)] == [
        (None, "PENDING", "submitted"),
        ("PENDING", "SCHEDULED", "placed on a1"),
    ]


def placed(session: Session, *agents: str) -> Event:
    allocations = {kernel.id: kernel.allocation for kernel in placed_on(session, *agents).kernels}
    plan = Plan((Placement(session.id, "single-node", allocations),), Waits([]))
    (event,) = transitions.place(plan, Snapshot((), (session,), NOW))
    return event


def test_a_session_that_was_held_since_is_not_placed(store):
    store.add([session := make_session()])
    store.apply([transitions.hold(session, "ada", NOW)])
    assert store.apply([placed(session, "a1")]) == []
    assert (only(store, session).state, only(store, session).agents) == (S.PENDING, ())


def test_no_session_is_placed_on_an_agent_that_was_drained_since(store):
    store.agents.save([make_agent("a1"), make_agent("a2")])
    store.add(sessions := [make_session(1, cluster_size=2), make_session(2), make_session(3)])
    store.agents.drain("a1", "disks")
    events = [placed(s, *agents) for s, agents in zip(sessions, (("a2", "a1"), ("a1",), ("a2",)), strict=True)]
    assert store.apply(events) == [events[2]]
    store.agents.resume("a1")
    assert store.apply(events) == events[:2]


def test_a_placement_waits_for_a_drain_that_is_under_way(store):
    store.agents.save([make_agent("a1")])
    store.add([session := make_session()])
    with ThreadPoolExecutor(1) as pool:
        with writing(store._engine) as connection:
            increment_counter(connection, REVISION)
            connection.execute(sa.update(agents).values(drain_reason="disks"))
            applied = pool.submit(store.apply, [placed(session, "a1")])
            with pytest.raises(TimeoutError):
                applied.result(timeout=0.2)
        assert applied.result() == []


def test_nothing_is_placed_by_a_decision_that_does_not_know_of_a_reservation(store):
    store.add([session := make_session()])
    event = placed(session, "a1")
    over = Reservation("over", NOW - 60, NOW, agents=frozenset({"a1"}))
    disks = replace(over, name="disks", ends_at=NOW + 60)
    store.reservations.add(over)
    store.reservations.add(disks)
    assert store.apply([event]) == []
    known = replace(event, reservations=store.snapshot(NOW).reservations)
    store.reservations.remove("disks")
    assert store.apply([known]) == [known]


def test_a_placement_waits_for_a_reservation_that_is_being_made(url, open_store):
    store = open_store(url)
    store.add([session := make_session()])
    disks = Reservation("disks", NOW, NOW + 60)
    with ThreadPoolExecutor(1) as pool:
        other = open_store(url)
        is_added, may_commit = threading.Event(), threading.Event()

        def wait(_connection: sa.Connection) -> None:
            is_added.set()
            may_commit.wait(timeout=30)

        sa.event.listen(other._engine, "commit", wait)
        added = pool.submit(other.reservations.add, disks)
        assert is_added.wait(timeout=30)
        with ThreadPoolExecutor(1) as second:
            applied = second.submit(store.apply, [placed(session, "a1")])
            with pytest.raises(TimeoutError):
                applied.result(timeout=0.2)
            may_commit.set()
            assert applied.result() == []
        added.result()


def test_an_allocation_is_given_back(store):
    store.add([session := placed_on(make_session(), "a1")])
    freed = replace(event(session, S.TERMINATING), kernels={session.main.id: {"allocation": None}})
    store.apply([freed])
    assert only(store, session).main.allocation is None


def test_a_stale_event_is_dropped_and_the_others_are_not(store):
    store.add([one := make_session(1), two := make_session(2)])
    stale = Event(one.id, NOW, S.RUNNING, S.TERMINATING, "too late", {"exit_code": 1}, {one.main.id: {"exit_code": 1}})
    good = event(two, S.CANCELLED)
    assert store.apply([stale, good]) == [good]
    assert only(store, one) == one
    assert only(store, two).state is S.CANCELLED
    assert len(store.story(one.id)) == 1


def test_the_second_of_two_equal_events_is_stale(store):
    store.add([session := make_session()])
    assert len(store.apply([event(session, S.CANCELLED, "a"), event(session, S.CANCELLED, "b")])) == 1
    assert only(store, session).reason == "a"


def test_facts_alone_leave_no_line_in_the_story_and_keep_the_reason(store):
    store.add([session := placed_on(make_session(), "a1")])
    facts = Event(session.id, NOW, S.RUNNING, S.RUNNING, kernels={session.main.id: {"ssh_port": 49153}})
    assert store.apply([facts]) == [facts]
    assert only(store, session).main.ssh_port == 49153
    assert only(store, session).reason == session.reason
    assert len(store.story(session.id)) == 1


def test_only_one_of_many_threads_ends_a_session(store):
    sessions = [make_session(number) for number in range(1, 11)]
    store.add(sessions)
    barrier = threading.Barrier(8)

    def end_all(thread: int) -> list[str]:
        barrier.wait()
        return [e.session_id for s in sessions for e in store.apply([event(s, S.CANCELLED, f"thread {thread}")])]

    with ThreadPoolExecutor(8) as pool:
        applied = Counter(session_id for ids in pool.map(end_all, range(8)) for session_id in ids)
    assert applied == {session.id: 1 for session in sessions}
    assert all(len(store.story(session.id)) == 2 for session in sessions)


def test_changes_of_the_same_sessions_in_opposite_order_wait_for_each_other_and_end(url, open_store):
    sessions = [make_session(number) for number in range(1, 31)]
    one, two = open_store(url), open_store(url)
    one.add(sessions)
    barrier = threading.Barrier(2)

    def end(store: Store, ordered: list[Session]) -> list[str]:
        barrier.wait()
        return [change.session_id for change in store.apply(event(session, S.CANCELLED) for session in ordered)]

    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(end, one, sessions), pool.submit(end, two, sessions[::-1])]
        applied = Counter(session_id for future in ended for session_id in future.result())
    assert applied == {session.id: 1 for session in sessions}
    assert all(len(one.story(session.id)) == 2 for session in sessions)


def test_an_exception_leaves_nothing_of_its_transaction(store):
    store.add([one := make_session(1), two := make_session(2)])

    def changes():
        yield event(one, S.CANCELLED)
        yield replace(event(two, S.CANCELLED), kernels={two.main.id: {"exit_code": object()}})

    with pytest.raises(sa.exc.SQLAlchemyError):
        store.apply(changes())
    assert [only(store, session) for session in (one, two)] == [one, two]
    assert len(store.story(one.id)) == 1


def test_a_story_is_in_the_order_of_its_events(store):
    store.add([session := make_session()])
    path = [S.PENDING, S.SCHEDULED, S.PREPARING, S.PENDING, S.SCHEDULED, S.TERMINATING, S.TERMINATED]
    for at, (before, after) in enumerate(pairwise(path)):
        store.apply([Event(session.id, NOW - at, before, after, f"step {at}")])
    assert [line.to_state for line in store.story(session.id)] == path
    assert [line.reason for line in store.story(session.id)] == ["submitted", *(f"step {n}" for n in range(6))]


def test_a_result_is_read_as_a_result(store):
    store.add([session := placed_on(make_session(command="true"), "a1")])
    store.apply([transitions.terminate(session, "done", Result.SUCCESS, NOW, 0)])
    after = only(store, session)
    assert (after.result, after.exit_code) == (Result.SUCCESS, 0)
    assert isinstance(after.result, Result)


def test_changes_since_a_story_line_omit_lines_that_only_give_a_reason(store):
    assert store.last_event() == 0
    store.add([session := make_session()])
    before = store.last_event()
    path = [S.PENDING, S.SCHEDULED, S.PREPARING, S.PREPARING, S.RUNNING]
    store.apply(Event(session.id, NOW, *step, "because") for step in pairwise(path))
    assert store.events_after(before) == [(session.id, state) for state in ("SCHEDULED", "PREPARING", "RUNNING")]
    assert store.events_after(store.last_event()) == []


def test_changes_of_an_owner_are_read_behind_any_number_of_others(store):
    store.add([make_session(number, owner="eve") for number in (1, 2, 3)])
    store.add([mine := make_session(4, owner="ada")])
    assert [change.session_id for change in store.changes.after(0, 2, "ada")] == [mine.id]
    assert len(store.changes.after(0, 2)) == 2
    assert store.changes.after(store.last_event(), 2, "ada") == []


# A writer that is killed


def write_for_ever(say, url):
    store = Store(url)
    for number in count(1):
        session = make_session(number, cluster_size=20)
        store.add([session])
        kernels = {kernel.id: {"exit_code": number} for kernel in session.kernels}
        store.apply([Event(session.id, NOW, S.PENDING, S.CANCELLED, "because", {"exit_code": number}, kernels)])
        say(number)


@pytest.mark.parametrize("commits", [1, 4, 9])
def test_a_killed_writer_leaves_every_commit_whole_and_no_lock(url, open_store, commits):
    with Forked(write_for_ever, url) as writer:
        for _ in range(commits):
            writer.receive()
        writer.kill()
    store = open_store(url)
    # First a write, which waits until the server has noticed.
    store.add([make_session(10**6, state=S.RUNNING)])
    found = store.search(ended=True)[:-1]
    assert len(found) >= commits
    for session in found:
        ended = session.state is S.CANCELLED
        assert ended or session is found[-1]
        assert {kernel.exit_code for kernel in session.kernels} == {session.exit_code}
        assert (session.exit_code is not None) == ended
        assert len(session.kernels) == 20
        assert len(store.story(session.id)) == (2 if ended else 1)
