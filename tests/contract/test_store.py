"""What the store promises, whatever database is behind it."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.core import lifecycle
from muster.core.agent import AgentState
from muster.core.errors import AmbiguousNameError, NameTakenError, NotFoundError, SettingsError
from muster.core.lifecycle import Event
from muster.core.session import FINAL, Allocation, GpuShare, Result, Session, SessionState
from muster.store.connection import HEAD, open_engine
from muster.store.store import Store
from muster.store.tables import metadata
from tests.strategies import NOW, STATES, make_agent, make_session, placed_on, sessions_in_any_state

S = SessionState
ROOT = Path(__file__).parents[2]
one_store_for_all_examples = settings(suppress_health_check=[*HealthCheck])


def event(session: Session, to: SessionState, reason: str = "because", **changes: object) -> Event:
    return Event(session.id, NOW, session.state, to, reason, changes)


def only(store: Store, session: Session) -> Session:
    return store.get([session.id])[session.id]


def in_another_process(code: str, url: str) -> subprocess.Popen[str]:
    """Runs `code`, which finds the database's url in `url`."""
    prelude = f"from tests.strategies import *\nfrom muster.store.store import Store\nurl = {url!r}\n"
    command = [sys.executable, "-c", prelude + code]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# Sessions


@one_store_for_all_examples
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=3, unique=True).flatmap(
    lambda numbers: st.tuples(*(sessions_in_any_state(number) for number in numbers))
))  # fmt: skip
def test_a_session_is_read_as_it_was_added(store, found):
    for session in found:
        with store._engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM sessions")
        store.add([session])
        assert only(store, session) == session


def test_a_placed_session_keeps_its_gpu_shares(store):
    shares = (GpuShare("GPU-1", 1000, whole=True), GpuShare("GPU-2", 250, whole=False))
    session = placed_on(make_session(), "a1")
    session = replace(session, kernels=(replace(session.main, allocation=Allocation("a1", shares)),))
    store.add([session])
    assert only(store, session) == session


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
def test_what_is_no_reference_is_not_found(store, reference):
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


def test_among_ended_sessions_of_a_name_the_newest_is_meant(store):
    old, new = (make_session(n, name="train", state=S.TERMINATED) for n in (1, 2))
    store.add([new, old])
    assert store.find("train").id == new.id


def test_a_session_that_has_not_ended_is_meant_before_newer_ones_that_have(store):
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


def test_of_several_new_sessions_all_are_added_or_none(store):
    store.add([make_session(1, name="train")])
    with pytest.raises(NameTakenError) as raised:
        store.add([make_session(2), make_session(3, name="train"), make_session(4)])
    assert "train" in str(raised.value)
    assert "s2" not in str(raised.value)
    assert [session.name for session in store.search(ended=True)] == ["train"]
    store.add([])


def test_of_two_processes_only_one_gets_a_name(url, store):
    code = """
import sys
from muster.core.errors import NameTakenError
store = Store(url)
print("ready", flush=True)
wins = 0
for number in range(40):
    try:
        store.add([make_session(int(OWN) + number, name=f"name-{number}")])
        wins += 1
    except NameTakenError:
        pass
print(wins)
"""
    processes = [in_another_process(code.replace("OWN", repr(own)), url) for own in ("1000", "2000")]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum(int(out.split()[-1]) for out, _ in outputs) == 40
    assert len({session.name for session in store.search()}) == len(store.search()) == 40


# Events


def test_an_event_changes_state_reason_and_fields_and_is_told_in_the_story(store):
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


def test_of_many_threads_that_end_a_session_one_does(store):
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


def test_an_exception_leaves_nothing_of_its_transaction(store):
    store.add([one := make_session(1), two := make_session(2)])

    def changes():
        yield event(one, S.CANCELLED)
        yield replace(event(two, S.CANCELLED), kernels={two.main.id: {"exit_code": object()}})

    with pytest.raises(sa.exc.SQLAlchemyError):
        store.apply(changes())
    assert [only(store, session) for session in (one, two)] == [one, two]
    assert len(store.story(one.id)) == 1


def test_a_story_is_told_in_the_order_in_which_it_happened(store):
    store.add([session := make_session()])
    path = [S.PENDING, S.SCHEDULED, S.PREPARING, S.PENDING, S.SCHEDULED, S.TERMINATING, S.TERMINATED]
    for at, (before, after) in enumerate(pairwise(path)):
        store.apply([Event(session.id, NOW - at, before, after, f"step {at}")])
    assert [line.to_state for line in store.story(session.id)] == path
    assert [line.reason for line in store.story(session.id)] == ["submitted", *(f"step {n}" for n in range(6))]


def test_a_result_is_read_as_a_result(store):
    store.add([session := placed_on(make_session(command="true"), "a1")])
    store.apply([lifecycle.terminate(session, "done", Result.SUCCESS, NOW, 0)])
    after = only(store, session)
    assert (after.result, after.exit_code) == (Result.SUCCESS, 0)
    assert isinstance(after.result, Result)


# Waits, agents, generations, snapshots


def test_waits_are_kept_for_pending_sessions_only(store):
    store.add([waiting := make_session(1), runs := placed_on(make_session(2), "a1")])
    store.save_waits({waiting.id: {"message": "busy"}, runs.id: {"message": "busy"}, "nosuch": {}})
    assert only(store, waiting).wait == {"message": "busy"}
    assert only(store, runs).wait == {}
    store.save_waits({})


