"""A simulation keeps the rules that a cluster would: books balance, sessions start once, equal input, equal ends."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import Session, kernel_count, kernels_of, spare_kernels_of
from muster.core.simulation.simulation import Cluster, Fate, Job, Life, Simulated, simulate
from muster.core.simulation.summary import Window, mean_over, spread, summarize
from muster.core.simulation.usage_of_cluster import SLOTS_IN_USE, ClusterUsage
from tests.strategies.agents import agents, make_agent
from tests.strategies.capacity import Ledger
from tests.strategies.sessions import make_session
from tests.strategies.specs import gang_specs
from tests.strategies.values import new_id

GPU_AGENT = {"cpus": 16, "mem_bytes": 64 << 30, "gpus": 2, "units_per_gpu": 2}


def job(number: int, at: float = 0.0, duration_s: float = 60.0, **values: Any) -> Job:
    return Job(replace(make_session(number, **values), submitted_at=at), duration_s)


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    made = []
    for number in range(1, draw(st.integers(1, 12)) + 1):
        limit = draw(st.sampled_from((None, 30, 100)))
        spec = draw(gang_specs()).model_copy(update={"name": f"s{number}", "time_limit": limit})
        ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
        at = float(draw(st.integers(0, 5)) * 10)
        kernels, spare = (make(spec, ids, spec.image) for make in (kernels_of, spare_kernels_of))
        session = Session(ids[0], spec.name, "ada", spec, kernels, at, spare=spare)
        made.append(Job(session, float(draw(st.sampled_from((0, 5, 40, 200))))))
    return made


clusters = st.builds(
    Cluster,
    agents(min_size=1),
    launch_s=st.sampled_from((0.0, 3.0)),
    interval_s=st.sampled_from((0.0, 7.0)),
)


def moments(result: Simulated) -> list[float]:
    return sorted({at for life in result.lives for at in (life.placed_at, life.ended_at) if at is not None})


def holding(lives: Sequence[Life], at: float) -> list[Life]:
    """Return the jobs that hold room just after that time."""
    return [
        life for life in lives
        if life.placed_at is not None and life.placed_at <= at and (life.ended_at is None or at < life.ended_at)
    ]  # fmt: skip


@given(jobs(), clusters)
def test_no_agent_is_ever_oversubscribed(workload, cluster):
    result = simulate(workload, cluster)
    for at in moments(result):
        ledger = Ledger.of(cluster.agents)
        for life in holding(result.lives, at):
            for kernel in life.kernels:
                ledger.charge(kernel)
        assert ledger.overdrawn == []


@given(jobs(), clusters)
def test_each_session_starts_at_most_once_and_ends_when_its_time_is_over(workload, cluster):
    result = simulate(workload, cluster)
    durations = {job.session.id: job.duration_s for job in workload}
    assert len(result.lives) == len(workload)
    for life in result.lives:
        assert life.starts <= 1
        if life.fate is Fate.NEVER:
            assert (life.starts, life.ended_at) == (0, None)
            continue
        if life.started_at is None:
            assert life.fate is Fate.WAITING
            continue
        assert life.placed_at is not None
        assert life.placed_at >= life.session.submitted_at
        assert life.started_at == life.placed_at + cluster.launch_s
        limit = life.session.spec.time_limit
        duration = durations[life.session.id]
        assert life.ended_at == life.started_at + (duration if limit is None else min(limit, duration))
        assert life.fate is (Fate.TIMED_OUT if limit is not None and limit < duration else Fate.ENDED)


@given(jobs(), clusters)
def test_equal_input_gives_equal_results(workload, cluster):
    assert simulate(workload, cluster) == simulate(list(reversed(workload)), cluster)


@given(jobs(), clusters)
def test_the_used_amount_is_the_sum_of_the_sessions_slots(workload, cluster):
    result = simulate(workload, cluster)
    total = sum(agent.capacity.cpu for agent in cluster.agents)
    for use in result.use:
        held = sum(k.slots.cpu for life in holding(result.lives, use.at) for k in life.kernels)
        assert use.cpu == pytest.approx(held / total if total else 0.0)
        assert -1e-9 <= use.fragmented <= 1 - use.gpu + 1e-9


def test_bounded_slowdown_and_gang_waits():
    """Waits over runs, which count as ten seconds at least; of gangs the waits alone."""
    jobs = [job(1, duration_s=100, cpu=8), job(2, duration_s=5, cpu=4, cluster_size=2), job(3, duration_s=20, cpu=8)]
    summary = summarize(simulate(jobs, Cluster((make_agent(cpus=8),))))
    assert (summary.waits.max, summary.gang_waits.mean, summary.gang_waits.max) == (105, 100, 100)
    assert summary.slowdowns.max == 105 / 10
    assert summary.slowdowns.mean == pytest.approx((1 + 10.5 + 125 / 20) / 3)


def test_a_window_leaves_out_what_is_before_and_after_it():
    result = simulate([job(n, at=n * 10, duration_s=10, cpu=8) for n in range(1, 5)], Cluster((make_agent(cpus=16),)))
    summary = summarize(result, Window(20, 40), intervals=2)
    assert (summary.submitted, summary.ended, summary.span_s) == (2, 2, 20)
    assert (summary.use["cpu"], summary.over_time["cpu"]) == (0.5, (0.5, 0.5))
    nothing = summarize(result, Window(1000, 2000))
    assert (nothing.submitted, nothing.span_s, nothing.use["cpu"]) == (0, 0, 0)


@pytest.mark.parametrize("launch_s", [0.0, 30.0])
def test_what_comes_after_a_start_starts_with_it(launch_s):
    """Not before, as at another's arrival while it is launched, and not only at the next arrival or end."""
    first, second = job(1, duration_s=1000, cpu=1), job(2, cpu=1, after=(make_session(1).id,))
    cluster = Cluster((make_agent(cpus=8),), launch_s=launch_s)
    lives = {life.session.name: life for life in simulate([first, second, job(3, at=5.0, cpu=1)], cluster).lives}
    assert lives["s1"].started_at == lives["s2"].placed_at == launch_s


