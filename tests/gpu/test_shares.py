"""What a session gets of a GPU: through the command line, on a host with its own engine and the driver's interface."""

import re
import shlex
from pathlib import Path

import pytest

from tests.gpu.gpu_host import GPU_BYTES, GpuHost
from tests.lab.control_node import LabControlNode
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(600)
SMALL = ("--cpu", "0.2", "--mem", "256M", "--shm", "16M", "--mount", "tools:/tools:ro")
QUARTER = GPU_BYTES // 4
MIB = 1 << 20
SECOND = 1_000_000_000
BY_NVIDIA_ML_PY = """
import pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByIndex(0)
print(nvml.nvmlDeviceGetMemoryInfo(device).total, nvml.nvmlDeviceGetMemoryInfo(device, nvml.nvmlMemory_v2).total)
"""
# Launches kernels of 1 ms of the device's time for as long as it runs.
KEEP_BUSY = """
from cuda_client import *
context()
function = kernel("spin_us_1000")
while True:
    ok(launch(function))
"""


def python(program: str) -> str:
    return f"PYTHONPATH=/tools python3 -c {shlex.quote(program)}"


def printed(node: LabControlNode, fgpu: str, command: str) -> list[str]:
    """Return what a batch session's command wrote."""
    done = node.run("submit", *SMALL, "--fgpu", fgpu, "--wait", "--name", "prints", "-c", command, check=False)
    log = node.run("logs", "prints", check=False).out
    assert done.code == 0, f"{done.out}{done.err}\n{log}"
    return log.splitlines()


def idle(node: LabControlNode, fgpu: str, *more: str) -> str:
    """Return the name of a new session that sleeps."""
    return node.submit(*SMALL, "--fgpu", fgpu, *more)


def holding(mem_bytes: int, prefix: str = "") -> str:
    """Return shell commands that start a program which holds memory of the GPU, and wait until it does."""
    return (
        f"rm -f /tmp/held; {prefix}nohup /tools/smi hold {mem_bytes} </dev/zero >/tmp/held 2>&1 & "
        "timeout 60 sh -c 'until grep -q holds /tmp/held; do sleep 0.1; done' 2>&1 || cat /tmp/held"
    )


def test_a_container_sees_its_share_and_nothing_changes_that(node: LabControlNode) -> None:
    commands = [
        "/tools/smi",
        "env -i /tools/smi",
        python(BY_NVIDIA_ML_PY),
        "env LD_LIBRARY_PATH=/opt/muster/driver /tools/smi",
        "env LD_LIBRARY_PATH=/opt/muster/driver /tools/smi hold 4096 </dev/null",
    ]
    by_smi, without_environment, by_library, beside_the_driver, by_cuda = printed(node, "0.5", " && ".join(commands))
    assert re.fullmatch(rf"0 GPU-\S+ total {QUARTER} used 0", by_smi)
    assert without_environment == beside_the_driver == by_smi
    assert by_library == f"{QUARTER} {QUARTER}"
    assert by_cuda.endswith(f"total {QUARTER}")


def test_allocations_stop_at_the_share_which_all_processes_have_together(node: LabControlNode) -> None:
    # For each process' context some 256 MiB are charged: what roles/fgpu has measured.
    within, beyond, rest = 1024 * MIB, 1800 * MIB, 420 * MIB
    command = (
        f"/tools/smi hold {beyond} </dev/null; echo $?;"
        f"mkfifo /tmp/first; /tools/smi hold {within} </tmp/first & exec 3>/tmp/first;"
        "until /tools/smi | grep -q 'used 1[0-9]*'; do sleep 0.1; done;"
        f"/tools/smi hold {rest + 128 * MIB} </dev/null; echo $?; /tools/smi hold {rest} </dev/null; exec 3>&-; wait"
    )
    lines = printed(node, "0.5", command)
    assert [line for line in lines if line.isdecimal()] == ["2", "2"]
    assert [line.split(";")[0] for line in lines if line.startswith("holds")] == [f"holds {within}", f"holds {rest}"]


def test_two_of_three_sessions_of_one_unit_run_and_the_third_follows(node: LabControlNode) -> None:
    first, second, third = (idle(node, "1") for _ in range(3))
    node.reaches(first, "RUNNING")
    node.reaches(second, "RUNNING")
    waits = node.show(third)
    assert waits["state"] == "PENDING"
    assert "fgpu" in node.run("why", third).out.lower()
    node.run("terminate", first)
    node.reaches(third, "RUNNING")
    assert node.show(second)["state"] == "RUNNING"


def test_the_map_shows_whose_the_shares_are_and_survives_the_daemon(node: LabControlNode) -> None:
    name = idle(node, "0.5")
    node.reaches(name, "RUNNING")
    node.exec(name, "sh", "-c", f"{holding(512 * MIB)}; cat /tmp/held")
    assert node.daemon is not None
    node.daemon.kill()
    node.daemon.wait()
    node.start_daemon()
    node.run("pass", "--wait")
    (gpu,) = node.run("agents", "--gpus", "--json").json()
    (share,) = gpu["shares"]
    assert (gpu["free"], share["session"], share["amount"], share["mem_bytes"], share["compute"]) == (
        1500, name, 500, QUARTER, 250,
    )  # fmt: skip
    assert share["used_bytes"] >= 512 * MIB
    assert "[aaaaa...............]" in node.run("agents", "--gpus").out
    assert "25%" in node.run("show", name).out


