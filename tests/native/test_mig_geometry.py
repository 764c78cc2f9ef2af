"""What divides GPUs into MIG instances: all of it or nothing, and back to what was found."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shipped_program import as_shipped

PROGRAM = as_shipped("roles/fgpu/files/mig_geometry.py")
H200_BYTES = 143771 << 20
MIXED = ["1g.18gb", "2g.35gb", "3g.71gb"]


@pytest.fixture
def geometry(fake_driver, tmp_path: Path) -> Callable[..., dict]:
    """Runs the program: what it printed, or raises with the line that it failed with."""
    fake_driver.init(2, H200_BYTES, "--mig")

    def run(command: str, profiles: object = (), busy: tuple[str, ...] = ()) -> dict:
        done = subprocess.run(
            [sys.executable, "-IS", "-c", PROGRAM, command, tmp_path / "mig"],
            input=json.dumps({"profiles": profiles, "busy": busy}),
            env={**os.environ, "LD_LIBRARY_PATH": str(fake_driver.directory)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return json.loads(done.stdout)

    return run


def instances(fake_driver) -> list[int]:
    """Return the instances' memory in GiB."""
    devices = fake_driver.status()["devices"]
    return [round(device["mem_bytes"] / (1 << 30)) for device in devices if device["uuid"].startswith("MIG-")]


def test_gpus_are_divided_once_whatever_the_order_of_the_profiles(geometry, fake_driver) -> None:
    planned = geometry("plan-apply", MIXED)
    assert planned["changed"]
    assert instances(fake_driver) == []
    assert geometry("apply", MIXED) == planned
    assert sorted(instances(fake_driver)) == [18, 18, 35, 35, 70, 70]
    assert geometry("apply", list(reversed(MIXED))) == {"changed": False, "gpus": []}
    assert geometry("plan-apply", MIXED) == {"changed": False, "gpus": []}


def test_the_original_geometry_can_be_restored(geometry, fake_driver) -> None:
    geometry("apply", MIXED)
    geometry("apply", ["7g.141gb"])
    assert geometry("plan-restore")["changed"]
    assert geometry("restore")["gpus"][0] == {"gpu": "GPU 0 (Fake GPU)", "was": ["7g.141gb"], "is": None}
    assert instances(fake_driver) == []


def test_after_a_reboot_the_geometry_is_the_one_that_was_wanted(geometry, fake_driver) -> None:
    geometry("apply", ["2g.35gb", "2g.35gb"])
    geometry("restore")
    assert geometry("boot")["changed"]
    assert instances(fake_driver) == [35, 35, 35, 35]


@pytest.mark.parametrize("trouble", ["lost", "used"])
def test_after_a_reboot_a_gpu_that_fails_keeps_no_other_from_its_geometry(geometry, fake_driver, trouble) -> None:
    """The first of two has fallen off the bus, or a program that watches GPUs has it already."""
    geometry("apply", ["2g.35gb", "2g.35gb"])
    geometry("restore")
    environment = {"LD_LIBRARY_PATH": str(fake_driver.directory)}
    if trouble == "lost":
        subprocess.run([fake_driver.directory / "fakegpu", "ail", "0", "lost", "1"], check=True)
        with pytest.raises(RuntimeError, match=r"^GPU 0: .*GPU is lost"):
            geometry("boot")
    else:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [fake_driver.directory / "smi", "hold", "1048576"]
        with subprocess.Popen(command, env=environment, **pipes) as holder:
            holder.stdout.readline()
            with pytest.raises(RuntimeError, match=r"^GPU 0 .*processes use it"):
                geometry("boot")
            holder.stdin.close()
    assert instances(fake_driver) == [35, 35]


def test_the_most_precise_model_says_the_profiles(geometry, fake_driver) -> None:
    geometry("apply", {"default": ["7g.141gb"], "fake gpu": ["1g.18gb"], "gpu": ["2g.35gb"], "fake": []})
    assert instances(fake_driver) == [18, 18]


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        (["1g.99gb"], "1g.99gb is no profile of it; it offers 7 of 1g.18gb, 3 of 2g.35gb, 2 of 3g.71gb"),
        (["3g.71gb"] * 3, "it cannot hold 3g.71gb, 3g.71gb, 3g.71gb at once"),
        ({"A100": ["1g.5gb"]}, "no GPU is divided, and fgpu_mig_profiles names no profiles for Fake GPU"),
        ("3g.71gb", "fgpu_mig_profiles: '3g.71gb' is no list of profiles; write one as in"),
        ({"Fake GPU": "3g.71gb"}, "fgpu_mig_profiles: {'Fake GPU': '3g.71gb'} is no list of profiles; write one as in"),
        ([1], r"fgpu_mig_profiles: \[1\] is no list of profiles; write one as in"),
    ],
)
def test_an_impossible_geometry_leaves_the_gpus_unchanged(geometry, fake_driver, profiles, message: str) -> None:
    before = fake_driver.status()
    with pytest.raises(RuntimeError, match=message) as refused:
        geometry("apply", profiles)
    assert str(refused.value).count("\n") == 1
    assert fake_driver.status() == before
    geometry("apply", ["3g.71gb", "3g.71gb"])
    if isinstance(profiles, list):
        with pytest.raises(RuntimeError, match=message):
            geometry("apply", profiles)
    assert sorted(instances(fake_driver)) == [70, 70, 70, 70]


def test_a_card_without_mig_is_refused(geometry, fake_driver) -> None:
    fake_driver.init()
    with pytest.raises(RuntimeError, match=r"GPU 0 \(Fake GPU\) has no MIG; leave its model out of fgpu_mig_profiles"):
        geometry("apply", MIXED)


def test_an_instance_that_a_session_has_stays(geometry, fake_driver) -> None:
    geometry("apply", MIXED)
    held = next(uuid for uuid in fake_driver.uuids() if uuid.startswith("MIG-"))
    with pytest.raises(RuntimeError, match=r"GPU 0 .* a session has it; drain this agent"):
        geometry("apply", ["7g.141gb"], busy=(held,))
    assert held in fake_driver.uuids()
    assert geometry("apply", MIXED, busy=(held,))["changed"] is False


def test_a_gpu_that_a_process_uses_stays(geometry, fake_driver) -> None:
    with subprocess.Popen(
        [fake_driver.directory / "smi", "hold", "1048576"],
        env={"LD_LIBRARY_PATH": str(fake_driver.directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.readline()
        for command in ("plan-apply", "apply"):
            with pytest.raises(RuntimeError, match=r"GPU 0 .* processes use it"):
                geometry(command, MIXED)
        holder.stdin.close()
    assert geometry("apply", MIXED)["changed"]
