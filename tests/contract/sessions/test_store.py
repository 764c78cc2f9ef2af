"""The promises of the store, on every database."""

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.core.lifecycle.transitions import Event
from muster.core.model.session import FINAL, Allocation, GpuShare, KernelLog, LaunchStep, PullProgress, SessionState
from muster.core.model.wait import Wait, WaitCode
from muster.core.values.errors import AmbiguousNameError, BadInputError, NameTakenError, NotFoundError
from muster.store.agents.known import REVISION
from muster.store.database.connection import writing
from muster.store.database.counters import increment_counter
from muster.store.database.tables import sessions
from muster.store.rows import session_row
from muster.store.sessions.known import SESSION_REVISION
from muster.store.sessions.list_pages import ListPageRequest, SessionFilter
from muster.store.store import Store
from tests.contract.forked import Forked
from tests.contract.reading import only
from tests.strategies.agents import make_agent
from tests.strategies.sessions import STATES, make_array, make_session, placed_on, sessions_in_any_state
from tests.strategies.values import NOW

S = SessionState
one_store_for_all_examples = settings(suppress_health_check=[*HealthCheck])


# Sessions


@one_store_for_all_examples
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=3, unique=True).flatmap(
    lambda numbers: st.tuples(*(sessions_in_any_state(number) for number in numbers))
))  # fmt: skip
def test_a_session_is_read_as_it_was_added(store, found):
    for session in found:
        with writing(store._engine) as connection:
            connection.exec_driver_sql("DELETE FROM sessions")
        store.add([session])
        assert only(store, session) == session


def test_a_placed_session_keeps_its_gpu_shares_and_numa_nodes(store):
    shares = (GpuShare("GPU-1", 1000, whole=True), GpuShare("GPU-2", 250, whole=False, capacity=1000))
    session = placed_on(make_session(), "a1")
    session = replace(session, kernels=(replace(session.main, allocation=Allocation("a1", shares, (0, 2))),))
    store.add([session])
    assert only(store, session) == session


def test_specs_that_differ_in_a_name_alone_keep_it(url, open_store):
    alike = [make_session(number, name=f"train-{number}", command="true") for number in (1, 2, 3)]
    # Named like a role of its own, and like the role of another.
    roles = [
        make_session(number, name=name, roles=["ps:1", "worker:1"])
        for number, name in ((4, "ps"), (5, "worker"), (6, "other"))
    ]
    open_store(url).add([*alike, *roles])
    read = open_store(url).get([session.id for session in (*alike, *roles)])
    for session in (*alike, *roles):
        assert read[session.id] == session


def test_a_session_that_is_named_like_a_role_keeps_its_specs_name(url, open_store):
    array = [
        replace(make_session(number, name="train", roles=["ps:1"]), name=name) for number, name in ((1, "ps"), (2, "b"))
    ]
    open_store(url).add(array)
    read = open_store(url).get([session.id for session in array])
    assert [(read[s.id].name, read[s.id].spec) for s in array] == [(s.name, s.spec) for s in array]


def test_a_session_of_a_thousand_kernels_is_read_in_rank_order(store):
    store.add([large := make_session(cluster_size=1000), make_session(2)])
    assert only(store, large) == large


def test_more_sessions_than_one_query_holds_are_all_read(store):
    store.add([make_session(number) for number in range(1, 1101)])
    assert [len(session.kernels) for session in store.search()] == [1] * 1100


def test_a_session_is_found_by_id_by_the_start_of_its_id_and_by_name(store):
    store.add([session := make_session(0xABCDEF12, name="train"), make_session(2)])
    for reference in (session.id, "abcd", "abcdef12-0", "train"):
        assert store.find(reference).id == session.id


@pytest.mark.parametrize("reference", ["", "tra", "abc", "nosuch", "%", "____", "abcd%", "train ", "TRAIN", "'; --"])
def test_an_invalid_reference_is_not_found(store, reference):
    store.add([make_session(0xABCDEF12, name="train")])
    with pytest.raises(NotFoundError, match="there is no session"):
        store.find(reference)


def test_a_start_that_fits_two_sessions_is_ambiguous_and_names_both(store):
    store.add([first := make_session(0xABCD0001), second := make_session(0xABCD0002)])
    with pytest.raises(AmbiguousNameError) as raised:
        store.find("abcd")
    assert first.id in str(raised.value)
    assert second.id in str(raised.value)


def test_a_whole_name_means_that_session_and_not_the_start_of_another_id(store):
    store.add([named := make_session(1, name="abcd"), make_session(0xABCD0002)])
    assert store.find("abcd").id == named.id