def test_agents_are_read_as_they_were_saved(store):
    one = make_agent("a1", gpus=2, units_per_gpu=4, reserved_cpu=1)
    two = replace(make_agent("a2", resource_group="gpu"), state=AgentState.LOST, problem="it does not answer")
    store.save_agents([two, one])
    found = store.snapshot(NOW).agents
    assert found == (one, two)
    assert [agent.report for agent in found] == [one.report, two.report]


def test_an_agent_seen_again_is_one_agent(store):
    store.save_agents([make_agent(cpus=4)])
    store.save_agents([make_agent(cpus=8)])
    (agent,) = store.snapshot(NOW).agents
    assert agent.capacity.cpu == 8000


def test_an_agent_can_be_forgotten(store):
    store.save_agents([make_agent("a1"), make_agent("a2")])
    store.forget_agent("a1")
    store.forget_agent("nosuch")
    assert [agent.id for agent in store.snapshot(NOW).agents] == ["a2"]


def test_generations_rise_even_when_the_clock_does_not_and_the_store_is_opened_again(url):
    numbers = []
    for now in (NOW, NOW, NOW - 3600, NOW - 3600, NOW + 1, NOW + 1):
        store = Store(url)
        numbers += [store.next_generation(now), store.next_generation(now)]
        store.close()
    assert numbers == sorted(set(numbers))
    assert numbers[0] == int(NOW * 1000)


def test_generations_are_given_out_once(store):
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda _: store.next_generation(NOW), range(40)))
    assert len(set(numbers)) == 40


@pytest.mark.parametrize("state", STATES)
def test_a_snapshot_holds_what_has_not_ended(store, state):
    store.add([session := make_session(state=state)])
    found = store.snapshot(NOW)
    assert found.now == NOW
    assert found.sessions == (() if state in FINAL else (session,))


def test_a_search_is_oldest_first_and_by_state_owner_and_number(store):
    store.add([
        make_session(3),
        make_session(1, owner="eve"),
        make_session(2, state=S.TERMINATED),
        make_session(4, state=S.RUNNING),
    ])  # fmt: skip

    def names(**filters: object) -> list[str]:
        return [session.name for session in store.search(**filters)]

    assert names() == ["s1", "s3", "s4"]
    assert names(ended=True) == ["s1", "s2", "s3", "s4"]
    assert names(states=[S.TERMINATED]) == ["s2"]
    assert names(states=[S.TERMINATED, S.RUNNING]) == ["s2", "s4"]
    assert names(owner="eve") == ["s1"]
    assert names(limit=2) == ["s3", "s4"]
    assert names(limit=2, ended=True, owner="ada") == ["s3", "s4"]


def test_what_does_not_exist_is_left_out(store):
    store.add([session := make_session()])
    assert list(store.get([session.id, "nosuch"])) == [session.id]
    assert store.get([]) == {}
    assert store.story("nosuch") == []


# A writer that is killed


WRITER = """
from muster.core.lifecycle import Event
from muster.core.session import SessionState as S
store = Store(url)
number = 0
while True:
    number += 1
    session = make_session(number, cluster_size=20)
    store.add([session])
    kernels = {kernel.id: {"exit_code": number} for kernel in session.kernels}
    store.apply([Event(session.id, NOW, S.PENDING, S.CANCELLED, "because", {"exit_code": number}, kernels)])
    print(number, flush=True)
"""


@pytest.mark.parametrize("commits", [1, 4, 9])
def test_a_killed_writer_leaves_every_commit_whole_and_no_lock(url, commits):
    writer = in_another_process(WRITER, url)
    for _ in range(commits):
        assert writer.stdout.readline().strip(), writer.communicate()
    writer.kill()
    writer.communicate()
    store = Store(url)
    found = store.search(ended=True)
    assert len(found) >= commits
    for session in found:
        ended = session.state is S.CANCELLED
        assert ended or session is found[-1]
        assert {kernel.exit_code for kernel in session.kernels} == {session.exit_code}
        assert (session.exit_code is not None) == ended
        assert len(session.kernels) == 20
        assert len(store.story(session.id)) == (2 if ended else 1)
    store.add([make_session(10**6)])
    store.close()


# Migrations


def test_head_is_alembics_head():
    config = Config()
    config.set_main_option("script_location", str(ROOT / "muster" / "store" / "migrations"))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_the_migrations_make_the_tables_of_the_code(url):
    engine = open_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, metadata)
        assert [difference for difference in differences if "alembic_version" not in str(difference)] == []
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]
        indexes = {name: {i["name"] for i in sa.inspect(connection).get_indexes(name)} for name in metadata.tables}
    assert indexes == {name: {index.name for index in table.indexes} for name, table in metadata.tables.items()}
    engine.dispose()


def test_processes_that_open_a_new_database_at_once_all_can(url):
    code = "import sys; Store(url).close()"
    processes = [in_another_process(code, url) for _ in range(3)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors


@pytest.mark.parametrize(
    "broken", [lambda path: f"sqlite:///{path / 'file' / 'x.db'}", lambda _path: "nonsense", lambda _path: "nosuch://x"]
)
def test_a_database_that_cannot_be_opened_is_a_fault_of_the_settings(tmp_path, broken: Callable[[Path], str]):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be opened"):
        open_engine(broken(tmp_path))


def test_a_file_that_is_no_database_is_a_fault_of_the_settings(tmp_path):
    (tmp_path / "muster.db").write_bytes(b"this is no database at all, but text of some length" * 100)
    with pytest.raises(SettingsError, match="cannot be opened"):
        open_engine(f"sqlite:///{tmp_path / 'muster.db'}")


def test_a_database_of_a_newer_muster_is_refused_with_a_reason(url):
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    engine.dispose()
    with pytest.raises(SettingsError, match="9999"):
        open_engine(url)
