"""What NVML says of a GPU of which a container has a part."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NVML_NO_PERMISSION
from tests.native.memory.test_usage import MUTEX

NVML_NOT_SUPPORTED, NVML_NOT_FOUND = 3, 6

LOOK = """
import ctypes, json, pynvml
pynvml.nvmlInit()
seen = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))
    first = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(by_uuid, pynvml.nvmlMemory_v2)
    assert (first.total, first.free, first.used) == (second.total, second.free, second.used)
    seen.append([first.total, first.free, first.used, second.reserved])
print(json.dumps(seen))
"""


def look(container):
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=container.environment, capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(done.stdout)


def test_a_process_without_cuda_sees_the_cap_and_what_the_container_has(container):
    limited, whole = look(container)
    assert limited == [CAP, CAP, 0, 0]
    assert whole == [8 << 30, 8 << 30, 0, 128 * MIB]
    holder = container.popen("hold", 512 * MIB)
    assert holder.stdout.readline() == '{"error": 0}\n'
    used = 512 * MIB + CONTEXT
    assert look(container)[0] == [CAP, CAP - used, used, 0]
    holder.kill()
    holder.communicate()
    assert look(container)[0] == [CAP, CAP, 0, 0]


def test_a_client_like_nvidia_smi_sees_the_cap_without_an_environment(container):
    smi = container.driver.directory / "smi"
    done = subprocess.run([smi], env=container.environment, capture_output=True, text=True, check=True, timeout=30)
    limited, whole = done.stdout.splitlines()
    assert f"total {CAP} " in limited
    assert f"total {8 << 30} " in whole


VIEW = """
import ctypes, json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)

def refused(call, *arguments):
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        return error.value

