"""The report of a host's GPUs and of the processes that use them, also with a broken driver."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from muster.contract.report import GpuHealthReport
from muster.contract.values import checked
from tests.modules.agent_code import ROOT, gpu_report, nvml, xids
from tests.modules.cluster_on_host import log_with, session
from tests.simulated.hosts import healthy_gpu

# A driver of the time before MIG, with two GPUs; ON_INIT and ON_MEMORY say how it is broken.
DRIVER = r"""
#include <string.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct {
  char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32];
} pci_t;
#ifndef ON_INIT
#define ON_INIT return 0
#endif
#ifndef ON_MEMORY
#define ON_MEMORY
#endif
int nvmlInit_v2(void) { ON_INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return status == 9 ? "Driver Not Loaded" : "GPU is lost"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(0x7f0000000000 + index);
  return 0;
}
static unsigned long index_of(void *device) { return (unsigned long)device & 0xff; }
int nvmlDeviceGetName(void *d, char *text, unsigned size) { strncpy(text, "NVIDIA H200", size); return 0; }
int nvmlDeviceGetUUID(void *d, char *text, unsigned size) {
  strncpy(text, index_of(d) ? "GPU-b" : "GPU-a", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
  ON_MEMORY;
  m->total = 150754820096ull;
  m->free = m->total - (m->used = 512 << 20);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) {
  memset(p, 0, sizeof *p);
  p->domain = index_of(d) ? 0x10000 : 0;
  p->bus = 0x3b;
  return 0;
}
"""
READ = """
import json, pathlib, sys
from tests.modules.agent_code import nvml
print(json.dumps(nvml.read(pathlib.Path(sys.argv[1]), pathlib.Path("/nowhere"))))
"""
READ_WITH_LOG = """
import json, pathlib, sys
from tests.modules.agent_code import nvml
answers = nvml.read(pathlib.Path("/nowhere"), pathlib.Path(sys.argv[1]))
print(json.dumps([[gpu["uuid"] for gpu in answers.gpus], answers.health, answers.troubles]))
"""
REPORT = """
import json, sys
from tests.modules.agent_code import gpu_report
troubles = []
answers = gpu_report.GpuReading(float(sys.argv[1])).result(troubles.append)
print(json.dumps([answers.gpus, troubles]))
"""


@pytest.fixture
def sysfs(tmp_path):
    """Write what the kernel says of where GPUs hang."""
    for address, node in (("0000:3b:00.0", 2), ("10000:3b:00.0", -1)):
        directory = tmp_path / f"sys/bus/pci/devices/{address}"
        directory.mkdir(parents=True)
        (directory / "numa_node").write_text(f"{node}\n")
    return tmp_path / "sys"


@pytest.fixture
def driver(tmp_path):
    """Return a function that creates a driver with given faults and queries it in a process of its own."""

    def ask(script, argument, *broken):
        library = tmp_path / "libnvidia-ml.so.1"
        build = ["gcc", "-shared", "-fPIC", *broken, "-x", "c", "-", "-o", library]
        subprocess.run(build, input=DRIVER, text=True, check=True)
        return _asked(tmp_path, script, argument)

    return ask


def _asked(libraries, script, argument):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    command = [sys.executable, "-c", script, str(argument)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout)


def _gpu(index, uuid, numa_node, address):
    return {
        "index": index,
        "uuid": uuid,
        "model": "NVIDIA H200",
        "mem_bytes": 150754820096,
        "mem_used_bytes": 512 << 20,
        "numa_node": numa_node,
        "parent_uuid": None,
        "mig_profile": None,
        "fraction": None,
        "address": address,
    }


def test_gpus_are_read_from_the_driver(driver, sysfs, tmp_path):
    gpus, processes, troubles, _, health, _ = driver(READ, sysfs)
    assert gpus == [_gpu(0, "GPU-a", 2, "0000:3b:00.0"), _gpu(1, "GPU-b", None, "10000:3b:00.0")]
    # So old a driver says nothing of health.
    nothing = {"ecc_errors": None, "remap_failed": None, "remap_pending": None, "throttled": [], "recovery": None}
    assert [entry.items() >= nothing.items() for entry in health] == [True, True]
    assert processes == {"GPU-a": None, "GPU-b": None}
    assert troubles == []
    assert [gpu["numa_node"] for gpu in driver(READ, tmp_path / "nothing")[0]] == [None, None]


def test_a_host_without_a_driver_has_no_gpus(tmp_path):
    assert _asked(tmp_path, REPORT, 5) == [[], []]


@pytest.mark.parametrize(
    ("broken", "trouble"),
    [
        ("return 9", "the GPU driver does not answer: nvmlInit_v2: Driver Not Loaded"),
        ("pause()", "the GPU driver does not answer within 0.5 s"),
        ("__builtin_trap()", "the GPU driver ends the process that asks it (wait status"),
    ],
)
def test_a_broken_driver_is_reported_and_breaks_nothing(driver, broken, trouble):
    patience_s = 0.5 if broken == "pause()" else 30
    gpus, (warning,) = driver(REPORT, patience_s, f"-DON_INIT={broken}")
    assert gpus == []
    assert warning.startswith(trouble)


def test_a_lost_gpu_is_reported_and_the_others_stay(driver):
    gpus, troubles = driver(REPORT, 30, "-DON_MEMORY=if (index_of(d) == 0) return 15")
    assert [gpu["uuid"] for gpu in gpus] == ["GPU-b"]
    assert troubles == ["GPU 0 is left out: the GPU driver does not answer: nvmlDeviceGetMemoryInfo: GPU is lost"]


def test_each_symptom_that_the_driver_and_the_log_tell_is_reported(fake_gpus):
    folder = fake_gpus("--gpus", "2")
    log = folder / "state.kmsg"

    def health(*ails):
        for gpu, symptom, value in ails:
            subprocess.run([folder / "fakegpu", "ail", str(gpu), symptom, str(value)], check=True)
        return _asked(folder, READ_WITH_LOG, log)

    uuids, well, troubles = health()
    assert troubles == []
    assert well == [{**healthy_gpu("", index), "uuid": uuid} for index, uuid in enumerate(uuids)]
    checked(GpuHealthReport, well[0], "health")
    sick = [(1, "ecc", 3), (1, "remap-failed", 1), (1, "remap-pending", 1), (1, "clocks", 0x8C), (1, "recovery", 2)]
    _, ill, _ = health(*sick, (1, "xid", 79), (1, "xid", 13), (1, "xid", 79))
    assert ill[0] == well[0]
    assert ill[1] == well[1] | {
        "xids": [{"number": 13, "sequence": 2}, {"number": 79, "sequence": 3}],
        "ecc_errors": 3,
        "remap_failed": True,
        "remap_pending": True,
        "throttled": ["hardware slowdown", "power brake"],
        "recovery": "reboot of the host",
    }
    checked(GpuHealthReport, ill[1], "health")
    left, lost, (trouble,) = health((1, "lost", 1))
    assert left == uuids[:1]
    assert (lost[1]["index"], lost[1]["uuid"]) == (1, None)
    assert lost[1]["problem"] == "the GPU driver does not answer: nvmlDeviceGetPciInfo_v3: GPU is lost"
    assert trouble.startswith("GPU 1 is left out: ")
    # Its Xids are known by its address alone.
    assert lost[2]["address"] == "0000:02:00.0"
    assert [xid["number"] for xid in lost[2]["xids"]] == [13, 79]
    _, gone, _ = health((1, "gone", 1))
    assert [(entry["uuid"], entry["problem"]) for entry in gone] == [
        (uuids[0], ""),
        (None, "the driver does not list it"),
    ]
    for entry in (*lost, *gone):
        checked(GpuHealthReport, entry, "health")


@pytest.mark.parametrize(
    ("record", "found"),
    [
        ("4,7,1,-;NVRM: Xid (PCI:0000:3B:00): 79, pid=1, name=x, text", {"0000:3b:00.0": {79: 7}}),
        ("4,7,1,-,caller=T1;NVRM: Xid (PCI:00010000:3b:00.0): 48, pid=1", {"10000:3b:00.0": {48: 7}}),
        # Written by a program, or naming an error inside of another text.
        ("12,7,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1", {}),
        ("4,7,1,-;NVRM: name=NVRM: Xid (PCI:0000:3b:00): 79, pid=1", {}),
        ("4,7,1,-;eth0: up", {}),
    ],
)
def test_only_the_drivers_own_records_in_the_log_are_xids(tmp_path, record, found):
    (tmp_path / "kmsg").write_text(f" SUBSYSTEM=pci\n{record}\n")
    assert xids.read_xids(tmp_path / "kmsg") == found


def test_the_log_of_this_machine_can_be_read_to_its_end():
    assert isinstance(xids.read_xids(), dict)


ONE, OTHER, OUTER = "1" * 64, "2" * 64, "f" * 64


@pytest.fixture
def proc(tmp_path):
    """Write to which control groups processes belong, as the kernel says it on different hosts."""
    groups = {
        10: f"12:memory:/docker/{ONE}\n0::/\n",
        11: f"0::/system.slice/docker-{ONE}.scope\n",
        12: f"12:memory:/docker/{OUTER}/docker/{OTHER}\n",
        13: "0::/user.slice/session-1.scope\n",
        15: "0::/system.slice/muster-mps.service\n",
        16: "0::/user.slice/session-1.scope\n",
    }
    for pid, text in groups.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
        name = "nvidia-cuda-mps-server"[:15] if pid == 15 else "python (3) x"
        ticks = (95 if pid == 16 else 10) * os.sysconf("SC_CLK_TCK")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {' 0' * 18} {ticks} 0 0\n")
    return tmp_path


def test_the_memory_of_each_process_is_its_containers(proc):
    answers = nvml.Answers([], {"GPU-a": [(10, 1), (11, 2), (12, 4), (13, 8), (14, 16)], "GPU-b": []}, [])
    assert gpu_report.processes_by_container(answers, [ONE, OTHER], proc) == {
        "GPU-a": {ONE: [1, 2], OTHER: [4]},
        "GPU-b": {ONE: [], OTHER: []},
    }


def test_processes_of_no_session_are_strangers_unless_they_have_just_begun_or_serve_mps(proc):
    gpus = [{"uuid": "MIG-a", "parent_uuid": "GPU-a"}, {"uuid": "GPU-b", "parent_uuid": None}]
    on_it = [(pid, 1) for pid in (10, 11, 12, 13, 14, 15, 16)]
    answers = nvml.Answers(gpus, {"MIG-a": on_it, "GPU-b": None}, [])
    assert gpu_report.strangers(answers, [ONE, OTHER], proc, lambda: 100.0) == {"GPU-a": [13]}
    assert gpu_report.strangers(answers, [ONE], proc, lambda: 130.0) == {"GPU-a": [12, 13, 16]}


def test_memory_that_the_driver_does_not_know_is_not_made_up(proc):
    answers = nvml.Answers([], {"GPU-a": [(10, None), (11, 2), (12, 4)], "GPU-b": None}, [])
    assert gpu_report.processes_by_container(answers, [ONE, OTHER], proc) == {"GPU-a": {ONE: [None, 2], OTHER: [4]}}
    assert [gpu_report.sum_of_known(amounts) for amounts in ([None, 2], [4, 2], [], None)] == [None, 6, 0, None]


WHOLE_REPORT = """
import json, sys
from tests.modules.agent_code import engine_api, host_report
report = host_report.gather_report(engine_api.EngineApi(), sys.argv[1], "/nowhere", sys.exit)
print(json.dumps(report))
"""
CUT = """
import ctypes, json, pathlib, sys
from tests.modules.agent_code import nvml

library = ctypes.CDLL("libnvidia-ml.so.1")
gpu, pointer = ctypes.c_void_p(), ctypes.byref
library.nvmlInit_v2()
library.nvmlDeviceGetHandleByIndex_v2(0, pointer(gpu))
assert library.nvmlDeviceSetMigMode(gpu, 1, pointer(ctypes.c_int())) == 0
for profile in (19, 9):
    instance = ctypes.c_void_p()
    assert library.nvmlDeviceCreateGpuInstance(gpu, profile, pointer(instance)) == 0
    number = {19: 0, 9: 2}[profile]
    info = (ctypes.c_uint * 9)()
    assert library.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0, info) == 0
    assert library.nvmlGpuInstanceCreateComputeInstance(instance, info[0], pointer(ctypes.c_void_p())) == 0
