"""Containers of best effort, and limits above a share, by the compute lease on pretended GPUs (lease_user.c)."""

import pytest

from tests.native.lease_gpu import Gpu, compile_user, result
from tests.native.virtual_clock import MS, SECOND, VirtualClock


@pytest.fixture(scope="module")
def lease_user(tmp_path_factory):
    return compile_user(tmp_path_factory.mktemp("lease"))


@pytest.fixture
def gpu(lease_user, tmp_path):
    def make(name="gpu"):
        return Gpu(lease_user, tmp_path / name)

    return make


def ran(clock: VirtualClock, card: Gpu, users: list[tuple[str, int, str]], seconds: float, mode="fair") -> list[int]:
    """Return the GPU nanoseconds of users that begin together; each is a name, a share and options."""
    when = f"start={clock.now + MS}", f"run={int(seconds * SECOND)}"
    running = [
        clock.start(card.command(name, share, *options.split(), *when, mode=mode)) for name, share, options in users
    ]
    return [result(clock.output(user))[0] for user in running]


BUSY = "kernel=1000000"


@pytest.mark.parametrize("kernel_ns", [20_000, 1 * MS, 30 * MS])
def test_best_effort_gets_nothing_of_a_gpu_that_is_needed_all_the_time(gpu, clock, kernel_ns):
    users = [("a", 100, BUSY), ("b", 100, BUSY), ("rest", 800, f"kernel={kernel_ns} best-effort")]
    first, second, rest = ran(clock, gpu(), users, 4)
    assert rest <= kernel_ns + 5 * MS, "what it launched before the others came"
    assert first + second >= 3.9 * SECOND


# How long pauses between bursts of 5 ms are, the CUDA kernels of best effort, and what part of the pauses these get.
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("pause_ms", "kernel_ns", "least"),
    [(3, 20_000, 0), (10, 20_000, 0.15), (30, 20_000, 0.6), (30, 1 * MS, 0.2), (200, 5 * MS, 0.3), (200, 50 * MS, 0)],
)
def test_best_effort_costs_others_a_twentieth_of_their_pauses_at_most(gpu, new_clock, seed, pause_ms, kernel_ns, least):
    clock = new_clock(seed)
    bursts = ("bursts", 500, f"kernel=1000000 every=5 gap={pause_ms * MS}")
    (alone,) = ran(clock, gpu("alone"), [bursts], 8)
    beside, rest = ran(clock, gpu("beside"), [bursts, ("rest", 500, f"kernel={kernel_ns} best-effort")], 8)
    pauses = alone / 5 / MS * pause_ms * MS
    assert alone - beside <= pauses / 20 * (beside / (pauses + alone)) + 55 * MS, "one kernel of a length not yet known"
    assert rest >= least * pauses


@pytest.mark.parametrize("seed", range(3))
def test_best_effort_that_computes_between_its_kernels_is_not_taken_for_long_ones(gpu, new_clock, seed):
    """No launch follows a kernel of its at once, so nobody looks at once whether it is done."""
    clock = new_clock(seed)
    bursts = ("bursts", 500, f"kernel=1000000 every=5 gap={40 * MS}")
    (alone,) = ran(clock, gpu("alone"), [bursts], 4)
    slow = ("rest", 500, f"kernel=200000 every=1 gap={3 * MS} best-effort")
    beside, rest = ran(clock, gpu("beside"), [bursts, slow], 4)
    assert beside >= 0.95 * alone
    assert rest >= 0.02 * 4 * SECOND


def test_best_effort_has_a_gpu_that_nobody_else_needs(gpu, clock):
    assert ran(clock, gpu(), [("rest", 100, f"{BUSY} best-effort")], 4)[0] >= 0.97 * 4 * SECOND


