"""The check of a real GPU, as far as the fake driver goes: what needs nothing but a driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
CHECK = [sys.executable, ROOT / "bench/fgpu_device.py"]
# The shares of time depend on how quiet this machine is: their figures are there, and are not judged here.
TIMED = {"time", "replays", "cost"}


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
    names = ["context", "driver", "fork", "exports", "pools", "contexts", "folder", "time", "replays", "cost", "view"]
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
    assert 0 < results["time"]["share_of_0.1"] < results["time"]["share_of_0.5"] < 1
    assert results["cost"]["launch_us_capped"] > 0


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
