"""A process's turns on a GPU that it shares (native/lease_turn.c), step by step."""

import pytest

from tests.native.lease.test_lease_table import CLOSING, NOW, SILENCE, grant
from tests.native.lease_process import (
    DRAIN_LIMIT,
    NEVER,
    PATIENCE,
    SHUT,
    SOLITUDE,
    UNLIMITED,
    WAITER_WATCH,
    WATCH,
    Gpu,
    Process,
    a_process_alone,
)
from tests.native.virtual_clock import MS, SECOND


@pytest.fixture
def gpu(lease_steps):
    return Gpu(lease_steps)


@pytest.fixture
def alone(gpu):
    return a_process_alone(gpu)


def test_the_first_launch_gets_an_idle_gpu_and_one_credit(gpu):
    process = Process(gpu)
    assert process.step() == NEVER
    assert (gpu.table.grant, process.open) == (0, SHUT), "nothing waits"
    changes = gpu.table.changes
    assert process.block() == NEVER
    assert gpu.table.grant == process.open == process.entered == grant(process.account)
    assert gpu.table.changes > changes
    assert (process.credits, process.batch_credits, process.batch_since) == (1, 1, NOW)
    assert process.turns == 1, "launches that wait for it wake"
    assert (process.member.grant, process.member.heartbeat) == (gpu.table.grant, NOW)
    assert (process.contended, process.contended_at) == (0, 0)


