"""A machine's fake GPUs, and the fGPU libraries built to stand before them."""

import ctypes
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.fake_driver import REPOSITORY, FakeDriver
from tests.native.gpu_container import Container
from tests.native.launch_container import LaunchContainer
from tests.native.lease_process import load_steps
from tests.native.virtual_clock import VirtualClock


@pytest.fixture(scope="session")
def fake_driver_build(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    directory = tmp_path_factory.mktemp("fake-driver")
    driver = FakeDriver(directory, directory / "state", directory / "visible")
    words = [f"OUT={directory}", f"STATE={driver.state}", f"VISIBLE={driver.visible}"]
    subprocess.run(["make", "-s", "-j2", "-C", REPOSITORY / "tests/fake_driver", *words], check=True)
    return driver


@pytest.fixture
def fake_driver(fake_driver_build: FakeDriver) -> FakeDriver:
    """Return two GPUs of 8 GiB that nobody has used."""
    fake_driver_build.init()
    return fake_driver_build


@pytest.fixture
def new_clock(fake_driver_build: FakeDriver, tmp_path: Path) -> Iterator[Callable[[int], VirtualClock]]:
    """Makes a clock whose seed decides how soon each thread runs that is woken. What runs on it ends with the test."""
    clocks: list[VirtualClock] = []

    def make(seed: int) -> VirtualClock:
        path = tmp_path / f"clock-{len(clocks)}"
        clocks.append(VirtualClock(fake_driver_build.directory / "libclock.so", path, seed))
        return clocks[-1]

    yield make
    for clock in clocks:
        clock.close()


@pytest.fixture
def clock(new_clock: Callable[[int], VirtualClock]) -> VirtualClock:
    return new_clock(0)


@pytest.fixture(scope="session")
def build_native(tmp_path_factory: pytest.TempPathFactory, fake_driver_build: FakeDriver) -> Callable[..., Path]:
    """Builds native/ for the given paths, once for each set of them, and returns the directory with lib/ and bin/."""
    built: dict[tuple[Path, Path, Path, str], Path] = {}

    def build(limits: Path, state: Path, driver_dir: Path = fake_driver_build.directory, sanitize: str = "") -> Path:
        wanted = (limits, state, driver_dir, sanitize)
        if wanted not in built:
            directory = tmp_path_factory.mktemp("native")
            words = [f"OUT={directory}", f"LIMITS={limits}", f"STATE={state}", f"DRIVER_DIR={driver_dir}"]
            words.append("WARNINGS=-Werror")
            words += [f"SANITIZE={sanitize}"] if sanitize else []
            subprocess.run(["make", "-s", "-j2", "-C", REPOSITORY / "native", *words], check=True)
            built[wanted] = directory
        return built[wanted]

    return build


@pytest.fixture
def container(fake_driver: FakeDriver, build_native: Callable[..., Path]) -> Container:
    return Container(fake_driver, build_native).start()


@pytest.fixture
def attack(fake_driver: FakeDriver, container: Container) -> Callable[..., tuple[str, int]]:
    """Runs a script that waits at its end. Returns its answer, and the bytes that the device then held."""

    def run(script: str, device: int = 0) -> tuple[str, int]:
        process = fake_driver.start(textwrap.dedent(script) + "\nwait()", container.libraries)
        assert process.stdout is not None
        answer = process.stdout.readline()
        used = fake_driver.used_bytes(device)
        process.communicate()
        assert process.returncode == 0
        return answer.strip(), used

    return run


@pytest.fixture(scope="session")
def lease_steps(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return load_steps(tmp_path_factory.mktemp("steps"))


@pytest.fixture
def plain_container(fake_driver, build_native):
    return Container(fake_driver, build_native).start()


@pytest.fixture(scope="session")
def launch_client(tmp_path_factory: pytest.TempPathFactory, fake_driver_build: FakeDriver) -> Path:
    program = tmp_path_factory.mktemp("launch") / "launch_client"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{REPOSITORY / 'native'}"]
    linked = [f"-L{fake_driver_build.directory}", "-l:libcuda.so.1", "-ldl"]
    subprocess.run(["gcc", *flags, REPOSITORY / "tests/native/launch_client.c", "-o", program, *linked], check=True)
    return program


@pytest.fixture
def containers(fake_driver, build_native, launch_client, clock, tmp_path):
    """Return three containers. All have one build's paths: each process finds its own by where it runs."""
    fake_driver.init(4)
    here = Path("/proc/self/cwd")
    libraries = build_native(here / "limits", here / "state") / "lib"
    (tmp_path / "lease").mkdir()
    made = [LaunchContainer(number, launch_client, libraries, tmp_path / str(number), clock) for number in range(3)]
    for container in made:
        (container.home / "state").mkdir(parents=True)
        (container.home / "state/lease").symlink_to(tmp_path / "lease")
    return made
