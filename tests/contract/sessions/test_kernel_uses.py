"""Usage of kernels by launch: stored, read for a report, and continued by the next process that works the queue."""

from dataclasses import replace

import pytest

from muster.core.lifecycle.idle import IdleRules
from muster.core.lifecycle.launch_usage import LaunchUsage, Sample, samples_in
from muster.core.model.session import SessionState
from muster.core.usage.by_owner import SessionRun
from muster.core.usage.kernel import KernelUsage
from muster.core.values.slots import Slots
from muster.service.queue.worker import with_recorded_usage
from tests.reports import kernel_entry
from tests.reports import use_of as counters_of
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

RULES = IdleRules(timeout_s=100, grace_s=0, warn_before_s=20, gap_s=60)


def use_of(session, generation=7, rank=0, **values):
    kernel = session.kernels[rank]
    return KernelUsage(kernel.id, generation, session.id, NOW, NOW + 10, NOW + 10, **values)


def running(number, **values):
    return replace(placed_on(make_session(number, **values), "a1"), generation=7, started_at=NOW)


def report(session, at, cpu=0.0):
    use = counters_of(at=at, cpu_seconds=cpu, mem_bytes=1, mem_peak_bytes=2, net_rx_bytes=0, net_tx_bytes=0)
    entries = [kernel_entry(session, kernel.name, use=use) for kernel in session.kernels]
    return reporting(make_agent("a1"), kernels=entries).report


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


def test_earlier_runs_are_those_that_ended_with_a_restart_or_in_the_queue(store):
    restarted = replace(running(1, cluster_size=2, cpu=2), generation=8, started_at=NOW + 50)
    queued = replace(make_session(2, owner="bob", resource_group="gpu"), generation=7, requeues=1)
    elastic = replace(make_session(3, cluster_size="1-3"), generation=7, requeues=1)
    store.add([restarted, queued, elastic, running(4)])
    store.uses.save([use_of(restarted, 7, 0), replace(use_of(restarted, 7, 1), seen_at=NOW + 20)])
    store.uses.save([use_of(restarted, 8), use_of(queued), use_of(running(4))])
    store.uses.save([use_of(elastic), replace(use_of(elastic), kernel_id=elastic.spare[0].id)])
    runs = {
        (restarted.id, 7): SessionRun("ada", "default", Slots(cpu=4000, mem=2 << 30), NOW, NOW + 20),
        (queued.id, 7): SessionRun("bob", "gpu", Slots(cpu=1000, mem=1 << 30), NOW, NOW + 10),
        (elastic.id, 7): SessionRun("ada", "default", Slots(cpu=2000, mem=2 << 30), NOW, NOW + 10),
    }
    assert store.uses.earlier_runs(NOW) == runs
    assert store.uses.earlier_runs(NOW, [queued.id]) == {(queued.id, 7): runs[queued.id, 7]}
    assert set(store.uses.earlier_runs(NOW + 15)) == {(restarted.id, 7)}
    assert store.uses.earlier_runs(NOW, []) == {}


def test_earlier_runs_of_sessions_that_ended_long_ago_are_not_looked_for(store):
    recently, long_ago = (
        replace(running(number), state=SessionState.TERMINATED, generation=8, ended_at=NOW + number)
        for number in (20, 2)
    )
    store.add([recently, long_ago])
    store.uses.save([use_of(recently, 7), use_of(long_ago, 7)])
    assert set(store.uses.earlier_runs(NOW + 5)) == {(recently.id, 7)}
    assert set(store.uses.earlier_runs(NOW + 5, [long_ago.id])) == {(long_ago.id, 7)}


class Usage:
    """A stand-in for the queue's worker: reads usage, adds what agents report, and stores it."""

    def __init__(self, store):
        self.store = store
        self.usage = LaunchUsage()

    def take(self, sessions, samples, now):
        self.usage = with_recorded_usage(self.usage, self.store, sessions)
        changed = self.usage.changed_by(samples, now, lambda _group: RULES)
        self.store.uses.save(changed.values())
        self.usage = self.usage.with_changed(changed)

    def observe(self, session, at, cpu=0.0):
        snapshot = self.store.snapshot(at)
        self.take(snapshot.placed, samples_in({"a1": report(session, at, cpu)}, snapshot), at)
        return self.store.apply(self.usage.events(snapshot, lambda _group: RULES))


@pytest.fixture
def usage(store):
    return Usage(store)


def test_an_idle_session_is_warned_and_ended_even_if_another_process_takes_over_the_queue(
    store, usage, url, open_store
):
    session = running(1)
    store.add([session])
    for at in (0, 30, 60):
        assert usage.observe(session, NOW + at) == []
    other_store = open_store(url)
    other = Usage(other_store)
    (warning,) = other.observe(session, NOW + 90)
    assert warning.reason.startswith("idle for 1m30s")
    assert other_store.find(session.id).notice == f"session {session.name}: {warning.reason}\n"
    (end,) = other.observe(session, NOW + 110)
    assert end.to_state is SessionState.TERMINATING


def test_use_takes_a_warning_back(store, usage):
    session = running(1)
    store.add([session])
    for at in (0, 30, 60, 90):
        usage.observe(session, NOW + at)
    (event,) = usage.observe(session, NOW + 95, cpu=5.0)
    assert event.reason == "it is in use again"
    assert store.find(session.id).notice is None


def test_last_words_are_recorded_however_soon_they_come(store, usage):
    session = running(1)
    store.add([session])
    usage.take([session], [], NOW)
    use = report(session, NOW, cpu=1.0).kernels[0].use
    usage.take([session], [Sample(session, session.main.id, use, is_last=True)], NOW)
    later = use.model_copy(update={"at": NOW + 0.1, "cpu_seconds": 1.25})
    usage.take([session], [Sample(session, session.main.id, later, is_last=True)], NOW)
    assert [use.cpu_seconds for use in store.uses.of_sessions([session.id])] == [1.25]
