"""What kernels used over their lives, in both databases: added up, thinned, and removed with their sessions."""

from dataclasses import replace

from muster.core.model.snapshot import Snapshot
from muster.core.usage.history import KEPT_S, MOST_POINTS, UsageStep
from muster.core.usage.kernel import KernelUsage
from muster.service.queue.usage_sampling import UsageSampling
from muster.service.usage.views import SessionHistoryView
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

EVEN = int(NOW // 3600 * 3600)


def running(store, **values):
    session = replace(placed_on(make_session(1, **values), "a1"), generation=7, started_at=NOW)
    store.add([session])
    return session


def step(session, at, rank=0, **values):
    return UsageStep(session.kernels[rank].id, 7, session.id, EVEN + at, **values)


def test_samples_of_one_step_are_added_up(store):
    session = running(store, cluster_size=2)
    store.usage_steps.add([step(session, 0, cpu=1.0, cpu_known=1), step(session, 0, rank=1, mem=5.0, mem_known=1)])
    store.usage_steps.add([step(session, 0, cpu=2.0, cpu_known=1), step(session, 15, gpu=1.0, gpu_known=1)])
    found = store.usage_steps.of_session(session.id)
    assert set(found) == {
        step(session, 0, cpu=3.0, cpu_known=2),
        step(session, 15, gpu=1.0, gpu_known=1),
        step(session, 0, rank=1, mem=5.0, mem_known=1),
    }


def test_a_kernels_steps_are_thinned_and_others_stay(store):
    session = running(store, cluster_size=2)
    store.usage_steps.add([step(session, 15 * n, rank, cpu=1.0, cpu_known=1) for n in range(4) for rank in (0, 1)])
    store.usage_steps.thin(session.kernels[0].id, 7, 30)
    store.usage_steps.thin(session.kernels[0].id, 8, 60)
    found = store.usage_steps.of_session(session.id)
    assert [one for one in found if one.kernel_id == session.kernels[0].id] == [
        step(session, 0, cpu=2.0, cpu_known=2),
        step(session, 30, cpu=2.0, cpu_known=2),
    ]
    assert len(found) == 6


def test_those_of_removed_sessions_are_left_out_and_old_ones_removed(store):
    session = running(store)
    store.usage_steps.add([step(session, 0, cpu=1.0, cpu_known=1), replace(step(session, 0), session_id="gone")])
    assert len(store.usage_steps.of_session(session.id)) == 1
    store.usage_steps.remove_old(EVEN + KEPT_S)
    assert len(store.usage_steps.of_session(session.id)) == 1
    store.usage_steps.remove_old(EVEN + KEPT_S + 1)
    assert store.usage_steps.of_session(session.id) == []


def test_a_month_of_observations_leaves_few_rows(store):
    session = running(store)
    sampling = UsageSampling(store)
    (kernel,) = session.kernels
    for age in (*range(0, 3600, 10), *range(3600, 30 * 86_400, 7200)):
        now = EVEN + age
        usage = KernelUsage(kernel.id, 7, session.id, EVEN, now, now, cpu_seconds=2.0 * age, mem_bytes=1 << 30)
        sampling.observe(Snapshot((make_agent("a1"),), (session,), now), [usage])
    rows = store.usage_steps.of_session(session.id)
    assert len(rows) <= MOST_POINTS + 1
    (history,) = SessionHistoryView.of(session, rows).items
    assert (history.kernel, history.run) == ("main1", 7)
    assert len(history.points) > MOST_POINTS // 3
    # The first sample has no rate yet.
    assert all(abs((point.cpu_cores or 2.0) - 2.0) < 1e-6 for point in history.points)
    assert {point.mem_bytes for point in history.points} == {float(1 << 30)}


def test_kernels_of_a_run_in_which_an_elastic_session_had_more_are_named():
    session = make_session(1, cluster_size="1-3")
    steps = [UsageStep(kernel.id, 7, session.id, 0, mem=1.0, mem_known=1) for kernel in session.possible_kernels]
    items = SessionHistoryView.of(session, reversed(steps)).items
    assert [item.kernel for item in items] == ["main1", "sub1", "sub2"]


def test_another_worker_goes_on(store):
    session = running(store)
    (kernel,) = session.kernels
    for age in (0, 15, 30):
        now = EVEN + age
        usage = KernelUsage(kernel.id, 7, session.id, EVEN, now, now, mem_bytes=age)
        UsageSampling(store).observe(Snapshot((make_agent("a1"),), (session,), now), [usage])
    assert [one.mem for one in store.usage_steps.of_session(session.id)] == [0.0, 15.0, 30.0]
