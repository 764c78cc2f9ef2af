"""What NVML says of a GPU of which a container has a part."""

import json
import subprocess
import sys

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NVML_NO_PERMISSION, Container

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
