"""Numbers of workers, manifests and passes: each is given out once, and only the newest worker writes."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa

from muster.core.agents.launch_record import LaunchRecord
from muster.core.lifecycle.transitions import transition
from muster.core.model.session import KernelLog, SessionState
from muster.core.usage.kernel import KernelUsage
from muster.core.values.errors import QueueLockLostError, SettingsError
from muster.store.database.connection import new_engine
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.waiting import eventually


def test_generations_rise_even_when_the_clock_does_not_and_the_store_is_opened_again(url, open_store):
    numbers = [0]
    for now in (NOW, NOW, NOW - 3600, NOW - 3600, NOW + 1, NOW + 1):
        store = open_store(url)
        numbers += [store.queue.next_generation(now) for _ in range(2)]
    assert numbers == sorted(set(numbers))
    assert numbers[1] == int(NOW * 1000)


def test_a_generation_is_above_what_agents_have_accepted(store):
    """A database that was restored knows less than they do."""
    ahead = int((NOW + 3600) * 1000)
    assert store.queue.next_generation(NOW, accepted=ahead) == ahead + 1
    assert store.queue.next_generation(NOW, accepted=ahead) == ahead + 2
    assert store.queue.next_generation(NOW) == ahead + 3


def test_each_restore_has_what_runs_adopted_once(store):
    assert store.queue.adoption() is None
    for holds in (True, False, True):
        store.queue.note_restore(holds=holds)
        adoption = store.queue.adoption()
        assert adoption is not None
        assert adoption.holds is holds
        store.queue.finish_adoption()
        assert store.queue.adoption() is None


def test_launches_of_before_the_first_generation_are_another_databases(store):
    assert store.snapshot(NOW).begins_at == math.inf
    first = store.queue.next_generation(NOW)
    store.queue.next_generation(NOW)
    assert store.snapshot(NOW).begins_at == first
    store.queue.disown_unknown()
    assert store.snapshot(NOW).begins_at == 1


def ids_of(store):
    return store.snapshot(NOW).databases


def test_a_database_has_an_id_of_its_own_from_its_first_worker_on(url, store, open_store):
    assert ids_of(store) == ()
    store.queue.begin_work()
    (id_,) = ids_of(store)
    store.queue.begin_work()
    assert ids_of(store) == ids_of(open_store(url)) == (id_,)


def test_a_restored_database_has_another_id_and_continues_what_it_was(store):
    store.queue.begin_work()
    (first,) = ids_of(store)
    for holds in (True, False):
        store.queue.note_restore(holds=holds)
        store.queue.begin_work()
        store.queue.begin_work()
    newest, *continued = ids_of(store)
    assert (len({newest, *continued}), len(continued), continued[-1]) == (3, 2, first)


def test_a_database_continues_those_whose_launches_it_takes_over_each_once(url, store, open_store):
    other = open_store(url)
    store.queue.begin_work()
    (own,) = ids_of(other)
    store.queue.disown_unknown(["00000000000000aa", own])
    store.queue.finish_adoption(["00000000000000aa", "7fffffffffffffff"])
    assert ids_of(other) == (own, "7fffffffffffffff", "00000000000000aa")


def test_a_restored_backup_is_no_new_database_although_it_gave_out_no_generation(store):
    store.queue.note_restore(holds=False)
    store.queue.next_generation(NOW)
    assert store.snapshot(NOW).begins_at == 1


def test_a_database_from_before_first_generations_were_noted_knows_all(url, open_store):
    store = open_store(url)
    store.queue.next_generation(NOW)
    engine = new_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM counters WHERE name = 'first generation'"))
    engine.dispose()
    store.queue.next_generation(NOW)
    assert store.snapshot(NOW).begins_at == 0


WRITES_OF_A_WORKER = {
    "an event": lambda store, session: store.apply([transition(session, SessionState.SCHEDULED, "placed", NOW)]),
    "agents": lambda store, _session: store.agents.save([make_agent("a1")]),
    "launch records": lambda store, _session: store.agents.save_launch_records({"a1": LaunchRecord()}),
    "progress": lambda store, session: store.save_progress(session.id, []),
    "a generation": lambda store, _session: store.queue.next_generation(NOW),
    "an adoption": lambda store, _session: store.queue.finish_adoption(),
    "a log": lambda store, session: store.keep_logs([KernelLog(session.id, "main1", b"")]),
    "a forgotten agent": lambda store, _session: store.agents.forget("a1"),
    "usage": lambda store, session: store.uses.save([KernelUsage(session.kernels[0].id, 1, session.id, NOW, NOW, NOW)]),
    "samples": lambda store, _session: store.samples.remove_old(NOW),
    "a pulled image": lambda store, _session: store.pulled_images.forget_old(NOW),
}


@pytest.mark.parametrize("write", WRITES_OF_A_WORKER.values(), ids=WRITES_OF_A_WORKER)
def test_a_worker_writes_nothing_once_another_has_begun(url, store, open_store, write):
    sleeper, other = store, open_store(url)
    session = make_session(1)
    other.add([session])
    worker = sleeper.queue.begin_work()
    with sleeper.queue.working_as(worker):
        write(sleeper, session)
    sleeper.apply([transition(replace(session, state=SessionState.SCHEDULED), SessionState.PENDING, "again", NOW)])
    before = other.queue.begin_work()
    with pytest.raises(QueueLockLostError, match="another control node"), sleeper.queue.working_as(worker):
        write(sleeper, session)
    assert other.get([session.id])[session.id].state is SessionState.PENDING
    with other.queue.working_as(before):
        write(other, session)
    # What is not a worker's is nobody's to forbid: a user's command in the same process.
    write(sleeper, session)


def test_a_worker_that_begins_waits_for_what_the_one_before_is_writing(url, store, open_store):
    """It reads only after that is committed; what the other writes later is refused."""
    sleeper, other = store, open_store(url)
    session = make_session(1)
    other.add([session])
    worker = sleeper.queue.begin_work()
    there = transition(session, SessionState.SCHEDULED, "placed", NOW)
    back = transition(replace(session, state=SessionState.SCHEDULED), SessionState.PENDING, "again", NOW)

    def write() -> None:
        with sleeper.queue.working_as(worker), suppress(QueueLockLostError):
            while sleeper.apply([there]) and sleeper.apply([back]):
                pass

    before = other.session_revision()
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        eventually(lambda: other.session_revision() > before + 3)
        other.queue.begin_work()
        seen = other.session_revision()
        written.result()
    assert other.session_revision() == seen


def test_a_cluster_keeps_its_name_while_sessions_run(url, store, open_store):
    """By another name agents would report nothing of them, and a settings file would end all that runs."""
    first, second = make_session(1), make_session(2)
    store.add([first, second])
    store.queue.note_cluster("one")
    store.queue.note_cluster("two")
    store.apply([transition(session, SessionState.SCHEDULED, "placed", NOW) for session in (first, second)])
    store.queue.note_cluster("two")
    other = open_store(url)
    with pytest.raises(SettingsError, match="cluster: 2 sessions run under another name of the cluster than one"):
        other.queue.note_cluster("one")
    assert other.queue.problem_of_cluster("two") == ""
    placed = (replace(session, state=SessionState.SCHEDULED) for session in (first, second))
    store.apply([transition(session, SessionState.PENDING, "again", NOW) for session in placed])
    other.queue.note_cluster("one")
    assert store.queue.problem_of_cluster("two") == ""


def test_a_database_that_knows_no_name_of_its_cluster_takes_the_first(store):
    """As one of an earlier version, whose sessions run."""
    session = make_session(1)
    store.add([session])
    store.apply([transition(session, SessionState.SCHEDULED, "placed", NOW)])
    assert store.queue.problem_of_cluster("one") == ""
    store.queue.note_cluster("one")
    assert store.queue.problem_of_cluster("two").startswith("1 session runs under another name")


def test_passes_are_requested_by_number_and_finished_up_to_a_number(store):
    assert (store.queue.requested_pass(), store.queue.finished_pass()) == (0, 0)
    assert [store.queue.request_pass(), store.queue.request_pass()] == [1, 2]
    assert (store.queue.requested_pass(), store.queue.finished_pass()) == (2, 0)
    store.queue.finish_pass(1)
    assert store.queue.finished_pass() == 1
    assert store.queue.request_pass() == 3
    store.queue.finish_pass(3)
    store.queue.finish_pass(2)  # by a worker that was late
    assert (store.queue.requested_pass(), store.queue.finished_pass()) == (3, 3)


def test_concurrent_requests_for_a_pass_get_different_numbers(url, open_store):
    stores = [open_store(url) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda number: stores[number % 4].queue.request_pass(), range(40)))
    assert sorted(numbers) == list(range(1, 41))
