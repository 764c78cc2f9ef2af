"""The compute lease between processes that launch on pretended GPUs (lease_user.c): no driver is needed."""

import ctypes
import os
import subprocess

import pytest

from tests.native.lease.test_lease_table import Table
from tests.native.lease_gpu import CASES, Gpu, compile_user, result, results
from tests.native.virtual_clock import MS, SECOND, VirtualClock


@pytest.fixture(scope="module")
def lease_user(tmp_path_factory):
    return compile_user(tmp_path_factory.mktemp("lease"))


@pytest.fixture
def gpu(lease_user, tmp_path):
    def make(name="gpu", program=lease_user):
        return Gpu(program, tmp_path / name)

    return make


def at_once(clock: VirtualClock, seconds: float) -> list[str]:
    return [f"start={clock.now + MS}", f"run={int(seconds * SECOND)}"]


def busy(clock: VirtualClock, users: list[subprocess.Popen]) -> list[int]:
    return [result(clock.output(user))[0] for user in users]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("users", CASES.values(), ids=CASES)
def test_containers_get_their_shares_whatever_they_launch(gpu, new_clock, users, seed):
    card, clock = gpu(), new_clock(seed)
    when = at_once(clock, 10)
    running = [
        clock.start(card.command(f"kernel-{i}", share, *options.split(), *when))
        for i, (share, options) in enumerate(users)
    ]
    worked = busy(clock, running)
    assert [part / sum(worked) for part in worked] == pytest.approx([share / 1000 for share, _ in users], abs=0.01)


def test_processes_of_one_container_have_one_share_between_them(gpu, clock):
    card, when = gpu(), at_once(clock, 3)
    users = [("both", 300, "kernel=500000"), ("both", 300, "kernel=1000000"), ("other", 700, "kernel=1000000")]
    first, second, other = busy(clock, [clock.start(card.command(*user, *when)) for user in users])
    assert (first + second) / (first + second + other) == pytest.approx(0.3, abs=0.01)


def test_a_container_alone_has_the_whole_gpu_unless_its_share_is_hard(gpu, clock):
    when = at_once(clock, 4)
    fair, solo, hard = (
        clock.start(gpu(mode).command("a", 300, "kernel=1000000", *when, mode=mode))
        for mode in ("fair", "none", "hard")
    )
    two = [clock.start(gpu("two").command(name, 250, "kernel=1000000", *when, mode="hard")) for name in "ab"]
    fair_ns, solo_ns, hard_ns, *two_ns = busy(clock, [fair, solo, hard, *two])
    assert fair_ns >= 0.95 * solo_ns
    assert hard_ns <= 0.3 * 4 * SECOND + 40 * MS
    assert all(ns <= 0.25 * 4 * SECOND + 40 * MS for ns in two_ns)


@pytest.mark.parametrize("threads", [1, 2])
def test_best_effort_launches_no_kernel_for_which_the_pause_is_too_short(gpu, clock, threads):
    """The first one tells how long they are: 30 ms, which need a pause of 600 ms."""
    card, when = gpu(), at_once(clock, 0.6)
    guaranteed = card.command("guaranteed", 500, "kernel=1000000", "every=1", f"gap={SECOND}", *when)
    best_effort = card.command("rest", 500, "best-effort", f"kernel={30 * MS}", f"threads={threads}", *when)
    assert busy(clock, [clock.start(guaranteed), clock.start(best_effort)]) == [MS, 30 * MS]


def test_the_gpu_works_nearly_all_the_time_that_somebody_has_work(gpu, clock):
    card, when = gpu(), at_once(clock, 4)
    heavy = clock.start(card.command("heavy", 500, "kernel=1000000", *when))
    bursts = clock.start(card.command("bursts", 500, "kernel=1000000", "every=2", f"gap={20 * MS}", *when))
    heavy_ns, bursts_ns = busy(clock, [heavy, bursts])
    assert heavy_ns + bursts_ns >= 0.95 * 4 * SECOND, "pauses of one are the other's"
    assert bursts_ns >= 0.3 * SECOND, "a burst need not wait for long"


def test_a_burst_shortens_the_turn_of_a_container_with_nothing_in_the_queue(gpu, clock):
    card, when = gpu(), at_once(clock, 4)
    heavy = clock.start(card.command("heavy", 500, "kernel=1000000", "every=1", *when))
    bursts = clock.start(card.command("bursts", 500, "kernel=1000000", "every=2", f"gap={3 * MS}", *when))
    _, bursts_ns = busy(clock, [heavy, bursts])
    assert bursts_ns >= 1.0 * SECOND, "after whole turns it would have had 0.35 s"