lists = {
    name: [[process.pid, process.usedGpuMemory] for process in getattr(pynvml, f"nvmlDeviceGet{name}")(device)]
    for suffix in ("", "_v2", "_v3")
    for name in (f"{kind}RunningProcesses{suffix}" for kind in ("Compute", "Graphics", "MPSCompute"))
    if hasattr(pynvml, f"nvmlDeviceGet{name}")
}
old = (ctypes.c_ulonglong * 64)()
count = ctypes.c_uint(32)
library = ctypes.CDLL("libnvidia-ml.so.1")
assert library.nvmlDeviceGetComputeRunningProcesses(device, ctypes.byref(count), old) == 0
lists["first version"] = [[old[2 * place] & 0xFFFFFFFF, old[2 * place + 1]] for place in range(count.value)]
details = pynvml.nvmlDeviceGetRunningProcessDetailList(device, pynvml.nvmlProcessDetailList_v1, 0)
lists["details"] = [[process.pid, process.usedGpuMemory] for process in details]
samples = refused(pynvml.nvmlDeviceGetProcessUtilization, device, 0)
rates = pynvml.nvmlDeviceGetUtilizationRates(device)
print(json.dumps({
    "lists": lists,
    "busy": samples if isinstance(samples, int) else [[sample.pid, sample.smUtil] for sample in samples],
    "rates": [rates.gpu, rates.memory],
    "all": refused(pynvml.nvmlDeviceGetSamples, device, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0),
}))
"""
BUSY = """
context(); allocate(MIB)
assert launch(kernel("spin_us_60000000")) == 0
tell(0); wait()
"""


def view(container):
    done = subprocess.run(
        [sys.executable, "-c", VIEW], env=container.environment, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_samples_of_a_process_that_has_ended_are_not_told_again(container):
    """The neighbour's stood before the own one, and nothing of an earlier answer may be read for another one."""
    neighbour, own = (container.driver.start(BUSY, *of) for of in ([], [container.libraries]))
    for process in (neighbour, own):
        process.stdout.readline()
    ask = """
import pynvml, sys
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
for _ in sys.stdin:
    print([sample.pid for sample in pynvml.nvmlDeviceGetProcessUtilization(device, 0)], flush=True)
"""
    asking = subprocess.Popen(
        [sys.executable, "-c", ask], env=container.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    answers = []
    for process in (None, neighbour):
        if process:
            process.kill()
            process.communicate()
        asking.stdin.write("\n")
        asking.stdin.flush()
        answers.append(asking.stdout.readline())
    asking.communicate()
    own.kill()
    own.communicate()
    assert answers == [f"[{own.pid}]\n"] * 2


def test_a_container_sees_its_own_processes_and_utilisation_only(container):
    neighbour = container.driver.start(BUSY)
    neighbour.stdout.readline()
    seen = view(container)
    assert all(processes == [] for processes in seen["lists"].values())
    assert (seen["busy"], seen["rates"]) == (NVML_NOT_FOUND, [0, 0])
    assert seen["all"] == NVML_NOT_SUPPORTED
    own = container.driver.start(BUSY, container.libraries)
    own.stdout.readline()
    idle = container.popen("hold", 2 * MIB)
    idle.stdout.readline()
    seen = view(container)
    mine = [[own.pid, CONTEXT + 2 * MIB], [idle.pid, CONTEXT + 2 * MIB]]
    empty = [processes for name, processes in seen["lists"].items() if name.startswith(("Graphics", "MPS"))]
    full = [processes for name, processes in seen["lists"].items() if not name.startswith(("Graphics", "MPS"))]
    assert empty
    assert len(full) >= 3
    assert all(processes == [] for processes in empty)
    assert all(processes == mine for processes in full)
    # The device is divided between the two that are busy.
    assert (seen["busy"], seen["rates"]) == ([[own.pid, 50]], [50, 25])
    for process in (neighbour, own, idle):
        process.kill()
        process.communicate()


def questions(environment, *words):
    """Return what nvml_questions.py is answered."""
    command = [sys.executable, Path(__file__).with_name("nvml_questions.py"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout)


INVALID, TOO_SMALL, OTHER_VERSION, NO_INSTANCE = 2, 7, 25, 0xFFFFFFFF


def test_every_way_to_ask_is_answered_with_the_containers_own_processes(container):
    neighbour, busy = container.driver.start(BUSY), container.driver.start(BUSY, container.libraries)
    idle = None
    for process in (neighbour, busy):
        process.stdout.readline()
    idle = container.popen("hold", 2 * MIB)
    idle.stdout.readline()
    found = questions(container.environment, "0", "wrong")
    used = CONTEXT + 2 * MIB
    old, new = (
        [[busy.pid, used], [idle.pid, used]],
        [[pid, used, NO_INSTANCE, NO_INSTANCE] for pid in (busy.pid, idle.pid)],
    )

    def full(entries, *errors):
        there = len(entries)
        short = [[TOO_SMALL, there, None]] if there > 1 else [[0, there, entries]]
        return [[TOO_SMALL, there, None], *short, [TOO_SMALL, there, None], [0, there, entries], *errors]

    assert found["ComputeRunningProcesses"] == full(old, INVALID)
    assert found["ComputeRunningProcesses_v2"] == found["ComputeRunningProcesses_v3"] == full(new, INVALID)
    details = full([[*entry, 0] for entry in new], INVALID, OTHER_VERSION)
    assert found["details 0"] == found["details 3"] == details
    sample = [busy.pid, 0, 50, 25, 0, 0]
    assert found["busy"] == full([sample], INVALID)
    assert found["infos"] == full([[0, busy.pid, 50, 25, 0, 0, 0, 0]], INVALID, OTHER_VERSION)
    assert (found["rates"], found["no rates"]) == ([0, 50, 25], INVALID)
    assert found["samples"] == [0, NVML_NOT_SUPPORTED, NVML_NOT_SUPPORTED, 0]
    for name in ("Graphics", "MPSCompute"):
        for version in ("", "_v2", "_v3"):
            empty, without, *_ = found[f"{name}RunningProcesses{version}"]
            assert (empty, without) == ([0, 0, None], [0, 0, []])
            assert found[f"{name}RunningProcesses{version}"][-1] == INVALID
    assert [answer[:2] for answer in found["details 1"][:4]] == 4 * [[0, 0]]
    assert all(found["of no device"])
    assert all(found["memory"])
    busy.kill()
    busy.communicate()
    found = questions(container.environment, "0", "wrong")
    assert [answer[0] for answer in found["busy"][:4]] == 4 * [NVML_NOT_FOUND], "the neighbour's work is not told"
    assert [answer[0] for answer in found["infos"][:4]] == 4 * [NVML_NOT_FOUND]
    assert found["rates"] == [0, 0, 0]
    for process in (neighbour, idle):
        process.kill()
        process.communicate()


@pytest.mark.parametrize("spoilt", ["table", "lock"])
def test_without_a_usable_table_no_process_is_told(container, spoilt):
    container.client("info")
    with container.usage.open("r+b") as table:
        table.seek(MUTEX + 16 if spoilt == "lock" else 0)
        table.write(b"\x7f")  # the kind of no mutex, and no table's first byte
    found = questions(container.environment, "0")
    for name in ("ComputeRunningProcesses", "ComputeRunningProcesses_v2", "details 0", "busy", "infos"):
        assert {status for status, *_ in found[name]} == {NVML_NO_PERMISSION}, name
    assert found["rates"] == [NVML_NO_PERMISSION, 0, 0]


OF_ALL = {
    "nvmlDeviceGetDynamicPstatesInfo": "",
    "nvmlDeviceGetAccountingPids": "byref(count),",
    "nvmlDeviceGetAccountingStats": "7,",
    "nvmlDeviceGetEncoderSessions": "byref(count),",
    "nvmlDeviceGetFBCSessions": "byref(count),",
    "nvmlGpmSampleGet": "",
}


def test_what_tells_of_all_processes_of_a_gpu_is_not_told_of_a_limited_one(container):
    calls = "".join(f"told({name!r}, {words}),\n" for name, words in OF_ALL.items())
    script = f"""
from ctypes import CDLL, byref, c_uint, c_void_p
nvml, device, count = CDLL("libnvidia-ml.so.1"), c_void_p(), c_uint()
def told(name, *words):
    found = c_uint()
    return [nvml[name](device, *words, byref(found)), found.value]
nvml.nvmlInit_v2()
found = []
for index in range(2):
    nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(device))
    found.append([{calls}])
device.value = 0xDEAD
print(found, all(status for status, _ in [{calls}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=container.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    told = [[[NVML_NOT_SUPPORTED, 0]] * len(OF_ALL), [[0, 1]] * len(OF_ALL)]
    assert done.stdout == f"{told} True\n"


def test_of_a_gpu_that_is_not_limited_every_question_is_the_drivers(container):
    script = BUSY.replace("context()", "context(1)")
    working = container.driver.start(script)
    working.stdout.readline()
    plain = {**container.environment, "LD_LIBRARY_PATH": str(container.driver.directory)}
    ours, theirs = (questions(environment, "1") for environment in (container.environment, plain))
    assert ours == theirs
    assert ours["ComputeRunningProcesses"][3][2][0][0] == working.pid
    working.kill()
    working.communicate()


def test_without_usable_limits_nvml_does_not_start(container):
    container.write_limits("nonsense\n")
    script = "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=container.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == f"{NVML_NO_PERMISSION}\n"
    assert len(done.stderr.splitlines()) == 1