def test_containers_of_best_effort_take_turns_by_their_shares(gpu, clock):
    users = [("a", 100, f"{BUSY} best-effort"), ("b", 300, "kernel=3000000 best-effort")]
    first, second = ran(clock, gpu(), users, 8)
    assert first / (first + second) == pytest.approx(0.25, abs=0.02)
    assert first + second >= 0.95 * 8 * SECOND


@pytest.mark.parametrize("seed", range(3))
def test_guaranteed_work_that_comes_waits_for_one_short_batch(gpu, new_clock, seed):
    clock = new_clock(seed)
    card = gpu()
    clock.start(card.command("rest", 500, "kernel=500000", "best-effort", f"run={60 * SECOND}"))
    clock.run_for(3 * SECOND)
    (worked,) = ran(clock, card, [("comes", 100, BUSY)], 0.1)
    assert worked >= (100 - 7) * MS


def test_guaranteed_work_goes_on_when_best_effort_is_killed_in_its_turn(gpu, clock):
    card = gpu()
    rest = clock.start(card.command("rest", 500, "kernel=500000", "best-effort", f"run={60 * SECOND}"))
    clock.run_for(SECOND)
    clock.kill(rest)
    (worked,) = ran(clock, card, [("comes", 100, BUSY)], 1)
    assert worked >= (1000 - 135) * MS


def test_best_effort_goes_on_when_guaranteed_work_ends_or_is_killed(gpu, clock):
    card, start = gpu(), clock.now + MS
    clock.start(card.command("ends", 500, BUSY, f"start={start}", f"run={SECOND}"))
    killed = clock.start(card.command("killed", 500, BUSY, f"start={start}", f"run={60 * SECOND}"))
    rest = clock.start(card.command("rest", 500, BUSY, "best-effort", f"start={start}", f"run={4 * SECOND}"))
    clock.run_for(2 * SECOND)
    clock.kill(killed)
    assert result(clock.output(rest))[0] == pytest.approx(1.87 * SECOND, abs=0.07 * SECOND)


def test_a_limit_holds_alone_and_the_share_holds_among_others(gpu, clock):
    limited = ("limited", 300, f"{BUSY} limit=600")
    (alone,) = ran(clock, gpu("alone"), [limited], 4)
    assert alone == pytest.approx(0.6 * 4 * SECOND, abs=60 * MS)
    first, second = ran(clock, gpu("two"), [limited, ("other", 700, BUSY)], 4)
    assert first / (first + second) == pytest.approx(0.3, abs=0.02)
    first, second = ran(clock, gpu("half"), [limited, ("other", 100, BUSY)], 4)
    assert first == pytest.approx(0.6 * 4 * SECOND, abs=60 * MS), "its share of the two would be three quarters"
    assert first + second >= 0.97 * 4 * SECOND


def test_a_limit_below_the_share_is_the_share(gpu, clock):
    """Libraries of before there were limits write 1 for a hard share."""
    (worked,) = ran(clock, gpu(), [("old", 300, f"{BUSY} limit=1")], 4)
    assert worked == pytest.approx(0.3 * 4 * SECOND, abs=40 * MS)


def test_best_effort_has_what_limits_leave(gpu, clock):
    users = [("hard", 300, f"{BUSY} limit=300"), ("rest", 100, "kernel=100000 best-effort")]
    hard, rest = ran(clock, gpu(), users, 4)
    assert hard == pytest.approx(0.3 * 4 * SECOND, abs=0.06 * SECOND)
    assert rest >= 0.5 * 4 * SECOND


def test_two_shares_that_pause_are_both_seen_by_best_effort(gpu, clock):
    pausing = f"{BUSY} every=5 gap={40 * MS}"
    alone = ran(clock, gpu("alone"), [("a", 500, pausing), ("b", 500, pausing)], 6)
    *beside, rest = ran(
        clock, gpu("beside"), [("a", 500, pausing), ("b", 500, pausing), ("rest", 100, "kernel=50000 best-effort")], 6
    )
    assert sum(beside) >= 0.93 * sum(alone)
    assert rest >= 0.5 * SECOND
