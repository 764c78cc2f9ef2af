"""What NVML says of a GPU of which a container has a part."""

import json
import subprocess
import sys

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NVML_NO_PERMISSION, Container

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


@pytest.fixture
def container(fake_driver, build_native):
    return Container(fake_driver, build_native).start()


def look(container):
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=container.environment, capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(done.stdout)


def test_a_process_without_cuda_sees_the_cap_and_what_the_container_has(container):
    limited, whole = look(container)
    assert limited == [CAP, CAP, 0, 0]
    assert whole[0] == 8 << 30
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