def test_a_session_waits_for_the_end_of_the_one_before_it():
    result = simulate([job(1, duration_s=100, cpu=8), job(2, at=10, cpu=8)], Cluster((make_agent(cpus=8),)))
    assert [life.started_at for life in result.lives] == [0, 100]
    assert [life.waited_s for life in result.lives] == [0, 90]
    assert (result.began_at, result.ended_at) == (0, 160)
    summary = summarize(result, intervals=2)
    assert (summary.started, summary.ended, summary.span_s) == (2, 2, 160)
    assert (summary.waits.mean, summary.waits.max) == (45, 90)
    assert summary.use["cpu"] == 1.0
    assert summary.over_time["cpu"] == (1.0, 1.0)


def test_a_short_session_is_filled_in_where_time_limits_allow_it():
    agent = make_agent(cpus=8)
    workload = [
        job(1, duration_s=100, cpu=6, time_limit="100s"),
        job(2, at=1, cpu=8, time_limit="100s"),
        job(3, at=2, duration_s=50, cpu=2, time_limit="50s"),
    ]
    filled = simulate(workload, Cluster((agent,)))
    assert [life.started_at for life in filled.lives] == [0, 100, 2]
    strict = SchedulingPolicy(default=GroupPolicy(backfill=False))
    assert [life.started_at for life in simulate(workload, Cluster((agent,), strict)).lives] == [0, 100, 160]


def test_a_session_that_never_fits_is_reported_and_holds_up_no_other():
    result = simulate([job(1, cpu=64), job(2, cpu=1)], Cluster((make_agent(cpus=8),)))
    assert [life.fate for life in result.lives] == [Fate.NEVER, Fate.ENDED]
    assert "it asks for more than any agent" in result.lives[0].reason


def test_a_session_comes_after_the_one_that_it_depends_on():
    first = job(1, duration_s=100)
    after = job(2, after_ok=(first.session.id,))
    failed = job(3, duration_s=100, time_limit="10s")
    never = job(4, after_ok=(failed.session.id,))
    result = simulate([first, after, failed, never], Cluster((make_agent(cpus=8),)))
    assert [life.started_at for life in result.lives] == [0, 100, 0, None]
    assert [life.fate for life in result.lives] == [Fate.ENDED, Fate.ENDED, Fate.TIMED_OUT, Fate.NEVER]


@pytest.mark.parametrize("condition", ["after", "after_ok", "after_any"])
def test_a_session_waits_for_one_that_comes_after_it(condition):
    early = job(1, **{condition: (job(3).session.id, job(2).session.id)})
    result = simulate([early, job(2, at=50, duration_s=100), job(3, at=20)], Cluster((make_agent(cpus=8),)))
    lives = {life.session.name: life for life in result.lives}
    assert [lives[one.session.name].started_at for one in (job(2), job(3))] == [50, 20]
    assert lives[early.session.name].started_at == (50 if condition == "after" else 150)
    assert lives[early.session.name].fate is Fate.ENDED


@pytest.mark.parametrize("later", [[], [job(9, at=600)]])
def test_what_depends_on_a_session_that_waits_in_vain_waits_too(later):
    """As in the queue, whatever else comes."""
    giant = job(1, cpu=64)
    after = [job(number, **{name: (giant.session.id,)}) for number, name in ((2, "after_any"), (3, "after_ok"))]
    result = simulate([giant, *after, *later], Cluster((make_agent(cpus=8),)))
    assert [life.fate for life in result.lives[:3]] == [Fate.NEVER, Fate.WAITING, Fate.WAITING]


