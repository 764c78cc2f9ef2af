"""What kernels used, by launch: kept, read for a report, and gone on from by whoever works the queue next."""

from dataclasses import replace

import pytest

from muster.core.lifecycle.idle import IdleRules
from muster.core.model.session import SessionState
from muster.core.usage.kernel import KernelUse
from muster.core.values.slots import Slots
from muster.service.queue.session_ends import SessionEnds
from tests.strategies import NOW, make_session, placed_on

RULES = IdleRules(timeout_s=100, grace_s=0, warn_before_s=20, gap_s=60)


def use_of(session, generation=7, rank=0, **values):
    kernel = session.kernels[rank]
    return KernelUse(kernel.id, generation, session.id, NOW, NOW + 10, NOW + 10, **values)


def running(number, **values):
    return replace(placed_on(make_session(number, **values), "a1"), generation=7, started_at=NOW)


def report(session, at, cpu=0.0):
    use = {"at": at, "cpu_seconds": cpu, "mem_bytes": 1, "mem_peak_bytes": 2, "net_rx_bytes": 0, "net_tx_bytes": 0}
    entries = [
        {
            "kernel_id": kernel.id,
            "session_id": session.id,
            "generation": 7,
            "state": "running",
            "use": {**use, "gpu_percent": None},
        }
        for kernel in session.kernels
    ]
    return {"kernels": entries}


def test_each_launch_of_a_kernel_has_a_row_of_its_own(store):
    session = running(1, cluster_size=2)
    store.add([session])
    first = use_of(session, 6, cpu_seconds=1.5, mem_peak_bytes=1 << 40)
    second = [use_of(session, 7, rank, gpu_seconds=0.5) for rank in (0, 1)]
    store.uses.save([first, *second])
    store.uses.save([replace(second[0], gpu_seconds=2.5), use_of(running(9))])
    found = store.uses.of_sessions([session.id])
    assert found[0] == first
    assert {(use.kernel_id, use.gpu_seconds) for use in found[1:]} == {
        (session.kernels[0].id, 2.5),
        (session.kernels[1].id, 0.5),
    }


def test_runs_are_those_within_the_time_with_what_they_used(store):
    runs = replace(running(1, cluster_size=2, project="vision"), generation=8, started_at=NOW + 50)
    before = replace(running(2), state=SessionState.TERMINATED, ended_at=NOW - 1)
    waits = make_session(3)
    store.add([runs, before, waits])
    store.uses.save([use_of(runs, 7, rank, cpu_seconds=2.0) for rank in (0, 1)])
    store.uses.save([use_of(runs, 8, 0, cpu_seconds=5.0)])
    first, second = store.uses.runs(NOW, NOW + 1000, NOW + 100)
    assert (first.started_at, first.ended_at, first.cpu_seconds, first.is_first) == (NOW, NOW + 10, 4.0, True)
    assert (second.started_at, second.ended_at, second.cpu_seconds, second.is_first) == (
        NOW + 50,
        NOW + 100,
        5.0,
        False,
    )
    assert (second.kernels, second.slots) == (2, Slots(cpu=2000, mem=2 << 30))
    assert list(store.uses.runs(NOW, NOW + 1000, NOW + 100, projects=["audio"])) == []
    assert len(list(store.uses.runs(NOW, NOW + 1000, NOW + 100, users=["ada"], projects=["vision"]))) == 2


@pytest.fixture
def ends(store):
    return SessionEnds(store, lambda _group: RULES)


def looked(ends, store, session, at, cpu=0.0):
    snapshot = store.snapshot(at)
    ends.observe(snapshot, [report(session, at, cpu)], at)
    return store.apply(ends.events(snapshot))


def test_an_idle_session_is_warned_and_ended_also_by_the_next_who_works_the_queue(store, ends, url, open_store):
    session = running(1)
    store.add([session])
    for at in (0, 30, 60):
        assert looked(ends, store, session, NOW + at) == []
    other_store = open_store(url)
    other = SessionEnds(other_store, lambda _group: RULES)
    (warning,) = looked(other, other_store, session, NOW + 90)
    assert warning.reason.startswith("idle for 1m30s")
    assert other_store.find(session.id).notice == f"session {session.name}: {warning.reason}\n"
    (end,) = looked(other, other_store, session, NOW + 110)
    assert end.to_state is SessionState.TERMINATING


def test_use_takes_a_warning_back(store, ends):
    session = running(1)
    store.add([session])
    for at in (0, 30, 60, 90):
        looked(ends, store, session, NOW + at)
    (event,) = looked(ends, store, session, NOW + 95, cpu=5.0)
    assert event.reason == "it is in use again"
    assert store.find(session.id).notice is None


def test_last_words_are_recorded_however_soon_they_come(store, ends):
    session = running(1)
    store.add([session])
    ends.hear_last_words(session.id, [], NOW)
    entry = report(session, NOW, cpu=1.0)["kernels"][0]
    ends.hear_last_words(session.id, [entry], NOW)
    ends.hear_last_words(session.id, [{**entry, "use": {**entry["use"], "at": NOW + 0.1, "cpu_seconds": 1.25}}], NOW)
    assert [use.cpu_seconds for use in store.uses.of_sessions([session.id])] == [1.25]
