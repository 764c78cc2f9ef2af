"""The compute lease between processes that launch on pretended GPUs (lease_user.c): no driver is needed."""

import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.native.measured import measured

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = [
    Path(__file__).with_name("lease_user.c"),
    *(NATIVE / f"{name}.c" for name in ("lease", "lease_table", "lease_turn", "process")),
]
MS = 1_000_000
SECOND = 1000 * MS


def compile_user(directory: Path, *options: str) -> Path:
    program = directory / "lease_user"
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{NATIVE}", *options]
    subprocess.run(["gcc", *flags, "-include", NATIVE / "old_glibc.h", *SOURCES, "-o", program], check=True)
    return program


@pytest.fixture(scope="module")
def lease_user(tmp_path_factory):
    return compile_user(tmp_path_factory.mktemp("lease"))


@dataclass
class User:
    process: subprocess.Popen

    def results(self) -> list[tuple[int, int]]:
        """Of each of its processes the nanoseconds that the GPU worked for it, and its launches."""
        output, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        lines = (line.split() for line in output.splitlines())
        return [(int(busy), int(launches)) for busy, launches in lines]

    def result(self) -> tuple[int, int]:
        (result,) = self.results()
        return result


@dataclass
class Gpu:
    program: Path
    directory: Path
    users: list[User] = field(default_factory=list)

    def __post_init__(self):
        self.directory.mkdir(exist_ok=True)
        (self.directory / "lease").touch()

    def user(self, kernel: str, share: int, *options: str, mode: str = "fair", device: Path | None = None) -> User:
        arguments = [device or self.directory / "device", self.directory / "lease", kernel, str(share), mode, *options]
        self.users.append(User(subprocess.Popen([self.program, *arguments], stdout=-1, stderr=-1, text=True)))
        return self.users[-1]


@pytest.fixture
def gpu(lease_user, tmp_path):
    cards = []

    def make(name="gpu", program=lease_user):
        cards.append(Gpu(program, tmp_path / name))
        return cards[-1]

    yield make
    for user in (user for card in cards for user in card.users if user.process.poll() is None):
        user.process.kill()
        user.process.communicate()


def at_once(run: float = 10) -> list[str]:
    return [f"start={time.monotonic_ns() + 300 * MS}", f"run={int(run * SECOND)}"]


@measured
def test_containers_get_their_shares_whatever_they_launch(gpu):
    mixed = "kernel=50000,2000000"
    cases = {
        "equal kernels": [(300, "kernel=1000000"), (700, "kernel=1000000")],
        "long for the smaller share": [(300, "kernel=5000000"), (700, "kernel=20000")],
        "long for the larger share": [(300, "kernel=20000"), (700, "kernel=5000000")],
        "three, mixed": [(250, "kernel=200000,1000000"), (250, "kernel=3000000"), (500, mixed)],
        "who waits for each kernel": [(300, "kernel=2000000 every=1"), (700, "kernel=2000000 every=1")],
        "threads": [(300, "kernel=100000 threads=4"), (700, "kernel=1000000 threads=2")],
    }
    when = at_once()
    running = {
        name: [
            gpu(name).user(f"kernel-{i}", share, *options.split(), *when) for i, (share, options) in enumerate(users)
        ]
        for name, users in cases.items()
    }
    for name, users in running.items():
        busy = [user.result()[0] for user in users]
        shares = [part / sum(busy) for part in busy]
        wanted = [share / 1000 for share, _ in cases[name]]
        assert shares == pytest.approx(wanted, abs=0.03), name


@measured
def test_processes_of_one_container_have_one_share_between_them(gpu):
    card, when = gpu(), at_once(3)
    together = [card.user("both", 300, "kernel=500000", *when), card.user("both", 300, "kernel=1000000", *when)]
    other = card.user("other", 700, "kernel=1000000", *when)
    both, rest = sum(user.result()[0] for user in together), other.result()[0]
    assert both / (both + rest) == pytest.approx(0.3, abs=0.03)


@measured
def test_who_is_alone_has_the_whole_gpu_unless_the_share_is_hard(gpu):
    when = at_once(4)
    fair = gpu("fair").user("a", 300, "kernel=1000000", *when)
    solo = gpu("solo").user("a", 300, "kernel=1000000", *when, mode="none")
    hard = gpu("hard").user("a", 300, "kernel=1000000", *when, mode="hard")
    two = [gpu("two").user(name, 250, "kernel=1000000", *when, mode="hard") for name in "ab"]
    assert fair.result()[0] >= 0.95 * solo.result()[0]
    assert hard.result()[0] <= 0.3 * 4 * SECOND + 40 * MS
    assert all(user.result()[0] <= 0.25 * 4 * SECOND + 40 * MS for user in two)