def story(node: LabControlNode, name: str) -> list[str]:
    return [line["reason"] for line in node.show(name)["story"]]


# The real driver has to be in the container, so a program that takes it by its path has it.
DRIVER = "LD_PRELOAD=/opt/muster/driver/real-libcuda.so.1"


def past_the_libraries(mem_bytes: int) -> str:
    return holding(mem_bytes, f"env {DRIVER} ")


def test_a_program_without_the_libraries_is_reported_though_it_keeps_to_the_share(node: LabControlNode) -> None:
    name = idle(node, "0.5")
    node.reaches(name, "RUNNING")
    node.exec(name, "sh", "-c", holding(64 * MIB))
    node.run("pass", "--wait")
    assert not [line for line in story(node, name) if "without the libraries" in line]
    node.exec(name, "sh", "-c", past_the_libraries(64 * MIB))
    node.run("pass", "--wait")
    (found,) = [line for line in story(node, name) if "without the libraries" in line]
    pid = re.fullmatch(r"main1 has programs on a GPU .*: process (\d+) in its container", found)
    assert pid is not None
    assert "/tools/smi" in node.exec(name, "cat", f"/proc/{pid[1]}/cmdline").out


def test_bypassing_the_libraries_is_reported_and_ended_if_the_site_wants_it(node: LabControlNode) -> None:
    name = idle(node, "0.5")
    node.reaches(name, "RUNNING")
    # Beyond the share, the driver itself refuses: the agent has set its own limit, too.
    refused = node.exec(name, "sh", "-c", f"env {DRIVER} /tools/smi hold {3 << 30} </dev/null 2>&1", check=False)
    assert "CUDA error 2" in refused.out
    node.exec(name, "sh", "-c", past_the_libraries(64 * MIB))
    node.run("pass", "--wait")
    assert len([line for line in story(node, name) if "without the libraries" in line]) == 1
    assert node.show(name)["state"] == "RUNNING"

    node.set_host_variables("gpu-1", fgpu_over_cap="end")
    try:
        node.run("pass", "--wait")
        ended = node.reaches(name, "TERMINATED")
    finally:
        node.set_host_variables("gpu-1")
    assert ended["result"] == "FAILURE"
    assert "without the libraries" in ended["reason"]


def test_nothing_starts_where_the_share_would_not_hold(node: LabControlNode) -> None:
    done = node.run(
        *("submit", *SMALL, "--fgpu", "0.5", "--name", "unsafe", "--env", DRIVER),
        *("--wait", "-c", "echo started"),
        check=False,
    )
    assert done.code != 0
    assert "share of a GPU does not hold" in f"{done.out}{done.err}{story(node, 'unsafe')}"
    assert "started" not in node.run("logs", "unsafe", check=False).out


def busy_ns(gpu_host: GpuHost, clock: str) -> dict[int, int]:
    """Return device time by the driver's slot of a process, for living processes that have launched something."""
    alive = [process for process in gpu_host.driver_status(clock)["processes"] if process["alive"]]
    busy = {process["slot"]: [device["busy_ns"] for device in process["devices"].values()] for process in alive}
    return {slot: sum(by_device) for slot, by_device in busy.items() if sum(by_device)}


def test_containers_share_the_compute_by_their_shares(node: LabControlNode, gpu_host: GpuHost) -> None:
    clock = gpu_host.new_clock("clocks")
    on_clock = f"LD_PRELOAD=/tools/libclock.so FAKE_CLOCK=/clocks/{Path(clock).name}"
    found: list[int] = []
    for fgpu in ("0.6", "1.4"):
        node.submit(*SMALL, "--mount", "clocks:/clocks", "--fgpu", fgpu, "-c", f"{on_clock} {python(KEEP_BUSY)}")
        found += eventually(
            lambda: busy_ns(gpu_host, clock).keys() - set(found),  # noqa: B023 - called at once
            complaint=lambda: gpu_host.driver_status(clock),
        )
    before, after = busy_ns(gpu_host, clock), {}
    while sum(after.values()) < sum(before.values()) + 20 * SECOND:
        after = busy_ns(gpu_host, clock)
    small, large = (after[slot] - before[slot] for slot in found)
    assert small / (small + large) == pytest.approx(0.3, abs=0.01)


def test_a_whole_gpu_is_given_as_it_is(node: LabControlNode) -> None:
    done = node.run("submit", *SMALL, "--gpu", "1", "--wait", "--name", "whole", "-c", "/tools/smi")
    assert done.code == 0
    assert f"total {GPU_BYTES} used 0" in node.run("logs", "whole").out