print(json.dumps(nvml.read(pathlib.Path(sys.argv[1]))))
"""
MIB = 1 << 20


@pytest.fixture
def fake_gpus(tmp_path):
    """Return a function that makes the machine's fake GPUs, and gives the directory of their driver and programs."""

    def make(*settings):
        built = tmp_path / "gpus"
        built.mkdir()
        made = ["make", "--silent", "-C", ROOT / "tests/fake_driver", f"OUT={built}", f"STATE={built}/state"]
        subprocess.run(made, check=True, capture_output=True)
        subprocess.run([built / "fakegpu", "init", *settings], check=True)
        (built / "state").chmod(0o666)
        return built

    return make


def _add_c_library(folder):
    """Let the programs of a folder run in an image that has no C library; return the loader."""
    listed = subprocess.run(["ldd", folder / "smi"], capture_output=True, text=True, check=True).stdout
    for path in {word for word in listed.split() if word.startswith("/")}:
        shutil.copy(path, folder)
    return next(folder.glob("ld-*"))


def test_the_use_of_a_containers_processes_is_reported_by_gpu(cluster, fake_gpus):
    folder = fake_gpus("--gpus", "2", "--context", str(10 * MIB))
    loader = _add_c_library(folder)
    smi = f"sleep 100 | {loader} --library-path {folder} {folder}/smi hold"
    one, other = (gpu["uuid"] for gpu in _asked(folder, READ, "/nowhere")[0])
    gang = session(
        ["main1", "sub1"],
        mounts=[{"folder": folder.name, "target": str(folder), "read_only": False}],
        gpus=[
            {"uuid": uuid, "amount": 500, "capacity": 2000, "mem_bytes": 50 * MIB, "compute": 250}
            for uuid in (one, other, "GPU-gone")
        ],
        main1={"command": ["sh", "-c", f"{smi} {64 * MIB} 1 & {smi} {32 * MIB} 1"]},
    )
    assert cluster.converge(gang)["sessions"][0]["error"] is None
    entry = next(entry for name, entry in cluster.containers().items() if name.endswith("main1"))
    for size in (64, 32):
        log_with(cluster, entry["Id"], f"holds {size * MIB};".encode())
    report = _asked(folder, WHOLE_REPORT, cluster.name)
    used = [{gpu["uuid"]: gpu["used_bytes"] for gpu in kernel["gpus"]} for kernel in report["kernels"]]
    assert used == [{one: 0, other: 116 * MIB, "GPU-gone": None}, {one: 0, other: 0, "GPU-gone": None}]
    assert [(gpu["uuid"], gpu["mem_used_bytes"]) for gpu in report["gpus"]] == [(one, 0), (other, 116 * MIB)]


