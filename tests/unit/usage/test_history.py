"""A kernel's usage over its life: few points at even distances, and nothing that is unknown counts."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.core.usage.history import (
    MOST_POINTS,
    UsageStep,
    is_due,
    merged,
    points,
    step_s,
    usage_step,
)
from muster.core.usage.kernel import KernelUsage
from tests.properties import cheap
from tests.strategies.values import NOW

EVEN = NOW // 3600 * 3600


def use(at, **values):
    return KernelUsage("k", 7, "s", EVEN, EVEN + at, EVEN + at, **values)


@cheap
@given(st.floats(0, 3e8), st.integers(1, 5000))
def test_however_old_it_is_and_however_large_its_session_a_kernel_has_few_steps(age, kernels):
    step = step_s(age, kernels)
    assert age <= step * MOST_POINTS
    assert kernels * (age // step) <= max(16 * MOST_POINTS, 30 * kernels)
    assert step_s(2 * age, kernels) >= step


def test_a_sample_is_due_once_a_step():
    assert is_due(None, use(1), 15)
    assert not is_due(use(1), use(14), 15)
    assert is_due(use(14), use(15), 15)


def test_rates_are_means_since_the_last_sample():
    before = use(0, cpu_seconds=10.0, gpu_seconds=5.0, cpu_cores=9.0)
    now = use(30, cpu_seconds=70.0, gpu_seconds=20.0, cpu_cores=0.0, gpu_percent=0.0, mem_bytes=4)
    taken = usage_step(before, now, 15)
    assert (taken.begins_at, taken.cpu, taken.mem, taken.gpu) == (EVEN + 30, 2.0, 4.0, 0.5)


def test_the_first_sample_has_what_the_last_observations_say():
    taken = usage_step(None, use(5, cpu_cores=1.5, gpu_percent=150.0, mem_bytes=None), 15)
    assert (taken.cpu, taken.gpu, taken.mem_known) == (1.5, 1.5, 0)


@cheap
@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 8)), max_size=60))
def test_merging_loses_nothing_and_merging_twice_is_merging_once(samples):
    steps = [UsageStep("k", 7, "s", int(EVEN) + 15 * at, cpu=cpu, cpu_known=1) for at, cpu in samples]
    longer = merged(steps, 60)
    assert sum(step.cpu_known for step in longer) == len(samples)
    assert abs(sum(step.cpu for step in longer) - sum(cpu for _, cpu in samples)) < 1e-6
    assert all(step.begins_at % 60 == 0 for step in longer)
    assert [step.begins_at for step in merged(merged(steps, 30), 60)] == [step.begins_at for step in longer]


def test_what_is_unknown_is_not_zero():
    step = UsageStep("k", 7, "s", int(EVEN), cpu=3.0, cpu_known=2)
    (point,) = points([step], 1)
    assert (point.cpu_cores, point.mem_bytes, point.gpus) == (1.5, None, None)
    assert points([replace(step, cpu_known=0)], 1)[0].cpu_cores is None
    assert points([], 1) == []