@pytest.mark.parametrize("state", [S.RUNNING, S.TERMINATED])
@pytest.mark.parametrize("is_array", [False, True])
def test_an_id_means_its_session_whatever_others_are_called(store, state, is_array):
    """Else a user who calls a session so would have an administrator's command, or a script's, reach that one."""
    one = make_session(1, state=state)
    array = {"array_id": make_session(2).id, "array_index": 0, "array": "0"} if is_array else {}
    other = make_session(2, owner="eve", name=f"{one.id}-0" if is_array else one.id, **array)
    if is_array:
        other = replace(other, spec=other.spec.model_copy(update={"name": one.id}))
    store.add([one])
    store.add([other])
    assert store.find(one.id).id == one.id
    assert store.ids(one.id) == [one.id]
    assert [session.id for session in store.find_all(one.id, "eve")] == [other.id]


def test_a_name_finds_the_newest_of_ended_sessions(store):
    old, new = (make_session(n, name="train", state=S.TERMINATED) for n in (1, 2))
    store.add([new, old])
    assert store.find("train").id == new.id


def test_a_name_finds_a_session_that_has_not_ended_before_newer_ended_ones(store):
    store.add([active := make_session(1, name="train"), make_session(2, name="train", state=S.CANCELLED)])
    assert store.find("train").id == active.id


@pytest.mark.parametrize("state", sorted(set(STATES) - FINAL))
def test_a_name_is_taken_until_its_session_has_ended(store, state):
    store.add([make_session(1, name="train", state=state)])
    with pytest.raises(NameTakenError, match="train"):
        store.add([make_session(2, name="train")])


@pytest.mark.parametrize("state", sorted(FINAL))
def test_a_name_is_free_again_once_its_session_has_ended(store, state):
    store.add([make_session(1, name="train", state=state)])
    store.add([second := make_session(2, name="train")])
    assert store.find("train").id == second.id


def test_several_new_sessions_are_added_all_or_none(store):
    store.add([make_session(1, name="train")])
    with pytest.raises(NameTakenError) as raised:
        store.add([make_session(2), make_session(3, name="train"), make_session(4)])
    assert "train" in str(raised.value)
    assert "s2" not in str(raised.value)
    assert [session.name for session in store.search(ended=True)] == ["train"]
    store.add([])


def claim_names(say, url, own):
    store = Store(url)
    say("ready")
    wins = 0
    for number in range(40):
        try:
            store.add([make_session(own + number, name=f"name-{number}")])
            wins += 1
        except NameTakenError:
            pass
    say(wins)


def test_only_one_of_two_processes_gets_a_name(url, open_store):
    with Forked(claim_names, url, 1000) as one, Forked(claim_names, url, 2000) as two:
        assert (one.receive(), two.receive()) == ("ready", "ready")
        assert one.receive() + two.receive() == 40
    found = open_store(url).search()
    assert len({session.name for session in found}) == len(found) == 40


def test_one_of_several_writers_of_the_same_names_adds_them_all(store):
    names = [f"name-{number}" for number in range(30)]
    barrier = threading.Barrier(4)

    def add(thread: int) -> bool:
        mine = [make_session(1000 * thread + number, name=name) for number, name in enumerate(names, 1)]
        barrier.wait()
        try:
            store.add(mine if thread % 2 else mine[::-1])
        except NameTakenError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(add, range(1, 5))) == 1
    assert sorted(session.name for session in store.search()) == sorted(names)


# Arrays


def test_the_name_of_an_array_means_all_of_its_sessions_by_their_indexes(store):
    array = make_array(10, (11, 2, 1), name="train")
    store.add([*array, make_session(20, name="other")])
    assert [session.name for session in store.find_all("train")] == ["train-1", "train-2", "train-11"]
    assert store.find_all("train-2") == [store.find("train-2")] == [array[1]]
    assert store.find_all(array[0].id) == [array[0]]
    with pytest.raises(
        AmbiguousNameError, match="'train' is an array of 3 sessions; name one of them, such as train-1"
    ):
        store.find("train")


def test_a_name_finds_a_partly_ended_array_whole_and_before_an_ended_one(store):
    old = make_array(10, (1, 2), name="train", state=S.TERMINATED)
    ended, active = make_array(20, (1, 2), name="train")
    newest = make_array(30, (3,), name="train", state=S.CANCELLED)
    store.add([*old, replace(ended, state=S.TERMINATED), active, *newest])
    assert {session.id for session in store.find_all("train")} == {ended.id, active.id}


