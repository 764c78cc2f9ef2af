"""Usage of kernels, and the notices before their end, on the real engine."""

import ctypes
import socket
import subprocess
import time

import pytest

from tests.modules.agent_code import agent_names, kernel_cgroup, kernel_usage, nvml_use
from tests.modules.cluster_on_host import desired, session

BURN = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 1000"
FILL = "x=$(head -c 12000000 /dev/zero | tr '\\0' 'x'); echo ${#x}"


def groups_of(cluster):
    mounts = kernel_cgroup.hierarchies().every
    found = [path for mount in mounts for path in (mount / "muster" / cluster.name).glob("*")]
    return [path for path in found if path.is_dir()]


def the_kernel(cluster, until):
    """Return the only kernel in the report once the condition holds."""
    give_up_at = time.monotonic() + 60
    while not until(kernel := cluster.report()["kernels"][0]):
        assert time.monotonic() < give_up_at, kernel
        time.sleep(0.1)
    return kernel


def _greet(cluster):
    """Have the only kernel's sshd send its greeting, so that its network has carried something."""
    (kernel,) = cluster.report()["kernels"]
    with socket.create_connection((kernel["address"], 2200), timeout=60) as connection:
        assert connection.recv(7) == b"SSH-2.0"


def test_a_running_kernels_counters_are_in_the_report_and_only_grow(cluster):
    cluster.converge(session(command=["sh", "-c", BURN]))
    _greet(cluster)
    first = cluster.report()["kernels"][0]["use"]
    later = the_kernel(cluster, lambda kernel: kernel["use"]["cpu_seconds"] > first["cpu_seconds"])["use"]
    assert later["at"] > first["at"]
    assert 0 < later["mem_bytes"] <= later["mem_peak_bytes"] <= 64 << 20
    assert later["net_rx_bytes"] >= first["net_rx_bytes"] >= 0
    assert later["net_tx_bytes"] >= first["net_tx_bytes"] > 0
    assert later["gpu_percent"] is None


def test_a_kernels_usage_is_known_after_its_end_and_then_forgotten(cluster):
    gang = session(command=["sh", "-c", FILL])
    cluster.converge(gang)
    ended = the_kernel(cluster, lambda kernel: kernel["state"] == "exited")["use"]
    assert ended["cpu_seconds"] > 0
    assert ended["mem_peak_bytes"] > 12000000
    assert (ended["mem_bytes"], ended["net_rx_bytes"]) == (None, None)
    assert groups_of(cluster)
    (words,) = cluster.converge(desired(gang, "stop"))["last_words"]
    assert words["use"]["cpu_seconds"] >= ended["cpu_seconds"]
    assert words["use"]["mem_peak_bytes"] >= ended["mem_peak_bytes"]
    assert groups_of(cluster) == []