# Victims are there for 1.8 s and 3.8 s of the 4 s, of which they leave a tenth, and do nothing for 1.2 s in the second
# case. 0.1 s of each silence is lost.
@pytest.mark.parametrize(("end", "least_ns"), [("killed", 2.1 * SECOND), ("stopped", 1.0 * SECOND)])
def test_others_go_on_when_the_holder_is_silent(gpu, clock, end, least_ns):
    card, when = gpu(), at_once(clock, 4)
    other = clock.start(card.command("other", 100, "kernel=1000000", *when))
    for attempt in range(4):
        victim = clock.start(card.command(f"victim-{attempt}", 900, "kernel=1000000", "run=60000000000"))
        clock.run_for(450 * MS)
        if end == "stopped":
            clock.freeze(victim, 300 * MS)
            clock.run_for(500 * MS)
        clock.kill(victim)
    (worked,) = busy(clock, [other])
    assert worked >= least_ns


def test_a_silent_holder_that_comes_back_waits_for_its_turn(gpu, clock):
    card, when = gpu(), at_once(clock, 6)
    users = [clock.start(card.command(name, 500, "kernel=1000000", *when)) for name in "ab"]
    clock.run_for(SECOND)
    clock.freeze(users[0], SECOND)
    stopped, other = busy(clock, users)
    assert stopped == pytest.approx(2.45 * SECOND, abs=0.1 * SECOND)
    assert other == pytest.approx(3.45 * SECOND, abs=0.1 * SECOND)


def test_a_newcomer_gets_its_share_and_nothing_for_the_time_before_it_came(gpu, clock):
    card, start = gpu(), clock.now + MS
    for name in "ab":
        clock.start(card.command(name, 250, "kernel=1000000", f"start={start}", f"run={5 * SECOND}"))
    newcomer = card.command("c", 500, "kernel=1000000", f"start={start + 3 * SECOND}", f"run={SECOND}")
    (worked,) = busy(clock, [clock.start(newcomer)])
    assert worked == pytest.approx(0.5 * SECOND, abs=0.05 * SECOND)


@pytest.mark.parametrize("waits", ["", "every=1"])
@pytest.mark.parametrize("kernel_ms", [50, 500])
def test_kernels_that_outlast_their_turn_are_charged_until_they_end(gpu, clock, kernel_ms, waits):
    card, when = gpu(), at_once(clock, 60)
    users = [("long", 500, f"kernel={kernel_ms * MS}", *waits.split()), ("short", 500, "kernel=1000000")]
    long_ns, short_ns = busy(clock, [clock.start(card.command(*user, *when)) for user in users])
    assert long_ns / (long_ns + short_ns) == pytest.approx(0.5, abs=0.02)


def test_kernels_that_become_longer_than_a_turn_take_nothing_from_others(gpu, clock):
    card, when = gpu(), at_once(clock, 300)
    users = [("changes", 500, "kernel=2000000", f"later={SECOND}"), ("short", 500, "kernel=1000000")]
    changes_ns, short_ns = busy(clock, [clock.start(card.command(*user, *when)) for user in users])
    assert changes_ns / (changes_ns + short_ns) == pytest.approx(0.5, abs=0.03)


def test_a_kernel_that_waits_for_the_next_launch_of_its_process_gets_it_among_others(gpu, clock, tmp_path):
    card, device = gpu(), tmp_path / "where they meet"
    other = clock.start(card.command("other", 500, "kernel=1000000", f"run={60 * SECOND}"))
    clock.run_for(SECOND)
    pairs = clock.start(card.command("pairs", 500, "rank=0", "rounds=5", "pairs", device=device))
    _, launches = result(clock.output(pairs))
    assert launches == 10
    assert other.poll() is None


def test_two_gangs_that_hold_two_gpus_crosswise_both_finish(gpu, clock, tmp_path):
    left, right = gpu("left"), gpu("right")
    first, second = tmp_path / "first", tmp_path / "second"  # where the kernels of a gang meet
    soon, later = (f"start={clock.now + delay * MS}" for delay in (1, 101))
    members = [
        clock.start(card.command(name, 500, f"rank={rank}", "rounds=6", when, device=device))
        for card, name, rank, when, device in (
            (left, "first", 0, soon, first),
            (right, "second", 1, soon, second),
            (right, "first", 1, later, first),
            (left, "second", 0, later, second),
        )
    ]
    assert [result(clock.output(member))[1] for member in members] == [6, 6, 6, 6]


