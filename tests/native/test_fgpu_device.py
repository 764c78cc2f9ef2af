"""The check of a real GPU, as far as the fake driver goes: what needs nothing but a driver."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.gpu_checks import classes, compute
from bench.gpu_checks.machine import TEMPORARY, Machine, command_of
from tests.native.virtual_clock import SECOND, VirtualClock

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
CHECK = [sys.executable, ROOT / "bench/fgpu_device.py"]
# The shares of time depend on how quiet this machine is: their figures are there, and are not judged here.
TIMED = {"time", "replays", "classes", "cost"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    subprocess.run([*CHECK, "--build", folder], check=True)
    return folder


@pytest.fixture
def bare_machine(tmp_path):
    """Return the environment of a machine without compiler and make."""
    return {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_all_checks_that_need_only_the_driver_run_without_a_compiler(fake_driver, built, bare_machine):
    fake_driver.init(1, 8 << 30, "--context", str(256 * MIB))
    names = ["context", "driver", "fork", "exports", "pools", "contexts", "folder", "time", "replays"]
    names += ["classes", "cost", "view"]
    words = ["--driver-dir", fake_driver.directory, "--built", built, "--seconds", "1", "--json"]
    done = subprocess.run(
        [*CHECK, "--only", ",".join([*names, "torch"]), *words],
        env=bare_machine,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    results = {result["check"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert list(results) == [*names, "torch"], done.stderr
    judged = {name: result["result"] for name, result in results.items() if name not in TIMED}
    assert judged == {**dict.fromkeys(set(names) - TIMED, "pass"), "torch": "skipped"}, done.stdout + done.stderr
    assert results["context"]["context_mib"] == 256
    driver = results["driver"]
    assert (driver["cap_mib"], driver["allocated_mib"], driver["nvml_mib"]) == (2048, 1792, 2048)
    assert results["fork"]["allocated_mib"] == 2048 - 2 * 256
    assert [results[name]["allocated_mib"] for name in ("exports", "pools")] == [1792, 1792]
    assert (results["contexts"]["contexts"], results["contexts"]["nvml_mib"]) == (8, 2048)
    assert results["view"]["v1"] == results["view"]["v2"] == 2048 * MIB
    # By the machine's clock here, so that other programs change them; the tests below judge them by a virtual one.
    assert min(results["time"]["share_of_0.1"], results["time"]["share_of_0.5"]) > 0
    assert min(results["classes"]["limit_of_0.5"], results["classes"]["guaranteed_beside_best_effort"]) > 0
    assert results["cost"]["launch_us_capped"] > 0


# CuPy itself needs a real GPU: what the check uses of it, by the driver alone.
CUPY = """
import types
from cuda_client import *
class OutOfMemoryError(Exception):
    pass
def empty(size, dtype):
    address = c_uint64()
    if cuda_library.cuMemAlloc_v2(byref(address), c_size_t(size)) == OUT_OF_MEMORY:
        raise OutOfMemoryError
class Device:
    mem_info = property(lambda self: free_and_total())