def test_a_name_finds_the_newest_of_ended_arrays_and_sessions(store):
    array = make_array(10, (1, 2), name="train", state=S.TERMINATED)
    store.add([*array, make_session(5, name="train", state=S.TERMINATED)])
    assert store.find_all("train") == array
    store.add([newest := make_session(40, name="train", state=S.CANCELLED)])
    assert store.find_all("train") == [newest]


def test_a_filter_by_a_part_of_the_name_takes_capital_letters_for_small_ones(store):
    named = {name: make_session(number, name=name) for number, name in enumerate(("Train-1", "a_b", "axb"), 1)}
    store.add(list(named.values()))
    for part, names in (("tRAIN", ["Train-1"]), ("A_B", ["a_b"]), ("", ["Train-1", "a_b", "axb"])):
        ids, _, count = store.page(SessionFilter(name_contains=part), ListPageRequest(10))
        assert (ids, count) == ([named[name].id for name in names], len(names))


@pytest.mark.parametrize(
    ("new", "taken"),
    [
        ([make_session(5, name="train")], "train"),
        ([make_session(5, name="train-2")], "train-2"),
        (make_array(20, (7,), name="train"), "train"),
        (make_array(20, (7,), name="other"), "other"),
        (make_array(20, (2,), name="x"), "x-2"),
    ],
)
def test_an_array_and_its_sessions_take_their_names(store, new, taken):
    store.add([*make_array(10, (1, 2), name="train"), make_session(30, name="other"), make_session(31, name="x-2")])
    with pytest.raises(NameTakenError, match=f"already called {taken};"):
        store.add(new)


# What is kept beside a session, and looking


PULL = PullProgress("a1", "busybox", 40, 100)


def test_progress_is_kept_while_a_session_is_prepared_only(store):
    store.add(
        [prepared := placed_on(make_session(1), "a1", state=S.PREPARING), runs := placed_on(make_session(2), "a1")]
    )
    for session in (prepared, runs):
        store.save_progress(session.id, [PULL])
    store.save_progress("nosuch", ())
    assert only(store, prepared).progress == (PULL,)
    assert only(store, runs).progress == ()


def test_each_change_of_a_session_makes_the_revision_larger(store):
    revisions = [store.session_revision()]

    def note(_done: object) -> None:
        revisions.append(store.session_revision())

    session = placed_on(make_session(), "a1", state=S.PREPARING)
    note(store.add([session, waiting := make_session(2)]))
    note(store.save_progress(session.id, [PULL]))
    store.snapshot(NOW)
    note(store.save_waits({waiting.id: Wait(WaitCode.BUSY, "busy")}))
    note(store.apply([Event(session.id, NOW, S.PREPARING, S.PREPARING, "", {"step": LaunchStep.RELEASING})]))
    assert revisions == sorted(set(revisions))
    assert store.session_revision() == revisions[-1]


def test_launch_steps_and_requeues_are_read_as_they_were_written(store):
    store.add([session := placed_on(make_session(), "a1", state=S.PREPARING)])
    changes = {"step": LaunchStep.RELEASING, "progress": (), "requeue_after_end": True, "requeues": 2}
    store.apply([Event(session.id, NOW, S.PREPARING, S.PREPARING, "all kernels answer", changes)])
    after = only(store, session)
    assert after == replace(session, reason="all kernels answer", **changes)
    assert after.step is LaunchStep.RELEASING


def test_a_log_is_kept_byte_by_byte_and_the_newest_one_counts(store):
    store.add([session := make_session(1), other := make_session(2)])
    first = [KernelLog(session.id, "main1", gzip.compress(text)) for text in (b"first", b"second")]
    store.keep_logs([*first, KernelLog(session.id, "sub1", gzip.compress(b""))])
    assert store.log(session.id, "main1") == b"second"
    store.keep_logs([KernelLog(session.id, "main1", gzip.compress(b"\xff\x00last\r\n"))])
    assert store.log(session.id, "main1") == b"\xff\x00last\r\n"
    assert store.log(session.id, "sub1") == b""
    assert store.log(session.id, "sub2") is None
    assert store.log(other.id, "main1") is None
    assert store.kernels_with_logs([session.id]) == {(session.id, "main1"), (session.id, "sub1")}
    assert store.kernels_with_logs([other.id, session.id]) == {(session.id, "main1"), (session.id, "sub1")}
    assert store.kernels_with_logs([other.id]) == store.kernels_with_logs([]) == set()


