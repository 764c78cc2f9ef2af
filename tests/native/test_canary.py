"""The canary: nothing starts in a container that would see more of a GPU than its share."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.native.gpu_container import HERE, NATIVE

CAP = 2 << 30


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the canary and the libraries look for limits and state."""
    return tmp_path_factory.mktemp("kernel")


@dataclass
class Canary:
    """A canary run with limits and libraries as given: its exit status, and its output on stderr.

    `proxies` is where our libraries are, `driver` where the driver's own are.
    """

    program: Path
    place: Path
    proxies: Path
    driver: Path

    def __call__(self, gpus: dict[str, int], *libraries: Path, canary: Path | None = None) -> tuple[int, str]:
        entries = "".join(f"gpu {uuid} {cap} 250\n" for uuid, cap in gpus.items())
        limits = f"version 1\nkernel k\ncompute none\ncontext_bytes 0\n{entries}"
        (self.place / "limits").write_text(limits, encoding="utf-8")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
        command = [canary or self.program]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False, timeout=30)
        return done.returncode, done.stderr


@pytest.fixture
def run_canary(fake_driver, build_native: Callable[..., Path], place: Path) -> Canary:
    built = build_native(place / "limits", place)
    (place / "usage").unlink(missing_ok=True)
    return Canary(built / "bin/canary", place, built / "lib", fake_driver.directory)


def test_a_share_that_holds_is_silent(run_canary, fake_driver) -> None:
    first, second = fake_driver.uuids()
    assert run_canary({first: CAP, second: CAP}, run_canary.proxies) == (0, "")


def test_the_drivers_own_libraries_are_refused(run_canary, fake_driver) -> None:
    status, said = run_canary({fake_driver.uuids()[0]: CAP}, run_canary.driver, run_canary.proxies)
    assert status == 1
    assert re.fullmatch(r"muster canary: libnvidia-ml\.so\.1 is \S+/libnvidia-ml\.so\.1 here, which keeps .*\n", said)


def test_one_library_of_ours_does_not_hide_that_the_other_is_not(run_canary, fake_driver, tmp_path: Path) -> None:
    shutil.copy(run_canary.driver / "libcuda.so.1", tmp_path)
    status, said = run_canary({fake_driver.uuids()[0]: CAP}, tmp_path, run_canary.proxies)
    assert (status, said.count("\n")) == (1, 1)
    assert f"libcuda.so.1 is {tmp_path}/libcuda.so.1 here" in said


def test_a_copy_of_ours_for_other_limits_is_refused(run_canary, build_native, fake_driver, tmp_path: Path) -> None:
    generous = build_native(tmp_path / "limits", tmp_path)
    assert run_canary({fake_driver.uuids()[0]: CAP}, generous / "lib")[0] == 1


def test_more_than_the_share_in_sight_is_refused(run_canary, fake_driver, tmp_path: Path) -> None:
    """Libraries in the place of ours, as a build that went wrong would leave them."""
    (tmp_path / "bin").mkdir()
    canary = shutil.copy(run_canary.proxies.parent / "bin/canary", tmp_path / "bin")
    (tmp_path / "lib").symlink_to(fake_driver.directory)
    status, said = run_canary({(uuid := fake_driver.uuids()[0]): CAP}, fake_driver.directory, canary=canary)
    total = f"shows 8192 MiB of {uuid}, and this container's share is 2048 MiB"
    assert (status, said) == (1, f"muster canary: libnvidia-ml.so.1 {total}; tell the administrator\n")


LIMITED = "GPU-22222222-2222-2222-2222-222222222222"
NVML, CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
# What the libraries in the place of ours answer, and which of them the canary then refuses.
ANSWERS = [
    ({}, None),
    ({"nvml_total": CAP, "nvml_total_v2": CAP, "cuda_total": CAP}, None),
    ({"nvml_total": CAP + 1}, NVML),
    ({"nvml_total_v2": CAP + 1}, NVML),
    ({"cuda_total": CAP + 1}, CUDA),
    ({"nvmlInit_v2": 4}, NVML),
    ({"nvmlInit_v2": 9, "nvml_total": CAP + 1}, None),
    ({"nvmlInit_v2": 9, "cuda_total": CAP + 1}, CUDA),
    ({"nvmlDeviceGetHandleByUUID": 6, "nvml_total": CAP + 1}, None),
    ({"nvmlDeviceGetMemoryInfo": 999}, NVML),
    ({"nvmlDeviceGetMemoryInfo_v2": 13, "nvml_total_v2": CAP + 1}, None),
    ({"cuInit": 800}, CUDA),
    ({"cuInit": 100, "cuda_total": CAP + 1}, None),
    ({"cuDeviceGetCount": 999, "cuda_total": CAP + 1}, None),
    ({"cuDeviceGet": 999}, CUDA),
    ({"cuDeviceGetUuid": 999}, CUDA),
    ({"cuDeviceTotalMem_v2": 999}, CUDA),
]


def test_every_answer_of_libraries_in_the_place_of_ours_is_looked_at(run_canary, monkeypatch, tmp_path: Path) -> None:
    for folder in ("bin", "lib"):
        (tmp_path / folder).mkdir()
    canary = shutil.copy(run_canary.program, tmp_path / "bin")
    flags = ["-std=gnu11", "-shared", "-fPIC", f"-I{NATIVE}", f"-Wl,-soname,{NVML}"]
    subprocess.run(["gcc", *flags, HERE / "canary_libraries.c", "-o", tmp_path / "lib" / NVML], check=True)
    shutil.copy(tmp_path / "lib" / NVML, tmp_path / "lib" / CUDA)
    wrong = []
    for answers, refused in ANSWERS:
        with monkeypatch.context() as patch:
            for name, answer in answers.items():
                patch.setenv(name, str(answer))
            status, said = run_canary({LIMITED: CAP}, tmp_path / "lib", canary=canary)
        problem = "shows" if any("total" in name for name in answers) else "refuses to be used in this container"
        expected = f"muster canary: {refused} {problem}" if refused else ""
        if (status, said[: len(expected)], said.count("\n")) != (int(bool(refused)), expected, int(bool(refused))):
            wrong.append((answers, said))
    assert wrong == []


def test_libraries_that_the_loader_does_not_find_are_no_way_past(run_canary, fake_driver, tmp_path: Path) -> None:
    assert run_canary({fake_driver.uuids()[0]: CAP}, tmp_path) == (0, "")


def test_a_limited_gpu_that_is_not_there_is_nobodys(run_canary) -> None:
    absent = {"GPU-00000000-0000-0000-0000-000000000001": CAP}
    assert run_canary(absent, run_canary.proxies) == (0, "")


def test_limits_that_cannot_be_read_start_nothing(run_canary, fake_driver) -> None:
    status, said = run_canary({fake_driver.uuids()[0]: CAP + 1}, run_canary.proxies)
    assert (status, said.count("\n")) == (1, 1)
    assert "cannot be used (the memory of a gpu is bytes, a multiple of 2 MiB)" in said


def test_the_canary_starts_with_any_c_library(run_canary) -> None:
    canary = run_canary.proxies.parent / "bin/canary"
    facts = subprocess.run(["readelf", "-V", "-d", "-W", canary], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([\d.]+)", facts)}
    assert max(versions) <= (2, 17)
    # Before 2.34 these were not part of libc.so.6.
    assert {"libdl.so.2", "libpthread.so.0"} <= set(re.findall(r"\[(lib\S+)\]", facts))
