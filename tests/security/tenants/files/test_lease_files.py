"""A tenant's attacks on the lease file of a GPU, which it must be able to write: the GPU's others go on launching."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.lease_gpu import Gpu, compile_user, result
from tests.security.tenants.processes import outputs

TABLE_PAGES_BYTES = 64 << 10
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def lease_user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_user(tmp_path_factory.mktemp("lease"))


@contextmanager
def attacked(lease: Path, step: Callable[[int], None]) -> Iterator[None]:
    """Attack the lease again and again, by a descriptor as a tenant's container has it."""
    over = threading.Event()
    descriptor = os.open(lease, os.O_RDWR)

    def attack() -> None:
        while not over.is_set():
            step(descriptor)

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        yield
    finally:
        over.set()
        attacker.join()
        os.close(descriptor)


def cut_off(lease: int) -> None:
    os.ftruncate(lease, 0)


def cut_to_a_page(lease: int) -> None:
    os.ftruncate(lease, 4096)


def grow(lease: int) -> None:
    os.pwrite(lease, b"x" * 4096, 1 << 30)


def scribble(lease: int) -> None:
    os.pwrite(lease, os.urandom(TABLE_PAGES_BYTES), 0)


def keep_locked(lease: int) -> None:
    fcntl.flock(lease, fcntl.LOCK_EX)


@pytest.mark.parametrize("step", [cut_off, cut_to_a_page, grow, scribble, keep_locked])
def test_others_on_the_gpu_go_on_launching(lease_user: Path, tmp_path: Path, step: Callable[[int], None]) -> None:
    gpu = Gpu(lease_user, tmp_path / "gpu")
    # Each waits for its last launch, since the GPU's queue alone could keep the second one waiting all the time; and
    # until ten have finished, since on a busy machine the attacker may give a whole second to the other one.
    options = ["kernel=1000000", "threads=2", "every=1", f"run={SECOND // 4}", "least=10"]
    commands = [gpu.command(name, 500, *options) for name in "ab"]
    with attacked(tmp_path / "gpu/lease", step):
        launches = [result(output)[1] for output in outputs(commands)]
    assert min(launches) >= 10


@pytest.mark.parametrize("step", [cut_off, grow, scribble])
def test_after_the_attack_the_file_is_a_table_again(
    lease_user: Path, tmp_path: Path, step: Callable[[int], None]
) -> None:
    gpu = Gpu(lease_user, tmp_path / "gpu")
    lease = tmp_path / "gpu/lease"
    outputs([gpu.command("first", 500, "kernel=1000000", f"run={SECOND // 10}")])
    size = lease.stat().st_size
    with lease.open("r+b") as opened:
        step(opened.fileno())
    outputs([gpu.command("second", 500, "kernel=1000000", f"run={SECOND // 10}")])
    assert lease.stat().st_size == size <= TABLE_PAGES_BYTES