def test_batches_double_up_to_what_a_newcomer_may_wait_for(alone, gpu):
    sizes = []
    for _ in range(12):
        gpu.library.lease_request_drain(alone.lease)
        alone.launch(alone.credits)
        alone.blocked = 1
        batch = alone.batch_credits
        alone.drain(batch * 3 * MS)
        assert alone.launch_ns == 3 * MS + 1
        sizes.append(alone.credits)
    assert sizes[:6] == [2, 4, 8, 16, 32, 64]
    assert sizes[6:] == 6 * [DRAIN_LIMIT // (3 * MS + 1) + 1]


def test_short_kernels_alone_are_bounded_by_the_drivers_queue(alone, gpu):
    alone.launch_ns, alone.batch_credits = 100, 511
    gpu.library.lease_request_drain(alone.lease)
    alone.drain()
    assert (alone.credits, alone.batch_credits) == (1022, 1022)
    alone.credits = 0
    gpu.library.lease_request_drain(alone.lease)
    alone.drain()
    assert alone.credits == UNLIMITED
    alone.launch_ns = 100
    gpu.library.lease_request_drain(alone.lease)
    alone.drain(MS)
    assert alone.launch_ns == 100, "nothing was launched in the batch"


def test_a_drain_measures_only_batches_that_it_waited_for(alone, gpu):
    gpu.library.lease_request_drain(alone.lease)
    alone.drain(5 * MS, waited=False)
    assert alone.launch_ns == MS
    alone.credits = UNLIMITED - 3
    alone.credits_given += UNLIMITED
    gpu.library.lease_request_drain(alone.lease)
    alone.drain(5 * MS)
    assert alone.launch_ns == MS, "so many launches are held up by the driver"


def test_a_drain_is_requested_once_until_it_ends(alone, gpu):
    gpu.library.lease_request_drain(alone.lease)
    gpu.forward(MS)
    gpu.library.lease_request_drain(alone.lease)
    assert (alone.drains_requested, alone.drain_since) == (1, NOW)
    alone.drain()
    assert alone.drains_done == 1
    gpu.library.lease_request_drain(alone.lease)
    assert (alone.drains_requested, alone.drain_since) == (2, NOW + MS)


def test_work_that_cannot_be_waited_for_is_estimated(alone, gpu):
    assert gpu.library.lease_estimated_rest(alone.lease, 1, NOW) == MS
    assert gpu.library.lease_estimated_rest(alone.lease, 4, NOW + MS) == 3 * MS
    assert gpu.library.lease_estimated_rest(alone.lease, 0, NOW) == 0
    assert gpu.library.lease_estimated_rest(alone.lease, 3, NOW + 5 * MS) == 0
    assert gpu.library.lease_estimated_rest(alone.lease, 999, NOW) == DRAIN_LIMIT


def test_a_turn_among_others_gives_the_rest_of_it_and_ends_when_the_others_had_less(alone, gpu):
    other = Process(gpu)
    gpu.forward(2 * MS)
    gpu.waits(other)
    alone.batch_credits = 100
    assert alone.step() == gpu.now + WATCH
    assert (alone.contended, alone.contended_at, alone.credits) == (1, gpu.now, 18 + 1)
    assert alone.entry.heartbeat == alone.member.heartbeat == gpu.now
    held = gpu.table.grant
    for elapsed in range(3, 20):
        alone.launch()
        gpu.waits(other)
        alone.step(MS)
        assert gpu.table.grant == held, f"at {elapsed} ms"
    alone.launch()
    gpu.waits(other)
    assert alone.step(MS) == gpu.now + WAITER_WATCH
    assert gpu.table.grant == held | CLOSING
    assert (alone.open, alone.leaving, alone.leaving_drain) == (SHUT, held, 1)
    assert alone.drains_requested == 1
    alone.drain(3 * MS)
    assert gpu.holder == other.account
    assert (alone.entered, alone.leaving, alone.late_since, alone.member.grant) == (0, 0, 0, 0)
    assert alone.entry.virtual_ns == 2 * 21 * MS
    assert alone.entry.used_ns == 23 * MS


def test_late_in_a_turn_a_batch_is_half_a_turn(alone, gpu):
    other = Process(gpu)
    alone.batch_credits = 100
    gpu.forward(15 * MS)
    gpu.waits(other)
    alone.step()
    assert alone.credits == 10 + 1
    alone.contended = 0
    alone.credits = 0
    gpu.table.grant = alone.entered = alone.open = grant(alone.account, gpu.now - 15 * MS + 64)
    alone.step()
    assert alone.credits == 6, "just before that, it is the rest of the turn"


def test_a_turn_goes_on_while_the_others_had_more(alone, gpu):
    other = Process(gpu)
    gpu.waits(other)
    other.entry.virtual_ns = SECOND
    alone.launch()
    next_at = alone.step(30 * MS)
    assert gpu.table.grant == alone.entered
    assert next_at == gpu.now + WATCH
    other.entry.virtual_ns = 2 * 30 * MS + 500_000
    gpu.waits(other)
    alone.launch()
    next_at = alone.step()
    assert next_at == gpu.now + 500_000 // 1000 * 500 + 1000


def test_a_turn_whose_batch_is_done_ends_a_little_early(alone, gpu):
    other = Process(gpu)
    gpu.waits(other)
    alone.step()
    alone.blocked = 1
    alone.credits = -1
    gpu.waits(other)
    alone.step(17 * MS)
    assert gpu.table.grant == alone.entered
    gpu.waits(other)
    alone.step(MS - MS // 2)
    assert gpu.holder == alone.account
    assert gpu.table.grant & CLOSING, "a drain would cost more"
    assert alone.entry.waiting_since == gpu.now, "and it waits for its next turn"


def test_an_account_that_came_later_and_had_less_shortens_the_turn(alone, gpu):
    other = Process(gpu)
    alone.entry.virtual_ns = 5 * SECOND
    gpu.waits(other)
    other.entry.virtual_ns, other.entry.floor_ns = 1, 0
    alone.step()
    alone.launch()
    gpu.waits(other)
    alone.step(4 * MS)
    assert not gpu.table.grant & CLOSING
    alone.launch()
    gpu.waits(other)
    alone.step(MS)
    assert gpu.table.grant & CLOSING


def test_who_has_no_work_leaves_after_its_patience(alone, gpu):
    other = Process(gpu)
    gpu.waits(other)
    alone.step()
    held = alone.entered
    gpu.waits(other)
    assert alone.step(MS) == gpu.now + WATCH
    assert alone.drains_requested == 1, "does the GPU work for it yet?"
    alone.drain(MS)
    assert alone.idle_since == gpu.now
    idle_at = gpu.now
    gpu.waits(other)
    assert alone.step(MS - 1000) == idle_at + 2 * MS - 1000, "it looks once more, a millisecond later"
    gpu.waits(other)
    assert alone.step(MS) == idle_at + PATIENCE
    assert alone.leaving == 0
    gpu.waits(other)
    alone.step(1000)
    assert (alone.leaving, alone.open, alone.rested_since) == (held, SHUT, idle_at)
    assert alone.leaving_drain == 2
    alone.drain()
    assert gpu.holder == other.account


@pytest.mark.parametrize("sign", ["blocked", "launched"])
def test_who_has_work_does_not_leave(alone, gpu, sign):
    other = Process(gpu)
    gpu.waits(other)
    alone.step()
    gpu.waits(other)
    alone.step(MS)
    alone.drain()
    if sign == "blocked":
        alone.blocked = 1
    else:
        alone.launch()
    gpu.waits(other)
    alone.step(PATIENCE)
    assert (alone.leaving, alone.idle_since) == (0, 0)


@pytest.mark.parametrize(("pause", "patience"), [(PATIENCE, 2 * MS), (PATIENCE + 1, MS), (SECOND, MS)])
def test_long_pauses_shorten_the_patience_and_short_ones_restore_it(alone, gpu, pause, patience):
    alone.entered = 0
    alone.rested_since = gpu.now - pause
    alone.block()
    alone.blocked_since = gpu.now
    gpu.table.grant = alone.open = 0
    alone.rested_since = gpu.now - pause
    alone.step()
    assert (alone.patience, alone.rested_since) == (patience, 0)


@pytest.mark.parametrize(
    ("pause", "before", "after"),
    [(SECOND, PATIENCE // 16, PATIENCE // 16), (MS, PATIENCE // 16, PATIENCE // 8), (MS, PATIENCE, PATIENCE)],
)
def test_patience_has_bounds(gpu, pause, before, after):
    process = Process(gpu)
    process.patience = before
    process.rested_since = gpu.now - pause
    process.block()
    assert process.patience == after


def test_alone_again_batches_grow_after_a_second(alone, gpu):
    other = Process(gpu)
    gpu.waits(other)
    alone.step()
    since = alone.contended_at
    other.entry.waiting_since = 0
    assert alone.step(SECOND - 1) == since + SOLITUDE
    assert alone.contended == 1
    assert alone.step(1) == NEVER
    assert alone.contended == 0


def test_a_kernel_that_waits_for_the_next_launch_gets_it_alone(alone, gpu):
    gpu.library.lease_request_drain(alone.lease)
    alone.blocked = 1
    alone.credits = -1
    alone.step(DRAIN_LIMIT)
    assert alone.credits == -1
    alone.step(1)
    assert alone.credits == UNLIMITED


def test_a_kernel_that_waits_for_the_next_launch_gets_one_at_a_time_among_others(alone, gpu):
    other = Process(gpu)
    alone.credits = 1
    gpu.waits(other)
    other.entry.virtual_ns = 1000 * SECOND
    alone.step()
    gpu.library.lease_request_drain(alone.lease)
    alone.blocked = 1
    given = []
    for _ in range(8):
        alone.credits = -1
        gpu.forward(500 * MS + 1)
        gpu.waits(other)
        alone.step()
        given.append(alone.credits)
    assert given == [-1, 1, -1, 1, -1, -1, -1, 1], "after 1 s, 2 s and 4 s"
    assert alone.nudges == 3
    alone.drain()
    assert alone.nudges == 0


def test_a_waiter_closes_the_turn_of_a_holder_that_is_silent(gpu):
    holder, waiter = Process(gpu), Process(gpu)
    holder.block()
    gpu.forward(SECOND)
    assert waiter.block() == gpu.now + WAITER_WATCH
    waiter.step(SILENCE)
    assert gpu.holder == holder.account, "it may have begun to write heartbeats only now"
    waiter.step(1)
    assert gpu.table.grant == waiter.open == grant(waiter.account, gpu.now)


@pytest.mark.parametrize("sign", ["account", "member"])
def test_a_holder_with_a_heartbeat_is_not_silent(gpu, sign):
    holder, waiter = Process(gpu), Process(gpu)
    holder.block()
    waiter.block()
    gpu.forward(SILENCE + 1)
    if sign == "account":
        holder.entry.heartbeat = gpu.now
    else:
        holder.member.heartbeat = gpu.now
    waiter.step()
    assert not gpu.table.grant & CLOSING


def test_a_turn_that_is_closing_is_waited_for_only_so_long(gpu):
    holder, waiter = Process(gpu), Process(gpu)
    holder.block()
    held = gpu.table.grant
    gpu.table.grant = held | CLOSING
    assert waiter.block() == gpu.now + WAITER_WATCH
    holder.member.heartbeat = gpu.now + DRAIN_LIMIT
    waiter.step(DRAIN_LIMIT - 1)
    assert gpu.holder == holder.account
    waiter.step(1)
    assert gpu.holder == waiter.account


def test_a_turn_that_nobody_uses_is_handed_on(gpu):
    first, second = Process(gpu), Process(gpu)
    gpu.table.grant = grant(first.account)
    gpu.waits(second)
    first.step(PATIENCE)
    assert gpu.holder == first.account
    first.step(1)
    assert gpu.holder == second.account


def test_work_beyond_its_turn_is_charged_to_who_launched_it_and_not_to_the_next(alone, gpu):
    other = Process(gpu)
    gpu.waits(other)
    alone.step()
    alone.launch()
    alone.blocked = 1
    gpu.waits(other)
    alone.step(20 * MS)
    assert gpu.table.grant & CLOSING
    gpu.forward(DRAIN_LIMIT)
    gpu.waits(other)
    alone.member.heartbeat = gpu.now
    alone.step()
    assert gpu.holder == other.account
    used = alone.entry.virtual_ns
    late = gpu.now
    other.entry.virtual_ns = 10 * SECOND
    assert alone.late_since == late
    assert alone.step(10 * MS) == gpu.now + WATCH
    assert alone.entry.virtual_ns == used + 2 * 10 * MS
    assert other.entry.virtual_ns == 10 * SECOND - 2 * 10 * MS
    gpu.table.grant = grant(alone.account, gpu.now)
    alone.step()
    assert (alone.open, alone.credits, alone.contended) == (gpu.table.grant, 0, 1), "it still runs"


def test_the_next_is_charged_again_if_late_work_may_wait_for_a_launch(alone, gpu):
    other = Process(gpu)
    gpu.library.lease_request_drain(alone.lease)
    alone.leaving = alone.entered
    alone.leaving_drain = 1
    gpu.table.grant = grant(other.account)
    alone.step()
    assert alone.late_since == NOW
    other.entry.virtual_ns = 10 * SECOND
    alone.step(SECOND)
    assert alone.entry.virtual_ns == 0
    assert alone.late_since == NOW


def test_a_process_that_was_silent_leaves_a_turn_that_is_over(alone, gpu):
    other = Process(gpu)
    held = alone.entered
    gpu.table.grant = grant(other.account, gpu.now + MS)
    alone.step(SECOND)
    assert (alone.open, alone.leaving, alone.drains_requested) == (SHUT, held, 1)
    alone.credits = 0
    alone.drain(MS)
    assert (alone.entered, alone.leaving) == (0, 0)
    assert alone.credits == 0, "there is no turn for another batch"


def test_a_drain_that_began_before_the_leave_is_not_enough(alone, gpu):
    gpu.library.lease_request_drain(alone.lease)
    gpu.table.grant = grant(Process(gpu).account, gpu.now + MS)
    alone.step(MS)
    assert alone.leaving_drain == 2
    alone.drain()
    assert (alone.leaving != 0, alone.drains_requested) == (True, 2)
    alone.drain()
    assert alone.leaving == 0


def test_limited_containers_end_their_turns_even_alone(gpu):
    process = Process(gpu, 300, 600)
    process.block()
    assert (process.contended, process.contended_at) == (1, NOW)
    process.step(20 * MS)
    assert gpu.table.grant & CLOSING


def test_a_container_that_reached_its_limit_wakes_when_it_may_go_on(gpu):
    process = Process(gpu, 300, 600)
    process.entry.eligible_at = gpu.now + 7 * MS
    assert process.block() == gpu.now + 7 * MS
    assert gpu.table.grant == 0
    process.entry.eligible_at = gpu.now + SECOND
    assert process.step() == gpu.now + WAITER_WATCH
    process.entry.eligible_at = gpu.now + 7 * MS
    process.step(7 * MS)
    assert gpu.holder == process.account
