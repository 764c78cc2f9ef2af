"""Programs that people use on GPUs, in a container with a share: each sees its own share only, and gets no more."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB

GPU_BYTES = 8 << 30
BLOCK = 64 * MIB
PROGRAMS = Path(sys.executable).parent
HOLD = "context(); allocate(512 * MIB); assert launch(kernel('spin_us_60000000')) == 0; tell(0); wait()"


@pytest.fixture
def busy(fake_driver, container):
    """Keep the GPU busy from within the container and beside it; return the process of the container."""
    processes = [fake_driver.start(HOLD, *libraries) for libraries in ([container.libraries], [])]
    for process in processes:
        assert process.stdout.readline() == "0\n"
    yield processes[0]
    for process in processes:
        process.kill()
        process.communicate()


def output_of(container, *words):
    # cuda-bindings for CUDA 13 warn of a driver of CUDA 12.
    environment = container.environment | {"CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1", "COLUMNS": "200"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_gpustat_shows_the_share_and_the_containers_processes(container, busy):
    limited, whole = json.loads(output_of(container, PROGRAMS / "gpustat", "--json"))["gpus"]
    assert (limited["memory.total"], limited["memory.used"]) == (CAP // MIB, 512 + CONTEXT // MIB)
    assert [process["pid"] for process in limited["processes"]] == [busy.pid]
    # The neighbour has the other half of the time.
    assert limited["utilization.gpu"] == 50
    assert whole["memory.total"] == GPU_BYTES // MIB


def test_nvitop_shows_the_share_and_the_containers_processes(container, busy):
    shown = output_of(container, PROGRAMS / "nvitop", "--once", "--no-unicode")
    assert re.search(r"\b768\.0MiB / 2048MiB\b.*\b50%", shown), shown
    assert re.search(r"\b0B / 8192MiB\b", shown)
    processes = shown[shown.index("Processes:") :]
    assert re.findall(r"^\W+0\s+(\d+)", processes, re.MULTILINE) == [str(busy.pid)]


# Each takes blocks until it is refused, and prints the total that it sees and how many blocks it got.
TAKES_ALL = {
    "cuda-bindings": f"""
from cuda.bindings import driver

def ok(answer):
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
total, count = ok(driver.cuMemGetInfo())[1], 0
assert ok(driver.cuDeviceTotalMem(device)) == total
while (result := driver.cuMemAlloc({BLOCK})[0]) == driver.CUresult.CUDA_SUCCESS:
    count += 1
assert result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, result
print(total, count)
""",
    "cuda.core": f"""
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch

device = Device(0)
device.set_current()
stream = device.create_stream()
program = ObjectCode.from_ptx(b"// the fake driver reads the name only")
launch(stream, LaunchConfig(grid=1, block=1), program.get_kernel("spin_us_1000"))
held = []
try:
    while True:
        held.append(device.allocate({BLOCK}, stream=stream))
except Exception as error:
    assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error), error
stream.sync()
print(driver.cuMemGetInfo()[2], len(held))
""",
    "numba": f"""
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

total, held = cuda.current_context().get_memory_info().total, []
try:
    while True:
        held.append(cuda.device_array({BLOCK}, dtype=numpy.uint8))
except CudaAPIError as error:
    assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error), error
print(total, len(held))
""",
}


@pytest.mark.parametrize("client", TAKES_ALL)
def test_a_client_sees_the_share_and_gets_no_more_than_that(container, fake_driver, client):
    waiting = f"{TAKES_ALL[client]}\nimport sys\nsys.stdout.flush()\nsys.stdin.read()\n"
    environment = container.environment | {"CUDA_PYTHON_DISABLE_MAJOR_VERSION_WARNING": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", waiting], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    told = process.stdout.readline()
    used = fake_driver.used_bytes()
    process.communicate()
    assert (told, process.returncode) == (f"{CAP} {(CAP - CONTEXT) // BLOCK}\n", 0)
    assert used == CAP
    # The next one begins with the whole share.
    assert container.client("fill", "linear", BLOCK)["count"] == (CAP - CONTEXT) // BLOCK