def test_a_kernel_whose_process_ran_out_of_memory_says_so_while_it_runs(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    assert not any(kernel["oom_killed"] for kernel in cluster.report()["kernels"])
    name = agent_names.container_name(gang["id"], "sub1")
    # By its score, so that the Linux kernel ends no other process in its place.
    script = "echo 1000 > /proc/self/oom_score_adj; x=$(head -c 200000000 /dev/zero | tr '\\0' 'x'); echo ${#x}"
    greedy = ["docker", "exec", name, "sh", "-c", script]
    assert subprocess.run(greedy, capture_output=True, check=False).returncode != 0
    found = {kernel["name"]: (kernel["state"], kernel["oom_killed"]) for kernel in cluster.report()["kernels"]}
    assert found == {"main1": ("running", False), "sub1": ("running", True)}


def test_the_last_words_of_a_kernel_that_was_stopped_tell_what_its_network_carried(cluster):
    gang = session()
    cluster.converge(gang)
    _greet(cluster)
    before = cluster.report()["kernels"][0]["use"]
    (words,) = cluster.converge(desired(gang, "stop"))["last_words"]
    assert words["use"]["net_tx_bytes"] >= before["net_tx_bytes"] > 0
    assert groups_of(cluster) == []


def test_groups_that_a_killed_run_left_are_swept(cluster):
    gang = session()
    cluster.converge(gang)
    left = [mount / "muster" / cluster.name / "left" / "1" / "main1" for mount in kernel_cgroup.hierarchies().every]
    for path in left:
        path.mkdir(parents=True)
    kept = cluster.converge(desired(gang, "keep"))
    assert not kept["changed"]
    assert kept["report"]["leftovers"] == []
    assert cluster.report()["leftovers"] is None
    assert {path.name for path in groups_of(cluster)} == {gang["id"]}


def test_a_group_that_a_process_is_in_is_said_to_be_left(cluster):
    group = kernel_cgroup.hierarchies().every[0] / "muster" / cluster.name / "left"
    group.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as process:
        (group / "cgroup.procs").write_text(str(process.pid))
        left = cluster.converge()["report"]["leftovers"]
        process.kill()
    assert left == [{"name": "control group left", "error": "something is in it"}]
    assert cluster.converge()["report"]["leftovers"] == []


def test_a_notice_is_written_once_shown_on_open_terminals_and_taken_back(cluster):
    gang = session(["main1", "sub1"])
    cluster.converge(gang)
    name = agent_names.container_name(gang["id"], "main1")
    typing = subprocess.Popen(
        ["script", "-qec", f"docker exec -it {name} sh -c 'echo ready; sleep 1000'", "/dev/null"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert b"ready" in typing.stdout.readline()
    warned = {**desired(gang, "keep"), "notice": "it ends at noon\n"}
    foreseen = cluster.converge(warned, check=True)
    assert cluster.report()["kernels"][0]["notice"] is None
    result = cluster.converge(warned)
    assert result["diff"] == foreseen["diff"] != {}
    assert [kernel["notice"] for kernel in result["report"]["kernels"]] == ["it ends at noon\n"] * 2
    assert cluster.run_in(gang, "sub1", "cat", "/run/muster/notice") == "it ends at noon"
    assert b"muster: it ends at noon" in typing.stdout.readline() + typing.stdout.readline()
    typing.kill()
    typing.communicate()
    assert not cluster.converge(warned)["changed"]
    assert cluster.converge(desired(gang, "keep"))["changed"]
    assert cluster.report()["kernels"][0]["notice"] is None


@pytest.fixture
def place():
    return kernel_cgroup.Place("c-1", "6f1c-22", "7", "main1")


def test_with_one_hierarchy_for_all_the_same_is_read_from_its_files(tmp_path, place):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {tmp_path}/cg cgroup2 rw,nsdelegate 0 0\nproc /proc proc rw 0 0\n")
    group = tmp_path / "cg" / "muster.slice" / place.slice
    group.mkdir(parents=True)
    assert place.slice == "muster-c1_6f1c22_7_main1.slice"
    for name, text in {
        "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        "memory.current": "5000\n",
        "memory.stat": "anon 1\ninactive_file 2000\n",
        "memory.peak": "9000\n",
    }.items():
        (group / name).write_text(text)
    (tmp_path / "5/net").mkdir(parents=True)
    head = "Inter-| Receive\n face |bytes\n"
    rows = "    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n  eth0: 11 0 0 0 0 0 0 0 22 0 0 0 0 0 0 0\n"
    (tmp_path / "5/net/dev").write_text(head + rows)
    use = kernel_usage.kernel_use(place, 5, kernel_cgroup.hierarchies(mounts), tmp_path)
    del use["at"]
    assert use == {
        "cpu_seconds": 2.5,
        "mem_bytes": 3000,
        "mem_peak_bytes": 9000,
        "net_rx_bytes": 11,
        "net_tx_bytes": 22,
        "gpu_percent": None,
    }
    for count, killed in ((0, False), (2, True)):
        (group / "memory.events").write_text(f"oom 3\noom_kill {count}\n")
        assert kernel_usage.ran_out_of_memory(place, kernel_cgroup.hierarchies(mounts)) is killed
    (group / "memory.peak").unlink()  # a kernel before 5.19
    assert kernel_usage.kernel_use(place, 5, kernel_cgroup.hierarchies(mounts), tmp_path)["mem_peak_bytes"] is None


class Driver:
    """A driver with the one function that is called."""

    def __init__(self, status, samples):
        self.status, self.samples = status, samples

    def nvmlDeviceGetProcessUtilization(self, _device, samples, count, _since):  # noqa: N802 - the driver's name
        counted = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents
        counted.value = len(self.samples)
        if samples is None:
            return 7 if self.samples and not self.status else self.status
        for index, (pid, percent) in enumerate(self.samples):
            samples[index].pid, samples[index].smUtil = pid, percent
        return self.status


@pytest.mark.parametrize(
    ("driver", "percents"),
    [
        (Driver(0, [(10, 30), (11, 5), (10, 50)]), [(10, 40.0), (11, 5.0)]),
        (Driver(0, [(0, 0), (12, 1000)]), []),
        (Driver(6, []), []),
        (Driver(3, []), None),
        (object(), None),
    ],
)
def test_gpu_usage_of_processes_is_the_mean_of_the_drivers_samples(driver, percents):
    assert nvml_use.process_percents(driver, ctypes.c_void_p()) == percents