def test_all_logs_of_a_turn_are_kept_whatever_their_number(store):
    store.add([session := make_session(1)])
    names = [f"sub{number}" for number in range(1, 121)]
    store.keep_logs([KernelLog(session.id, name, gzip.compress(name.encode())) for name in names])
    assert store.kernels_with_logs([session.id]) == {(session.id, name) for name in names}
    assert [store.log(session.id, name) for name in names] == [name.encode() for name in names]


def test_text_longer_than_the_database_takes_is_a_fault_of_the_input(postgresql_url, open_store):
    store = open_store(postgresql_url)
    with pytest.raises(BadInputError, match="too long"):
        store.add([make_session(1, owner="x" * 2000)])
    assert store.search() == []


def test_agents_and_sessions_of_a_snapshot_are_of_one_moment(url, open_store):
    """Each round names the agent's problem like the newest session: a snapshot must never see one without the other."""
    writer, reader = open_store(url), open_store(url)
    writer.agents.save([make_agent()])
    done = threading.Event()

    def write() -> None:
        for number in range(1, 60):
            with writing(writer._engine) as connection:
                revision = increment_counter(connection, REVISION)
                connection.exec_driver_sql(f"UPDATE agents SET problem = '{number}', revision = {revision}")
                row = {**session_row(make_session(number)), "revision": increment_counter(connection, SESSION_REVISION)}
                connection.execute(sa.insert(sessions), [row])
        done.set()

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        while not done.is_set():
            snapshot = reader.snapshot(NOW)
            assert snapshot.agents[0].problem == (str(len(snapshot.sessions)) if snapshot.sessions else "")
        written.result()


@pytest.mark.parametrize("state", STATES)
def test_a_snapshot_holds_what_has_not_ended(store, state):
    store.add([session := make_session(state=state)])
    found = store.snapshot(NOW)
    assert found.now == NOW
    assert found.sessions == (() if state in FINAL else (session,))


def test_a_snapshot_holds_the_ended_sessions_that_a_pending_one_depends_on(store):
    ended = [make_session(number, state=S.TERMINATED) for number in range(1, 5)]
    ids = [session.id for session in ended]
    runs = placed_on(make_session(5, after=[ids[3]]), "a1")
    waiting = make_session(6, after=[ids[0]], after_ok=[ids[1], runs.id], after_any=[ids[0]])
    store.add([*ended, runs, waiting])
    for _ in range(2):
        assert store.snapshot(NOW).ended == {session.id: session for session in ended[:2]}
    store.apply([Event(waiting.id, NOW, S.PENDING, S.CANCELLED, "ended by ada")])
    assert store.snapshot(NOW).ended == {}


def test_a_snapshot_includes_ended_dependencies_of_pending_sessions(store):
    first = placed_on(make_session(1), "a1", state=S.TERMINATING)
    store.add([first, make_session(2, after_any=[first.id])])
    assert store.snapshot(NOW).ended == {}
    store.apply([Event(first.id, NOW, S.TERMINATING, S.TERMINATED, "ended by ada", {"ended_at": NOW})])
    assert [session.state for session in store.snapshot(NOW).ended.values()] == [S.TERMINATED]


def test_a_search_is_oldest_first_and_by_state_owner_and_number(store):
    store.add([
        make_session(3),
        make_session(1, owner="eve"),
        make_session(2, state=S.TERMINATED),
        make_session(4, state=S.RUNNING),
    ])  # fmt: skip

    def names(**filters: Any) -> list[str]:
        return [session.name for session in store.search(**filters)]

    assert names() == ["s1", "s3", "s4"]
    assert names(ended=True) == ["s1", "s2", "s3", "s4"]
    assert names(states=[S.TERMINATED]) == ["s2"]
    assert names(states=[S.TERMINATED, S.RUNNING]) == ["s2", "s4"]
    assert names(owner="eve") == ["s1"]
    assert names(limit=2) == ["s3", "s4"]
    assert names(limit=2, ended=True, owner="ada") == ["s3", "s4"]


def test_sessions_of_an_array_are_found_by_their_indexes(store):
    array = make_array(10, (3, 1, 20))
    store.add([*array, make_session(2), make_session(50)])
    assert [session.name for session in store.search()] == ["s2", "s10-1", "s10-3", "s10-20", "s50"]
    assert [session.name for session in store.search(limit=3)] == ["s10-3", "s10-20", "s50"]


def test_missing_sessions_are_left_out(store):
    store.add([session := make_session()])
    store.add([other := make_session(9)])
    assert list(store.get([other.id, "nosuch", session.id])) == [other.id, session.id]
    assert store.get([]) == {}
    assert store.story("nosuch") == []