context()
uint8 = None
cuda_library = cuda
cuda = types.SimpleNamespace(Device=Device, memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
"""


@pytest.mark.parametrize("cap_holds", [True, False])
def test_the_check_of_cupy_judges_what_cupy_gets(fake_driver, built, tmp_path, cap_holds):
    fake_driver.init(1, 8 << 30, "--context", str(300 * MIB))
    (tmp_path / "cupy.py").write_text(CUPY if cap_holds else CUPY + "free_and_total = lambda: (0, 8 << 30)\n")
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *filter(None, sys.path)])
    words = ["--driver-dir", fake_driver.directory, "--built", built, "--only", "cupy", "--json"]
    environment = {"PATH": str(tmp_path), "PYTHONPATH": paths}
    done = subprocess.run([*CHECK, *words], env=environment, capture_output=True, text=True, check=False, timeout=60)
    result = json.loads(done.stdout)
    assert result["result"] == ("pass" if cap_holds else "fail"), done.stderr
    assert result["below_cap_mib"] == ((2048 - 300) % 256 if cap_holds else 2048 - (8 << 10))


# PyTorch itself needs a real GPU: a program that an MPS daemon serves, or refuses.
TORCH = """
import os, sys, types
def get_device_properties(device):
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ and SERVED is None:
        sys.exit("refused")
    return types.SimpleNamespace(multi_processor_count=SERVED if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else 132)
cuda = types.SimpleNamespace(get_device_properties=get_device_properties)
"""


@pytest.mark.parametrize(
    ("starts", "served", "result"), [(1, 33, "skipped"), (0, None, "skipped"), (0, 33, "pass"), (0, 132, "fail")]
)
def test_where_mps_does_not_work_its_check_is_skipped(fake_driver, built, tmp_path, starts, served, result):
    fake_driver.init(1, 8 << 30)
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f"#!/bin/sh\nexit {starts}\n")
    control.chmod(0o755)
    (tmp_path / "torch.py").write_text(f"SERVED = {served}\n{TORCH}")
    words = ["--driver-dir", fake_driver.directory, "--built", built, "--only", "mps", "--json"]
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": paths}
    done = subprocess.run([*CHECK, *words], env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert json.loads(done.stdout)["result"] == result, done.stderr


@dataclass
class ClockedMachine(Machine):
    """A machine whose workloads run by a virtual clock: they begin once all have been given."""

    clock: VirtualClock | None = None

    def start(self, libraries, *words, **more):
        return command_of(*words), self.environment(libraries, **more)

    def together(self, processes, seconds):
        began = self.clock.now / SECOND + 0.5
        running = []
        for command, environment in processes:
            reading, writing = os.pipe()
            os.write(writing, f"{began} {began + seconds}\n".encode())
            os.close(writing)
            running.append(self.clock.start(command, environment, stdin=reading))
            os.close(reading)
        return [json.loads(self.clock.output(process).splitlines()[-1]) for process in running]


@pytest.fixture
def clocked_machine(fake_driver, built, clock):
    fake_driver.init(1, 8 << 30)
    folder, prefix = TEMPORARY.rsplit("/", 1)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as home:
        (uuid,) = fake_driver.uuids()
        yield ClockedMachine(
            Path(home), fake_driver.directory, uuid, 8 << 30, share=0.25, seconds=9, built=built, clock=clock
        )


@pytest.mark.parametrize("check", [compute.check_time, compute.check_replays, classes.check_classes])
def test_checks_of_time_pass_where_the_libraries_hold(clocked_machine, check):
    passed, figures = check(clocked_machine)
    assert passed, figures


HOLD = {
    "limit_of_0.5": 0.49,
    "guaranteed_beside_best_effort": 0.99,
    "best_effort_beside_guaranteed": 0.001,
    "cost_of_pauses": 0.04,
    "best_effort_of_pauses": 0.6,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit_of_0.5", 0.56),
        ("limit_of_0.5", 0.3),
        ("guaranteed_beside_best_effort", 0.9),
        ("best_effort_beside_guaranteed", 0.1),
        ("cost_of_pauses", 0.1),
        ("best_effort_of_pauses", 0.01),
    ],
)
def test_classes_are_judged_by_each_of_their_figures(name, value):
    assert classes.classes_hold(HOLD)
    assert not classes.classes_hold({**HOLD, name: value})


def test_a_check_fails_where_the_libraries_do_not_hold(fake_driver, tmp_path, bare_machine):
    """Libraries whose cap is missing are as good as none: the driver's own, under the paths of ours."""
    fake_driver.init(1, 8 << 30, "--context", str(256 * MIB))
    (tmp_path / "lib").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        code = (fake_driver.directory / name).read_bytes()
        (tmp_path / "lib" / name).write_bytes(code + f"/tmp/muster-fgpu-{'#' * 8}/##".encode())
    names = ["fork", "exports", "pools", "contexts", "folder", "view"]
    words = ["--driver-dir", fake_driver.directory, "--built", tmp_path, "--only", ",".join(names), "--json"]
    done = subprocess.run([*CHECK, *words], env=bare_machine, capture_output=True, text=True, check=False, timeout=240)
    results = {result["check"]: result["result"] for result in map(json.loads, done.stdout.splitlines())}
    assert results == dict.fromkeys(names, "fail")
    assert done.returncode == 1


def test_without_a_compiler_it_says_what_to_do(fake_driver, bare_machine):
    words = ["--driver-dir", fake_driver.directory, "--only", "driver"]
    done = subprocess.run([*CHECK, *words], env=bare_machine, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("fgpu_device.py: there is no gcc and no make here: install the packages gcc and make")
    assert "--build FOLDER" in done.stderr
