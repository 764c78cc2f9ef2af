"""Why sessions wait is written once for all that share it, and what has not changed is not read again."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from uuid import uuid4

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.lifecycle.update import updated
from muster.core.model.session import Allocation, PullProgress, Session, SessionState
from muster.core.model.wait import LimitHit, LimitKind, NearestMiss, Wait, WaitCode
from muster.store.database.connection import writing
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.updating import Update
from muster.store.sessions.waits import wait_from
from muster.store.store import Store
from tests.contract.reading import only
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState
one_store_for_all_examples = settings(suppress_health_check=[*HealthCheck])


def busy(message: str = "busy", passes: int = 0) -> Wait:
    return Wait(WaitCode.BUSY, message, passes=passes)


def test_waits_are_kept_for_pending_sessions_only(store):
    store.add([waiting := make_session(1), runs := placed_on(make_session(2), "a1")])
    store.save_waits({waiting.id: busy(), runs.id: busy(), "nosuch": busy("held")})
    assert only(store, waiting).wait == busy()
    assert only(store, runs).wait is None
    store.save_waits({})


def test_the_newest_wait_counts_and_none_is_left_when_an_event_takes_it_away(store):
    store.add([one := make_session(1), two := make_session(2)])
    for message in ("busy", "behind s1", "busy"):
        store.save_waits({one.id: busy(message), two.id: busy("held")})
        assert [only(store, session).wait.message for session in (one, two)] == [message, "held"]
    store.apply([Event(one.id, NOW, S.PENDING, S.PENDING, "held by eve", {"held_by": "eve", "wait": None})])
    assert (only(store, one).wait, only(store, one).held_by) == (None, "eve")
    assert {s.name: s.wait for s in store.snapshot(NOW).sessions} == {"s1": None, "s2": busy("held")}
    store.save_waits({one.id: busy(), two.id: busy("held")})
    assert only(store, one).wait == busy()


FULL = Wait(
    WaitCode.LIMIT,
    "limit: user ada may run 8 gpu",
    agents_considered=3,
    filtered={"drained": 1},
    exhausted={"gpu": 2},
    nearest=NearestMiss("a1", {"gpu": 1}),
    limit=LimitHit(LimitKind.USER, "ada", "gpu", 8, 6, 4),
    waits_for=(make_session(9).id,),
    until=NOW + 5.0,
    estimated_start=NOW + 6.5,
    passes=7,
    endless=2,
)


@pytest.mark.parametrize("wait", [FULL, *(Wait(code, "why") for code in WaitCode)], ids=lambda wait: wait.code)
def test_a_wait_is_read_as_it_was_written_except_for_its_place_in_the_queue(store, wait):
    store.add([session := make_session(1)])
    store.save_waits({session.id: replace(wait, position=4)})
    assert only(store, session).wait == wait


def test_a_wait_of_an_older_version_is_read_as_far_as_it_goes():
    assert wait_from({"code": "busy", "message": "busy", "unheard_of": 1}) == busy()
    old_limit = {"scope": "user ada", "counts": "running gpu", "value": 8, "used": 6, "asked": 4}
    stored = {"code": "limit", "message": "limit: …", "limit": old_limit, "waits_for": []}
    assert wait_from(stored) == Wait(WaitCode.LIMIT, "limit: …")


MESSAGES = st.sampled_from(("busy", "behind", "held", "limit"))


@one_store_for_all_examples
@given(st.lists(st.tuples(st.booleans(), st.lists(MESSAGES, min_size=6, max_size=6)), min_size=1, max_size=6))
def test_each_session_has_its_newest_wait_in_place_of_earlier_ones(store, passes):
    """As passes keep them, each after a snapshot or right after another."""
    with writing(store._engine) as connection:
        connection.exec_driver_sql("DELETE FROM sessions")
    found = [make_session(number) for number in range(1, 7)]
    store.add(found)
    store.snapshot(NOW)
    for with_snapshot, messages in passes:
        if with_snapshot:
            store.snapshot(NOW)
        shared = {message: busy(message, passes=1) for message in messages}
        store.save_waits({s.id: shared[message] for s, message in zip(found, messages, strict=True)})
        kept = store.get([s.id for s in found])
        assert [kept[s.id].wait.message for s in found] == messages
    with writing(store._engine) as connection:
        rows = connection.exec_driver_sql("SELECT id FROM waits").all()
    assert len(rows) == len(set(passes[-1][1]))


def rows_written(store: Store, act: Callable[[], object]) -> Counter[str]:
    """Return the number of rows that are written, by table."""
    written: Counter[str] = Counter()

    def before(_connection, _cursor, statement, parameters, _context, executemany):
        if match := re.match(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", statement):
            written[match[1]] += len(parameters) if executemany else 1

    sa.event.listen(store._engine, "before_cursor_execute", before)
    try:
        act()
    finally:
        sa.event.remove(store._engine, "before_cursor_execute", before)
    del written["counters"]
    return written


def test_when_the_reason_of_many_changes_no_session_is_written(store):
    found = [make_session(number) for number in range(1, 101)]
    store.add(found)
    before, after = busy("busy: needs 4 gpu"), busy("busy: needs 3 gpu")
    store.save_waits({session.id: before for session in found})
    store.snapshot(NOW)
    waits = {session.id: after for session in found}
    assert rows_written(store, lambda: store.save_waits(waits)) == {"waits": 1}
    assert rows_written(store, lambda: store.save_waits(waits)) == {}
    waits[found[0].id] = busy("held")
    assert rows_written(store, lambda: store.save_waits(waits)) == {"waits": 1, "sessions": 1}
    assert {s.wait.message for s in store.snapshot(NOW).sessions} == {"busy: needs 3 gpu", "held"}


@st.composite
def happenings(draw: st.DrawFn) -> list[tuple[int, str]]:
    """Draw steps: which of two stores does what."""
    kinds = ("add", "place", "progress", "end", "hold", "update", "wait", "snapshot")
    return draw(st.lists(st.tuples(st.sampled_from((0, 1)), st.sampled_from(kinds)), min_size=4, max_size=12))


def happen(store: Store, kind: str, number: int) -> None:
    found = store.snapshot(NOW).sessions if kind != "add" else ()
    pending = [session for session in found if session.state is S.PENDING]
    if kind == "add":
        store.add([make_session(number), make_session(number + 10**6, cluster_size=2)])
    elif kind == "wait":
        store.save_waits({s.id: busy(f"busy {(number + place) % 3}") for place, s in enumerate(pending)})
    elif kind == "progress":
        for session in found:
            store.save_progress(session.id, [PullProgress("a1", "busybox", number, 100)])
    elif kind == "hold":
        store.apply([transitions.hold(session, "eve", NOW) for session in pending[:1]])
    elif kind == "update":
        spec = make_session(number, cluster_size=1 + number % 3).spec
        updates = [Update(s, updated(s, spec, lambda: str(uuid4())), "updated") for s in pending[:1]]
        store.update(updates, NOW, PendingCheck(store.pending(), lambda _: None))
    elif kind == "place":
        allocations = {k.id: {"allocation": Allocation("a1")} for s in pending[:1] for k in s.kernels}
        store.apply(
            Event(s.id, NOW, S.PENDING, S.PREPARING, "placed", {"wait": None}, allocations) for s in pending[:1]
        )
    elif kind == "end":
        store.apply(Event(s.id, NOW, s.state, S.CANCELLED, "ended", {"wait": None}) for s in found[:1])


def in_order(store: Store) -> list[Session]:
    return sorted(store.snapshot(NOW).sessions, key=lambda session: session.id)


@one_store_for_all_examples
@given(happened=happenings())
def test_a_snapshot_is_what_a_store_that_knows_nothing_yet_reads(url, two_stores, numbers, happened):
    for session in two_stores[0].snapshot(NOW).sessions:
        two_stores[0].apply([Event(session.id, NOW, session.state, S.CANCELLED, "ended", {"wait": None})])
    for which, kind in happened:
        happen(two_stores[which], kind, next(numbers))
    fresh = Store(url)
    assert in_order(two_stores[0]) == in_order(two_stores[1]) == in_order(fresh)
    fresh.close()


@pytest.fixture
def two_stores(url, open_store) -> tuple[Store, Store]:
    return open_store(url), open_store(url)


@pytest.fixture
def numbers() -> Iterator[int]:
    return count(1)


def test_a_snapshot_keeps_the_values_of_unchanged_sessions(store):
    store.add([make_session(1), make_session(2), make_session(3)])
    before = {session.id: session for session in store.snapshot(NOW).sessions}
    changed = make_session(2).id
    store.apply([Event(changed, NOW, S.PENDING, S.PENDING, "held by eve", {"held_by": "eve"})])
    after = {session.id: session for session in store.snapshot(NOW).sessions}
    assert [key for key in after if after[key] is not before[key]] == [changed]
    assert store.snapshot(NOW).sessions == tuple(after.values())


def selected(store: Store, act: Callable[[], object]) -> Counter[str]:
    """Return the number of SELECTs, by table."""
    found: Counter[str] = Counter()

    def before(_connection, _cursor, statement, _parameters, _context, _executemany):
        if match := re.search(r"^SELECT .* FROM (\w+)", " ".join(statement.split())):
            found[match[1]] += 1

    sa.event.listen(store._engine, "before_cursor_execute", before)
    try:
        act()
    finally:
        sa.event.remove(store._engine, "before_cursor_execute", before)
    return found


def test_waits_that_this_store_has_written_are_not_read_again(store, url, open_store):
    store.add([make_session(1), make_session(2), runs := placed_on(make_session(3), "a1")])
    waiting = [session for session in store.snapshot(NOW).sessions if session.id != runs.id]
    store.save_waits({session.id: replace(FULL, position=place) for place, session in enumerate(waiting)})
    assert selected(store, lambda: store.snapshot(NOW)).keys().isdisjoint({"sessions", "kernels", "waits"})
    assert in_order(store) == in_order(open_store(url))
    assert [session.wait for session in in_order(store)] == [FULL, FULL, None]


def test_waits_are_read_again_where_another_store_has_written_meanwhile(url, open_store):
    own, other = open_store(url), open_store(url)
    own.add([one := make_session(1), two := make_session(2)])
    own.snapshot(NOW)
    other.apply([transitions.hold(one, "eve", NOW)])
    own.save_waits({one.id: busy(), two.id: busy()})
    assert in_order(own) == in_order(open_store(url))
    assert [session.held_by for session in in_order(own)] == ["eve", None]


def test_a_snapshot_of_many_sessions_is_what_reading_each_by_its_id_gives(url, open_store):
    own, other = open_store(url), open_store(url)
    # More than are read by their ids at once.
    many = [make_session(number, name=f"s-{number}", cluster_size=1 + number % 2) for number in range(1, 520)]
    own.add([*many, placed_on(make_session(600, name="placed"), "a1")])
    own.apply([transitions.end_by_user(many[0], "eve", NOW)])
    found = other.snapshot(NOW).sessions
    assert len(found) == len(many)
    assert {session.id: session for session in found} == own.get([session.id for session in found])
    assert all([kernel.rank for kernel in each.kernels] == [*range(len(each.kernels))] for each in found)
