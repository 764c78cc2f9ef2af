"""The turns of best effort, and of those who share a GPU with it (native/lease_turn.c), step by step."""

import pytest

from tests.native.lease.test_lease_table import CLOSING, grant
from tests.native.lease_process import PATIENCE, SHUT, SOLITUDE, Gpu, Process, a_process_alone
from tests.native.virtual_clock import MS, SECOND


@pytest.fixture
def gpu(lease_steps):
    return Gpu(lease_steps)


@pytest.fixture
def alone(gpu):
    return a_process_alone(gpu)


@pytest.fixture
def rest(gpu):
    """Return a process of best effort that has its turn, after a guaranteed container's pause of 30 ms."""
    guaranteed, process = Process(gpu), Process(gpu, best_effort=True)
    vars(process)["guaranteed"] = guaranteed
    guaranteed.entry.heartbeat = gpu.now - 30 * MS
    process.block()
    process.batch_credits = 100
    return process


def batch(process, launch_ns, pause):
    """Return the credits of the batch after a pause, and when the next may begin if there are none."""
    gpu = process.gpu
    process.guaranteed.entry.heartbeat = gpu.now - pause
    process.launch_ns = launch_ns
    process.credits = 0
    process.batch_launches = gpu.library.lease_launches(process.lease)
    gpu.library.lease_request_drain(process.lease)
    process.drain()
    return process.credits, process.batch_at and process.batch_at - gpu.now


def test_a_batch_of_best_effort_is_a_twentieth_of_the_pause_at_most(rest):
    assert batch(rest, 100_000, 20 * MS) == (10, 0)
    rest.batch_credits = 100
    assert batch(rest, 100_000, 60 * MS) == (30, 0)
    rest.batch_credits = 100
    assert batch(rest, 100_000, SECOND) == (50, 0), "and no longer than 5 ms"
    rest.batch_credits = 4
    assert batch(rest, 100_000, SECOND) == (8, 0), "and twice the last one at most"