def test_a_forked_child_has_turns_with_its_parent(gpu, clock):
    card, when = gpu(), at_once(clock, 3)
    forks = clock.start(card.command("forks", 600, "kernel=1000000", "fork", *when))
    other = clock.start(card.command("other", 400, "kernel=1000000", *when))
    (child, _), (parent, _) = results(clock.output(forks))
    both, rest = child + parent, busy(clock, [other])[0]
    assert both / (both + rest) == pytest.approx(0.6, abs=0.01)
    assert child / both == pytest.approx(0.5, abs=0.05)


def test_the_same_seed_gives_the_same_run(gpu, new_clock):
    def run(name: str, seed: int) -> list[tuple[int, int]]:
        card, clock = gpu(name), new_clock(seed)
        when = at_once(clock, 5)
        users = [("a", 300, "kernel=70000", "threads=2", "every=5", "gap=30000"), ("b", 700, "kernel=1000000")]
        running = [clock.start(card.command(*user, *when)) for user in users]
        return [result(clock.output(process)) for process in running]

    first = run("first", 1)
    assert run("second", 1) == first
    # Not every seed makes a difference that the totals show.
    assert any(run(f"seed {seed}", seed) != first for seed in range(2, 20))


@pytest.mark.parametrize("content", [b"\0", b"\xff"])
def test_a_file_that_holds_no_table_is_begun_anew(gpu, clock, content):
    card = gpu()
    (card.directory / "lease").write_bytes(b"another " + content * (1 << 16))
    when = at_once(clock, 3)
    worked = busy(clock, [clock.start(card.command(name, 500, "kernel=1000000", *when)) for name in "ab"])
    assert [part / sum(worked) for part in worked] == pytest.approx([0.5, 0.5], abs=0.01)
    table = Table.from_buffer_copy((card.directory / "lease").read_bytes())
    assert sum(account.id != 0 for account in table.accounts) == len(worked)


@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_a_file_of_another_size_gets_that_of_the_table(gpu, clock, size):
    """What is beyond the table would fill a file system that has no room for more."""
    card, right = gpu(), gpu("right")
    os.truncate(card.directory / "lease", size)
    for each in (card, right):
        clock.output(clock.start(each.command("a", 500, "kernel=1000000", *at_once(clock, 0.1))))
    assert (card.directory / "lease").stat().st_size == ctypes.sizeof(Table) <= 64 << 10
    assert (right.directory / "lease").stat().st_size == ctypes.sizeof(Table)


def test_a_program_that_closes_all_files_keeps_its_turns_and_its_own_files(gpu, clock):
    card, when = gpu(), at_once(clock, 3)
    users = [("closes", 500, "kernel=1000000", "closes"), ("other", 500, "kernel=1000000")]
    worked = busy(clock, [clock.start(card.command(*user, *when)) for user in users])
    assert [part / sum(worked) for part in worked] == pytest.approx([0.5, 0.5], abs=0.01)
    assert (card.directory / "device.own").read_bytes() == b""


def test_containers_come_and_go_without_end(gpu, clock):
    card = gpu()
    for group in range(7):
        users = [clock.start(card.command(f"kernel-{group}-{i}", 10, "kernel=10000", "run=1000000")) for i in range(50)]
        for user in users:
            clock.output(user)
        clock.run_for(110 * MS)  # the account of a container that was silent for 100 ms may be another's


def launches_by_the_machines_clock(commands: list[list[str]]) -> list[int]:
    """Runs programs together, with their threads truly at the same time."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    return [result(output)[1] for output in outputs]


def test_threads_of_a_process_do_not_race(gpu, tmp_path):
    card = gpu(program=compile_user(tmp_path, "-fsanitize=thread"))
    launches = launches_by_the_machines_clock(
        [
            card.command("a", 300, "kernel=100000", "threads=4", f"run={2 * SECOND}"),
            card.command("b", 500, "kernel=1000000", "threads=2", "every=3", f"gap={5 * MS}", f"run={2 * SECOND}"),
            card.command("c", 200, "kernel=300000", "threads=2", f"run={2 * SECOND}", mode="hard"),
        ]
    )
    assert all(launches)


def test_a_lease_is_clean_of_undefined_behaviour(gpu, tmp_path):
    card = gpu(program=compile_user(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover"))
    options = ("kernel=100000", "threads=2", f"run={SECOND}")
    assert all(launches_by_the_machines_clock([card.command(name, 300, *options) for name in "abc"]))