@measured
def test_the_gpu_works_nearly_all_the_time_that_somebody_has_work(gpu):
    card, when = gpu(), at_once(4)
    heavy = card.user("heavy", 500, "kernel=1000000", *when)
    bursts = card.user("bursts", 500, "kernel=1000000", "every=2", f"gap={20 * MS}", *when)
    busy, in_bursts = heavy.result()[0], bursts.result()[0]
    assert busy + in_bursts >= 0.8 * 4 * SECOND, "pauses of one are the other's"
    assert in_bursts >= 0.04 * 4 * SECOND, "a burst need not wait for long"


@measured
@pytest.mark.parametrize("silenced_by", [signal.SIGKILL, signal.SIGSTOP])
def test_others_go_on_when_the_holder_says_nothing_any_more(gpu, silenced_by):
    card, when = gpu(), at_once(4)
    other = card.user("other", 100, "kernel=1000000", *when)
    for attempt in range(4):
        victim = card.user(f"victim-{attempt}", 900, "kernel=1000000", "run=60000000000")
        time.sleep(0.45)
        victim.process.send_signal(silenced_by)
        if silenced_by == signal.SIGSTOP:
            time.sleep(0.3)
            victim.process.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            victim.process.kill()
        victim.process.communicate()
    busy, _ = other.result()
    assert busy >= 1 * SECOND, "with victims for half of the time it would have had 0.4 s had it waited for one of them"


@measured
def test_a_silent_holder_that_comes_back_waits_for_its_turn(gpu):
    card, when = gpu(), at_once(6)
    users = [card.user(name, 500, "kernel=1000000", *when) for name in "ab"]
    time.sleep(1)
    users[0].process.send_signal(signal.SIGSTOP)
    time.sleep(1)
    users[0].process.send_signal(signal.SIGCONT)
    stopped, other = (user.result()[0] for user in users)
    assert stopped == pytest.approx(2.5 * SECOND, abs=0.5 * SECOND)
    assert other == pytest.approx(3.5 * SECOND, abs=0.5 * SECOND)


def test_two_gangs_that_hold_two_gpus_crosswise_both_finish(gpu, tmp_path):
    left, right = gpu("left"), gpu("right")
    start = time.monotonic_ns() + 300 * MS
    first, second = tmp_path / "first", tmp_path / "second"  # where the kernels of a gang meet
    members = [
        left.user("first", 500, "rank=0", "rounds=6", f"start={start}", device=first),
        right.user("second", 500, "rank=1", "rounds=6", f"start={start}", device=second),
        right.user("first", 500, "rank=1", "rounds=6", f"start={start + 100 * MS}", device=first),
        left.user("second", 500, "rank=0", "rounds=6", f"start={start + 100 * MS}", device=second),
    ]
    assert [member.result()[1] for member in members] == [6, 6, 6, 6]


@measured
def test_a_forked_child_has_turns_with_its_parent(gpu):
    card, when = gpu(), at_once(3)
    forks = card.user("forks", 600, "kernel=1000000", "fork", *when)
    other = card.user("other", 400, "kernel=1000000", *when)
    (child, _), (parent, _) = forks.results()
    both, rest = child + parent, other.result()[0]
    assert both / (both + rest) == pytest.approx(0.6, abs=0.03)
    assert child / both == pytest.approx(0.5, abs=0.1)


def test_a_table_of_another_version_is_refused_in_one_line(gpu):
    card = gpu()
    (card.directory / "lease").write_bytes(b"another " + bytes(1 << 16))
    process = card.user("a", 500, "kernel=1000000").process
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.count("\n") == 1
    assert "made by another version" in errors


def test_containers_come_and_go_without_end(gpu):
    card = gpu()
    for group in range(7):
        users = [card.user(f"kernel-{group}-{i}", 10, "kernel=10000", "run=1000000") for i in range(50)]
        for user in users:
            user.result()


def test_threads_of_a_process_do_not_race(gpu, tmp_path):
    program = compile_user(tmp_path, "-fsanitize=thread")
    card = gpu(program=program)
    when = at_once(2)
    users = [
        card.user("a", 300, "kernel=100000", "threads=4", *when),
        card.user("b", 500, "kernel=1000000", "threads=2", "every=3", f"gap={5 * MS}", *when),
        card.user("c", 200, "kernel=300000", "threads=2", *when, mode="hard"),
    ]
    assert all(user.result()[1] > 0 for user in users)


def test_a_lease_is_clean_of_undefined_behaviour(gpu, tmp_path):
    card = gpu(program=compile_user(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover"))
    when = at_once(1)
    users = [card.user(name, 300, "kernel=100000", "threads=2", *when) for name in "abc"]
    assert all(user.result()[1] > 0 for user in users)