def test_a_gpu_in_mig_mode_is_reported_as_its_instances(fake_gpus):
    folder = fake_gpus("--gpus", "2", "--mem", str(143771 * MIB), "--mig")
    gpus, processes, troubles, _, health, _ = _asked(folder, CUT, folder / "nothing")
    assert troubles == []
    whole = gpus.pop()
    assert [gpu.pop("uuid")[:4] for gpu in gpus] == ["MIG-", "MIG-"]
    (parent,) = {gpu.pop("parent_uuid") for gpu in gpus}
    assert parent.startswith("GPU-")
    assert parent not in processes
    assert [entry["uuid"] for entry in health] == [parent, whole["uuid"]]
    shared = {"index": 0, "model": whole["model"], "mem_used_bytes": 0, "numa_node": None, "address": "0000:01:00.0"}
    assert gpus == [
        {**shared, "mem_bytes": 17971 * MIB, "mig_profile": "1g.18gb", "fraction": 124},
        {**shared, "mem_bytes": 71885 * MIB, "mig_profile": "3g.71gb", "fraction": 428},
    ]
    assert (whole["index"], whole["parent_uuid"], whole["fraction"]) == (1, None, None)


@pytest.mark.parametrize(
    ("text", "costs"), [('{"GPU-a": 553648128}', {"GPU-a": 553648128}), ("[1]", {}), ("{", {}), (None, {})]
)
def test_what_a_context_costs_is_read_beside_the_gpu_libraries(tmp_path, text, costs):
    if text is not None:
        (tmp_path / "CONTEXTS").write_text(text)
    assert gpu_report.context_costs(tmp_path) == costs
