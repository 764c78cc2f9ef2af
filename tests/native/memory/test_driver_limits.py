"""The driver's own limits of GPU memory for control groups, as the agent sets and reads them (on the fake driver)."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.native.fake_driver import REPOSITORY, FakeDriver
from tests.native.gpu_container import MIB, OUT_OF_MEMORY

CONTEXT = 256 * MIB
ID = "5a" * 32
AGENT = """
import json, sys
from tests.modules.agent_code import memory_limits
containers, warned = json.loads(sys.argv[1]), []
shares = memory_limits.shares_of(containers)
if "full" in sys.argv:
    for number in range(32):
        memory_limits.enforce([shares[0]._replace(group="/" + number * "./")], warned.append)
if "enforce" in sys.argv:
    memory_limits.enforce(shares, warned.append)
found = memory_limits.enforced(shares, warned.append)
json.dump([[[container, uuid, limit] for (container, uuid), limit in found.items()], warned], sys.stdout)
"""


@dataclass
class Group:
    """A container's control group of version 2, and a process in it."""

    directory: Path
    process: subprocess.Popen[bytes]

    def enter(self) -> None:
        self.directory.mkdir()
        self.directory.joinpath("cgroup.procs").write_text(str(self.process.pid))

    def leave(self) -> None:
        self.directory.parent.joinpath("cgroup.procs").write_text(str(self.process.pid))
        self.directory.rmdir()

    def container(self, **bytes_of: int | None) -> dict[str, Any]:
        gpus = [{"uuid": uuid, "mem_bytes": size} for uuid, size in bytes_of.items()]
        return {"container_id": ID, "pid": self.process.pid, "gpus": gpus}


@pytest.fixture
def group():
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    directory = Path(next(mount[1] for mount in mounts if mount[2] == "cgroup2"), f"muster-test-{os.getpid()}", ID)
    directory.parent.mkdir()
    process = subprocess.Popen(["sleep", "infinity"])
    found = Group(directory, process)
    found.enter()
    yield found
    process.kill()
    process.communicate()
    directory.rmdir()
    directory.parent.rmdir()


def agent(fake_driver: FakeDriver, containers: list[dict[str, Any]], *words: str) -> Any:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver.directory), "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", AGENT, json.dumps(containers), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_program_without_our_libraries_keeps_to_the_drivers_limit(fake_driver, group):
    first, second = fake_driver.uuids()
    container = group.container(**{first: 1024 * MIB, second: None})
    assert agent(fake_driver, [container]) == [[], []]
    expected = [[[ID, first, 1024 * MIB]], []]
    assert agent(fake_driver, [container], "enforce") == expected, "a whole GPU has no limit"
    assert agent(fake_driver, [container]) == expected
    script = f"""
        import os
        open({str(group.directory / "cgroup.procs")!r}, "w").write(str(os.getpid()))
        context()
        small, large = refused(512 * MIB), refused(512 * MIB)
        context(1)
        tell([small, large, refused(2048 * MIB)])
    """
    assert fake_driver.run(script) == [0, OUT_OF_MEMORY, 0]
    assert fake_driver.run("context()\ntell(refused(2048 * MIB))") == 0, "in another control group"


def test_a_limit_goes_with_its_group_and_is_set_anew(fake_driver, group):
    """As when a container is started anew: its group has the same name then."""
    first, _ = fake_driver.uuids()
    container = group.container(**{first: 1024 * MIB})
    assert agent(fake_driver, [container], "enforce") == [[[ID, first, 1024 * MIB]], []]
    group.leave()
    group.enter()
    assert agent(fake_driver, [container]) == [[], []]
    assert agent(fake_driver, [container], "enforce") == [[[ID, first, 1024 * MIB]], []]
    grown = group.container(**{first: 2048 * MIB})
    assert agent(fake_driver, [grown], "enforce") == [[[ID, first, 2048 * MIB]], []]


def test_what_has_no_group_of_its_own_gets_no_limit(fake_driver, group):
    first, _ = fake_driver.uuids()
    container = group.container(**{first: 1024 * MIB})
    elsewhere = {**container, "pid": os.getpid()}
    ended = {**container, "pid": 0}
    gone = {**container, "pid": 2**22 + 1}
    assert agent(fake_driver, [elsewhere, ended, gone], "enforce") == [[], []]


def test_a_driver_that_refuses_is_a_warning(fake_driver, group):
    first, _ = fake_driver.uuids()
    found, warned = agent(fake_driver, [group.container(**{first: 64 * MIB})], "enforce", "full")
    assert found == []
    assert warned == [f"the driver refuses a memory limit on {first}: Insufficient Resources"]


def test_an_old_driver_has_no_limits(fake_driver, group, tmp_path):
    """It has no such functions: nothing is set, nothing is said."""
    source, library = tmp_path / "old.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(
        "int nvmlInit_v2(void) { return 0; }\nint nvmlShutdown(void) { return 0; }\n"
        'const char *nvmlErrorString(int status) { return status ? "failed" : ""; }\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    old = FakeDriver(tmp_path, fake_driver.state, fake_driver.visible)
    container = group.container(**{fake_driver.uuids()[0]: 1024 * MIB})
    assert agent(old, [container], "enforce") == [[], []]