def test_a_long_kernel_of_best_effort_needs_a_long_pause(rest):
    assert batch(rest, 30 * MS, 600 * MS) == (1, 0)
    assert batch(rest, 30 * MS, 599 * MS) == (0, MS)
    assert rest.credits == 0
    rest.blocked = 1
    assert rest.step(MS // 2) == rest.gpu.now + MS // 2
    assert rest.credits == 0
    rest.step(MS // 2)
    assert (rest.credits, rest.batch_at) == (1, 0)


def test_credits_of_an_earlier_turn_are_void_in_a_short_pause(rest, gpu):
    rest.credits, rest.launch_ns = 5, 30 * MS
    rest.entered = rest.open = 0
    rest.block()
    assert rest.open == gpu.table.grant
    assert (rest.credits, rest.batch_at) == (0, gpu.now + (30 * MS - 30 * MS // 20) * 20)


def test_kernels_of_best_effort_count_as_short_until_one_was_measured(rest):
    assert batch(rest, 0, 5 * MS) == (1, 0)
    assert batch(rest, 0, SECOND) == (1, 0)
    assert batch(rest, 0, 4 * MS) == (0, MS)


def measured(process, drain_ns, since_ns, launches=1):
    """Return what a launch counts as after a batch whose drain took a part of the time since the batch began."""
    gpu = process.gpu
    process.credits = launches
    process.batch_launches = gpu.library.lease_launches(process.lease)
    process.batch_since = gpu.now - since_ns
    process.launch(launches)
    gpu.library.lease_request_drain(process.lease)
    process.drain_since = gpu.now - drain_ns
    process.drain()
    return process.launch_ns


def test_time_in_which_the_gpu_was_done_already_is_not_that_of_a_kernel_of_best_effort(rest):
    """Otherwise it would wait for pauses that never come, and measure no kernel again."""
    assert measured(rest, 20_000, 2 * MS) == 0, "not measured yet"
    assert measured(rest, MS, 2 * MS) == 2 * MS + 1
    assert measured(rest, 20_000, 5 * MS) == 2 * MS + 1
    assert measured(rest, 20_000, MS) == MS + 1, "it took no more than that"
    assert measured(rest, 3 * MS, 3 * MS, launches=2) == 3 * MS // 2 + 1


def test_a_turn_that_is_guaranteed_counts_all_of_the_time(gpu):
    """What the process computes between its launches is part of its turn."""
    assert measured(a_process_alone(gpu), 20_000, 2 * MS) == 2 * MS + 1


def test_best_effort_looks_soon_whether_its_batch_is_done(rest, gpu):
    rest.launch()
    assert rest.step() == gpu.now + MS // 8
    assert rest.step(MS // 8) == gpu.now + MS, "a drain looks for it"
    assert rest.drains_requested == rest.drains_done + 1
    rest.drain()
    assert rest.step() == gpu.now + MS, "it is idle"


def test_best_effort_alone_has_whole_batches(gpu):
    process = Process(gpu, best_effort=True)
    process.block()
    process.launch_ns, process.batch_credits, process.credits = 100_000, 100, 0
    process.batch_launches = gpu.library.lease_launches(process.lease)
    gpu.library.lease_request_drain(process.lease)
    process.drain()
    assert (process.credits, process.contended) == (50, 1)


def test_the_turn_of_best_effort_ends_when_a_guaranteed_container_waits(rest, gpu):
    gpu.waits(rest.guaranteed)
    rest.step()
    assert gpu.table.grant & CLOSING
    assert (rest.open, rest.drains_requested) == (SHUT, 1)
    rest.drain()
    assert gpu.holder == rest.guaranteed.account


def test_a_guaranteed_container_is_not_held_up_by_best_effort_that_waits(alone, gpu):
    rest = Process(gpu, best_effort=True)
    gpu.waits(rest)
    assert alone.step() == gpu.now + 5 * MS // 2
    assert (alone.contended, alone.contended_at) == (0, 0)
    for _ in range(20):
        alone.launch()
        gpu.waits(rest)
        alone.step(5 * MS)
        assert gpu.table.grant == alone.entered
        assert alone.entry.heartbeat == alone.member.heartbeat == gpu.now
    assert alone.entry.virtual_ns == 0


def test_a_guaranteed_container_leaves_the_gpu_to_best_effort_after_a_pause(alone, gpu):
    rest = Process(gpu, best_effort=True)
    gpu.waits(rest)
    alone.step()
    gpu.waits(rest)
    alone.step(MS)
    assert alone.drains_requested == 1
    alone.drain(MS)
    idle = gpu.now
    gpu.waits(rest)
    alone.step(5 * MS - 1)
    assert alone.leaving == 0
    assert alone.entry.heartbeat == idle, "it has not needed the GPU since"
    gpu.waits(rest)
    alone.step(1)
    assert alone.leaving != 0
    gpu.waits(rest)
    alone.drain()
    assert gpu.holder == rest.account


def test_a_turn_that_its_process_leaves_soon_is_over_at_once(alone, gpu):
    """Its keeper sleeps from then on, and those who wait would do so until the holder counts as silent."""
    other = Process(gpu)
    alone.patience = MS // 8
    gpu.waits(other)
    alone.step()
    alone.step(MS // 8)
    alone.drain()
    alone.step(MS // 8)
    assert alone.leaving != 0
    alone.drain()
    assert gpu.holder == other.account


def test_a_turn_that_nobody_uses_is_left_to_best_effort(gpu):
    """The process for which it came has ended, and another one of its container looks."""
    guaranteed, rest = Process(gpu), Process(gpu, best_effort=True)
    gpu.table.grant = grant(guaranteed.account)
    gpu.waits(rest)
    guaranteed.step(PATIENCE)
    assert gpu.holder == guaranteed.account
    guaranteed.step(1)
    assert gpu.holder == rest.account


def test_solitude_is_not_forgotten_while_best_effort_waits(alone, gpu):
    other, rest = Process(gpu), Process(gpu, best_effort=True)
    gpu.waits(other)
    alone.step()
    other.entry.waiting_since = 0
    gpu.waits(rest)
    alone.launch()
    assert alone.step(SECOND - MS) == alone.contended_at + SOLITUDE
    gpu.waits(rest)
    alone.launch()
    assert alone.step(MS) == gpu.now + 5 * MS // 2
    assert alone.contended == 0
