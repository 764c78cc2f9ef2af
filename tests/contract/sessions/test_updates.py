"""Updates of sessions that wait, on every database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.core.lifecycle import transitions
from muster.core.lifecycle.update import updated
from muster.core.model.session import Session, SessionState
from muster.core.model.wait import Wait, WaitCode
from muster.core.values.errors import BadInputError, SpecError
from muster.store.database.connection import writing
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.updating import Update
from muster.store.store import Store
from tests.contract.reading import only
from tests.strategies.sessions import make_session
from tests.strategies.specs import specs
from tests.strategies.values import NOW


def update(store: Store, *updates: Update, check: PendingCheck | None = None) -> list[Update]:
    return store.update(updates, NOW, check or PendingCheck(store.pending(), lambda _: None))


def update_of(session: Session, reason: str = "updated by ada", **values: object) -> Update:
    spec = session.spec.model_copy(update=values)
    return Update(session, updated(session, spec, lambda: str(uuid4())), reason)


@settings(suppress_health_check=[*HealthCheck])
@given(before=specs(), after=specs())
def test_a_session_is_read_as_it_was_updated(store, before, after):
    with writing(store._engine) as connection:
        connection.exec_driver_sql("DELETE FROM sessions")
    session = make_session(99, **dict(before.model_copy(update={"name": "s1", "array": None})))
    store.add([session])
    changed = update_of(session, **dict(after.model_copy(update={"name": "s1", "array": None, "image": "busybox"})))
    assert update(store, changed) == [changed]
    assert only(store, session) == replace(changed.after, reason="updated by ada")


def test_an_update_takes_the_wait_away_and_leaves_a_line_in_the_story(store):
    session = make_session(1)
    store.add([session])
    store.save_waits({session.id: Wait(WaitCode.BUSY, "busy")})
    update(store, update_of(session, cpu=2000))
    assert only(store, session).wait is None
    last = store.story(session.id)[-1]
    assert (last.at, last.from_state, last.to_state, last.reason) == (NOW, "PENDING", "PENDING", "updated by ada")
    assert store.changes.after(0, 10)[-1].reason == "updated by ada"


def test_the_new_group_and_project_are_found_and_the_old_ones_kernels_are_gone(store):
    session = make_session(1, cluster_size=3)
    store.add([session])
    update(store, update_of(session, cluster_size=1, resource_group="gpus", project="vision"))
    (row,) = store.pending().by_id.values()
    assert (row.spec.resource_group, len(row.kernels)) == ("gpus", 1)
    with writing(store._engine) as connection:
        kernels = connection.exec_driver_sql("SELECT id FROM kernels").all()
        assert [tuple(kernel) for kernel in kernels] == [(session.id,)]
        groups = connection.exec_driver_sql("SELECT resource_group, project FROM sessions").all()
        assert [tuple(group) for group in groups] == [("gpus", "vision")]


def test_what_is_no_longer_as_it_was_read_is_left_alone(store):
    sessions = [make_session(number) for number in range(1, 5)]
    store.add(sessions)
    placed, again, requeued, left = sessions
    update(store, update_of(again, mem=2 << 30))
    store.apply(
        [
            transitions.transition(placed, SessionState.SCHEDULED, "placed", NOW),
            transitions.transition(requeued, SessionState.PENDING, "", NOW, requeues=1),
        ]
    )
    updates = [update_of(session, cpu=2000) for session in sessions]
    assert update(store, *updates) == [updates[3]]
    now = store.get([session.id for session in sessions])
    assert [session.spec.cpu for session in now.values()] == [1000, 1000, 1000, 2000]
    assert now[left.id].updates == now[again.id].updates == 1


def test_the_check_that_fails_changes_nothing(store):
    session = make_session(1)
    store.add([session])
    before = store.pending()
    store.add([make_session(2)])

    def refuse(_pending: object) -> None:
        raise BadInputError("too much")

    with pytest.raises(BadInputError, match="too much"):
        update(store, update_of(session, cpu=2000), check=PendingCheck(before, refuse))
    assert only(store, session) == session


@pytest.mark.parametrize("length", [1, 2, 5])
def test_sessions_do_not_come_to_wait_in_a_circle(store, length):
    chain = [make_session(1)]
    while len(chain) < length:
        chain.append(make_session(len(chain) + 1, after_any=(chain[-1].id,)))
    store.add(chain)
    with pytest.raises(SpecError, match="after_ok: session s1 would wait for itself"):
        update(store, update_of(chain[0], after_ok=(chain[-1].id,)))
    assert only(store, chain[0]) == chain[0]


def test_a_circle_by_way_of_what_has_ended_is_none(store):
    first, second = make_session(1), make_session(2, after_any=(make_session(1).id,))
    store.add([first, second])
    store.apply([transitions.transition(second, SessionState.CANCELLED, "ended", NOW)])
    assert update(store, update_of(first, after_any=(second.id,)))


def test_of_updates_at_once_that_would_make_a_circle_one_is_refused(url, open_store):
    stores = open_store(url), open_store(url)
    sessions = make_session(1), make_session(2)
    stores[0].add(sessions)
    begin = threading.Barrier(2)

    def let_wait(which: int) -> bool:
        begin.wait()
        try:
            update(stores[which], update_of(sessions[which], after=(sessions[1 - which].id,)))
        except SpecError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(let_wait, (0, 1))) == [False, True]


@given(st.data())
@settings(suppress_health_check=[*HealthCheck])
def test_no_update_lets_sessions_wait_in_a_circle(store, data):
    with writing(store._engine) as connection:
        connection.exec_driver_sql("DELETE FROM sessions")
    sessions = [make_session(number) for number in range(1, 6)]
    store.add(sessions)
    waits_for: dict[str, set[str]] = {session.id: set() for session in sessions}
    for _ in range(data.draw(st.integers(1, 6))):
        session = data.draw(st.sampled_from(sessions))
        others = data.draw(st.sets(st.sampled_from(sorted(waits_for)), max_size=3))
        (now,) = store.get([session.id]).values()
        is_circle = session.id in reached(others, waits_for)
        try:
            update(store, update_of(now, after=tuple(sorted(others))))
        except SpecError:
            assert is_circle
        else:
            assert not is_circle
            waits_for[session.id] = others


def reached(begins: set[str], waits_for: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = set(begins)
    while left:
        one = left.pop()
        found.add(one)
        left |= waits_for[one] - found
    return found
