"""Programs that look for the driver by its own path: none finds it by a name, and others are reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.gpus.check import TOLERANCE_BYTES
from tests.modules.agent_code import gpu_report, nvml
from tests.native.gpu_container import CAP, MIB, OUT_OF_MEMORY


@pytest.fixture
def as_mounted(container, tmp_path):
    """Return a container's folder of the driver, and libraries that look there for it."""
    folder = tmp_path / "driver"
    folder.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / f"real-{name}").symlink_to(container.driver.directory / name)
    return folder, container.build(container.limits, container.usage.parent, driver_dir=folder) / "lib"


def test_a_loader_that_looks_into_the_folder_of_the_driver_finds_the_libraries_that_cap(container, as_mounted):
    folder, libraries = as_mounted
    words = [container.program("linked_client"), str(CAP + 2 * MIB)]
    environment = {"LD_LIBRARY_PATH": f"{folder}:{libraries}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(done.stdout) == {"init": 0, "total": CAP, "above": OUT_OF_MEMORY}


CONTAINER_ID = "a1" * 32
ASK_THE_HOST = "import json; from tests.modules.agent_code import nvml; print(json.dumps(nvml.read()._asdict()))"


def test_the_observation_sees_device_code_beyond_the_share(fake_driver, container, tmp_path):
    """No library charges it, and the host's driver counts it for the process that has loaded it."""
    script = """
        context(); allocate(1792 * MIB)
        ok(cuda.cuModuleLoadData(byref(c_void_p()), f"code of {512 * MIB} bytes".encode()))
        tell(0); wait()
    """
    process = fake_driver.start(script, container.libraries)
    assert process.stdout.readline() == "0\n"
    (tmp_path / str(process.pid)).mkdir()
    (tmp_path / str(process.pid) / "cgroup").write_text(f"0::/system.slice/docker-{CONTAINER_ID}.scope\n")
    environment = os.environ | {"LD_LIBRARY_PATH": str(fake_driver.directory)}
    words = [sys.executable, "-c", ASK_THE_HOST]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=60)
    answers = nvml.Answers(**json.loads(done.stdout))
    process.communicate()
    used = gpu_report.processes_by_container(answers, [CONTAINER_ID], tmp_path)[fake_driver.uuids()[0]][CONTAINER_ID]
    assert used == [CAP + 512 * MIB]
    assert used[0] > CAP + TOLERANCE_BYTES


def test_the_observation_finds_programs_that_use_the_gpu_without_the_libraries(fake_driver, container, tmp_path):
    """With the driver's library by its path, or a copy of it; not those that have ended or have the libraries."""
    copy = tmp_path / "mine.so"
    copy.write_bytes((fake_driver.directory / "libcuda.so.1").read_bytes())
    use = "context(); allocate(MIB); tell(0); wait()"
    own_path = {"LD_PRELOAD": str(fake_driver.directory / "real-libcuda.so.1")}
    environments = ({}, own_path, {"LD_PRELOAD": str(copy)}, own_path)
    processes = []
    for more in environments:
        command, environment = fake_driver.command(use, container.libraries)
        processes.append(
            subprocess.Popen(command, env=environment | more, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert processes[-1].stdout.readline() == "0\n"
    proc = tmp_path / "proc"
    for process in processes:
        directory = proc / str(process.pid)
        directory.mkdir(parents=True)
        (directory / "cgroup").write_text(f"0::/system.slice/docker-{CONTAINER_ID}.scope\n")
        for name in ("maps", "map_files", "status"):
            (directory / name).symlink_to(f"/proc/{process.pid}/{name}")
    # The tree as it lies on a host: a link to one version beside others, and the lock of who makes them.
    (tmp_path / "fgpu-versions").mkdir()
    (tmp_path / "fgpu-versions/.lock").touch()
    (tmp_path / "fgpu-versions/1").symlink_to(container.libraries.parent)
    processes[-1].kill()
    # A zombie has no memory any more, and the driver may list it still.
    os.waitid(os.P_PID, processes[-1].pid, os.WEXITED | os.WNOWAIT)
    uuid = fake_driver.uuids()[0]
    answers = nvml.Answers([], {uuid: [(process.pid, MIB) for process in processes]}, [])
    share = {"uuid": uuid, "amount": 500, "capacity": 2000, "mem_bytes": CAP, "compute": 250}

    def found(gpu: object, libraries: Path, again: nvml.Answers = answers) -> dict:
        kernel = {"container_id": CONTAINER_ID, "gpus": [gpu]}
        return gpu_report.uncapped_processes(answers, [kernel], libraries, lambda: again, proc)

    assert found(share, tmp_path / "fgpu") == {CONTAINER_ID: sorted(it.pid for it in processes[1:3])}
    # What the driver no longer lists has started another program since, with other libraries.
    gone = nvml.Answers([], {uuid: [(processes[1].pid, MIB)]}, [])
    assert found(share, tmp_path / "fgpu", gone) == {CONTAINER_ID: [processes[1].pid]}
    assert found({**share, "mem_bytes": None}, tmp_path / "fgpu") == {}
    assert found(share, tmp_path / "no libraries here") == {}
    for process in processes:
        process.communicate()


MAPS = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["a\x0clibcuda.so.1", "a\rlibcuda.so.1", "a\u2028libcuda.so.1", "a\nlibcuda.so.1"])
def test_a_file_that_a_program_maps_may_have_any_name(tmp_path, name):
    """A tenant's program uses a GPU and maps it. What it is called does not keep its host from being reported."""
    library = tmp_path / "fgpu/lib/libcuda.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"ours")
    (tmp_path / name).write_bytes(b"theirs")
    command = [sys.executable, "-c", MAPS, str(tmp_path / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "ready\n"
        directory = tmp_path / "proc" / str(program.pid)
        directory.mkdir(parents=True)
        (directory / "cgroup").write_text(f"0::/system.slice/docker-{CONTAINER_ID}.scope\n")
        for file in ("maps", "map_files", "status"):
            (directory / file).symlink_to(f"/proc/{program.pid}/{file}")
        answers = nvml.Answers([], {"GPU-a": [(program.pid, MIB)]}, [])
        kernel = {"container_id": CONTAINER_ID, "gpus": [{"uuid": "GPU-a", "mem_bytes": CAP}]}
        found = gpu_report.uncapped_processes(answers, [kernel], tmp_path / "fgpu", lambda: answers, tmp_path / "proc")
        assert found == {CONTAINER_ID: [program.pid]}
        program.communicate("")