def test_what_comes_after_a_cancelled_session_starts_at_once():
    failed = job(1, duration_s=100, time_limit="10s")
    cancelled = job(2, after_ok=(failed.session.id,))
    after = job(3, after_any=(cancelled.session.id,))
    result = simulate([failed, cancelled, after], Cluster((make_agent(cpus=8),)))
    assert [life.fate for life in result.lives] == [Fate.TIMED_OUT, Fate.NEVER, Fate.ENDED]
    assert result.lives[2].started_at == 10


def test_a_session_begins_no_sooner_than_it_says():
    (life,) = simulate([job(1, begin=500.0)], Cluster((make_agent(),))).lives
    assert life.started_at == 500


def test_a_preempted_session_that_may_be_queued_again_begins_anew():
    policy = SchedulingPolicy(default=GroupPolicy(preemption=True))
    again = {"preemptible": True, "requeue": True, "priority": 10}
    workload = [job(1, duration_s=100, cpu=8, **again), job(2, at=40, cpu=8, priority=90)]
    result = simulate(workload, Cluster((make_agent(cpus=8),), policy))
    first, second = result.lives
    assert (second.started_at, second.ended_at) == (40, 100)
    assert (first.starts, first.started_at, first.ended_at) == (2, 100, 200)
    assert (first.fate, result.preemptions) == (Fate.ENDED, 1)


def test_a_preempted_session_that_may_not_be_queued_again_has_ended():
    policy = SchedulingPolicy(default=GroupPolicy(preemption=True))
    workload = [job(1, cpu=8, preemptible=True, priority=10), job(2, at=40, cpu=8, priority=90)]
    first, second = simulate(workload, Cluster((make_agent(cpus=8),), policy)).lives
    assert (first.fate, first.ended_at) == (Fate.PREEMPTED, 40)
    assert second.started_at == 40


def test_the_simulation_stops_at_the_given_time():
    workload = [job(1, duration_s=1000, cpu=8), job(2, cpu=8), job(3, at=900)]
    result = simulate(workload, Cluster((make_agent(cpus=8),)), until=500)
    assert [life.fate for life in result.lives] == [Fate.RUNNING, Fate.WAITING, Fate.WAITING]
    assert (result.ended_at, summarize(result).use["cpu"]) == (500, 1.0)


def test_free_gpus_that_no_typical_request_can_use_are_fragmented():
    """Two shares of a quarter lie on one GPU: half of it is free, which a request of three quarters cannot use."""
    (agent,) = (make_agent(**{**GPU_AGENT, "gpus": 1}),)
    result = simulate([job(1, fgpu="1.5"), job(2, fgpu="1.5")], Cluster((agent,)))
    assert [use.gpu for use in result.use] == [0.75, 0.75]
    assert [use.fragmented for use in result.use] == [0.25, 0.25]


def test_usage_of_the_past_counts_for_a_fair_order():
    def least_used(sessions, view):
        return sorted(sessions, key=lambda session: (view.usage.get(session.owner, 0.0), session.submitted_at))

    policy = SchedulingPolicy(default=GroupPolicy(order=least_used))
    workload = [
        job(1, duration_s=100, cpu=8),
        job(2, at=1, cpu=8),
        Job(replace(make_session(3, cpu=8), owner="eve", submitted_at=2.0), 10.0),
    ]
    lives = simulate(workload, Cluster((make_agent(cpus=8),), policy)).lives
    assert [life.started_at for life in lives] == [0, 110, 100]


def test_means_are_weighted_by_time():
    uses = [ClusterUsage(0, 0.0, 0, 0, 0), ClusterUsage(10, 1.0, 0, 0, 0), ClusterUsage(30, 0.5, 0, 0, 0)]
    assert mean_over(uses, "cpu", 0, 40, 1) == ((20 + 5) / 40,)
    assert mean_over(uses, "cpu", 0, 40, 4) == (0.0, 1.0, 1.0, 0.5)
    assert mean_over([], "cpu", 0, 0, 2) == (0.0, 0.0)
    assert set(SLOTS_IN_USE) == {"cpu", "mem", "gpu", "fragmented"}


def test_percentiles_are_those_of_the_nearest_rank():
    assert spread([float(n) for n in range(1, 101)]).p95 == 95
    assert spread([3.0, 1.0, 2.0]).median == 2
    assert spread([]).max == 0


def test_without_agents_nothing_ever_starts():
    (life,) = simulate([job(1)], Cluster(())).lives
    assert life.fate is Fate.NEVER
