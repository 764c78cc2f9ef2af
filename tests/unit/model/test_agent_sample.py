"""What an agent has, gives and uses at one time, by its report; and points of a time by what is kept."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.agent_sample import MEASURES, Amount, counted, is_due, sample
from muster.core.model.free_capacity import FreeCapacity
from muster.core.model.session import Allocation, GpuShare
from muster.core.usage.over_time import SPANS, span_named, usage_over_time
from muster.core.values.errors import BadInputError
from tests.properties import cheap, examples
from tests.reports import kernel_entry, use_of
from tests.simulated.hosts import host_of
from tests.strategies.agents import observed as agent_of
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

GIB = 1 << 30


def observed(at, entries=(), **hardware):
    report, inventory = host_of("a1", **hardware)
    return agent_of("a1", {**report, "kernels": list(entries)}, inventory, NOW + at)


def entry(session, at, cpu, **facts):
    use = use_of(at=NOW + 5000 + at, cpu_seconds=cpu, mem_bytes=GIB)
    return kernel_entry(session, "main1", **{"use": use, **facts})


def used(before, now, measure="cpu"):
    return sample(now, (), None if before is None else counted(before.report, before.observed_at)).amounts[measure].used


RUNNING = placed_on(make_session(1), "a1")
OTHER = placed_on(make_session(2), "a1")


def test_cpu_used_is_what_the_counters_grew_by():
    assert used(observed(0, [entry(RUNNING, 0, 10.0)]), observed(60, [entry(RUNNING, 60, 100.0)])) == 1500


def test_the_agents_clock_counts_and_not_when_its_report_came():
    assert used(observed(0, [entry(RUNNING, 0, 10.0)]), observed(90, [entry(RUNNING, 60, 100.0)])) == 1500


def test_a_kernel_that_is_new_used_all_of_it_since():
    assert used(observed(0), observed(60, [entry(RUNNING, 60, 30.0)])) == 500
    relaunched = replace(RUNNING, generation=8)
    assert used(observed(0, [entry(RUNNING, 0, 900.0)]), observed(60, [entry(relaunched, 60, 30.0)])) == 500


def test_a_counter_that_began_anew_is_no_negative_use():
    assert used(observed(0, [entry(RUNNING, 0, 900.0)]), observed(60, [entry(RUNNING, 60, 30.0)])) == 500


@pytest.mark.parametrize("elapsed", [0, 5, 3600])
def test_too_short_and_too_long_a_time_give_no_usage(elapsed):
    assert used(observed(0, [entry(RUNNING, 0, 1.0)]), observed(elapsed, [entry(RUNNING, elapsed, 2.0)])) is None


def test_without_an_earlier_report_nothing_is_known_unless_nothing_runs():
    assert used(None, observed(0, [entry(RUNNING, 0, 1.0)])) is None
    assert used(None, observed(0)) == 0
    assert used(None, observed(0, [entry(RUNNING, 0, 1.0, state="exited")])) == 0


def test_an_amount_is_known_if_one_kernel_reports_it():
    silent = entry(OTHER, 60, None, use=None)
    before = observed(0, [entry(RUNNING, 0, 0.0)])
    assert used(before, observed(60, [silent])) is None
    assert used(before, observed(60, [silent, entry(RUNNING, 60, 60.0)])) == 1000
    assert used(None, observed(60, [silent, entry(RUNNING, 60, 1.0)]), "mem") == GIB


def test_shares_count_as_their_parts_of_gpus_however_these_are_cut():
    agent = observed(0, gpus=2, units_per_gpu=4)
    kernel = replace(
        RUNNING.kernels[0],
        allocation=Allocation("a1", (GpuShare("GPU-a1-0", 1000, whole=False), GpuShare("GPU-a1-1", 4000, whole=True))),
    )
    amounts = sample(agent, [kernel], None).amounts
    assert amounts["gpu"] == Amount(2000, 1250, 0)
    assert amounts["gpu_mem"] == Amount(2 * GIB, 1.25 * GIB, 0)


def test_gpus_are_as_busy_as_their_kernels_say():
    held = {"uuid": "GPU-a1-0", "amount": 500, "capacity": 2000, "mem_bytes": 1, "compute": 250}
    share = {**held, "used_bytes": None, "processes": None, "enforced_bytes": None}
    use = use_of(at=NOW, cpu_seconds=1.0, mem_bytes=1)
    busy = [entry(s, 0, 0, gpus=[share], use={**use, "gpu_percent": p}) for s, p in ((RUNNING, 40.0), (OTHER, 85.0))]
    assert used(None, observed(0, busy, gpus=1), "gpu") == 1250
    silent = entry(OTHER, 0, 0, gpus=[share], use={**use, "gpu_percent": None})
    assert used(None, observed(0, [silent], gpus=1), "gpu") is None


@examples(60)
@given(snapshots())
def test_the_allocated_amount_is_the_total_without_the_free_one(snapshot):
    for agent, remaining in zip(snapshot.agents, snapshot.free_capacities, strict=True):
        on_it = [
            kernel
            for session in snapshot.placed
            for kernel in session.kernels
            if kernel.allocation and kernel.allocation.agent_id == agent.id
        ]
        taken = sample(agent, on_it, None)
        assert taken.amounts.keys() == set(MEASURES)
        assert taken.amounts["cpu"].allocated == FreeCapacity.of(agent).free.cpu - remaining.free.cpu
        assert taken.amounts["mem"].allocated == FreeCapacity.of(agent).free.mem - remaining.free.mem
        for amount in taken.amounts.values():
            assert 0 <= amount.allocated <= amount.capacity * (1 + 1e-9)


@cheap
@given(st.lists(st.floats(0.5, 50), min_size=50, max_size=200))
def test_there_is_one_sample_in_each_minute_of_the_clock(gaps):
    now, last, minutes = NOW, None, []
    for gap in gaps:
        now += gap
        if is_due(last, now):
            minutes.append(now // 60)
            last = now
    assert len(set(minutes)) == len(minutes)
    # Reports come at most 50 s apart: no minute is left out.
    assert minutes == list(range(int(minutes[0]), int(minutes[-1]) + 1))


def test_a_clock_that_was_set_back_stops_no_sampling():
    assert is_due(NOW, NOW - 5000)


@cheap
@given(st.sampled_from(sorted(SPANS)), st.floats(1e9, 2e9), st.sets(st.integers(0, 400)))
def test_points_are_even_and_gaps_stay_gaps(name, now, steps_ago):
    span = SPANS[name]
    last = int(now // span.step_s)
    amount = dict.fromkeys(MEASURES, Amount(1, 1, None))
    rows = {(last - ago) * span.step_s: amount for ago in steps_ago}
    found = usage_over_time(span, rows, now)
    assert len(found.points) == {"hour": 60, "day": 96, "week": 168}[name]
    assert {after.at - before.at for before, after in pairwise(found.points)} == {span.step_s}
    assert all((point.amounts is not None) == (point.at in rows) for point in found.points)
    assert found.points[-1].at == (last if 0 in steps_ago else last - 1) * span.step_s
    assert found.points[0].at == found.since
    assert found.until - found.since == span.length_s


def test_a_span_that_is_none_is_refused():
    with pytest.raises(BadInputError, match="span: there is no 'year'; write hour, day, week"):
        span_named("year")
