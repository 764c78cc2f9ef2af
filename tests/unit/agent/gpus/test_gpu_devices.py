"""The device nodes of GPUs: what the engine hears of them, and where systemd finds them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.modules.agent_code import ROOT, device_nodes

LINKS = ROOT / "roles/fgpu/files/gpu_links.py"
DEVICES = """Character devices:
  1 mem
195 nvidia-frontend
234 nvidia-caps
509 nvidia-uvm

Block devices:
  8 sd
"""


@pytest.fixture
def host(tmp_path):
    """Make a host of two GPUs; its nodes are links to a device that every machine has."""
    for address, uuid, minor in (("0000:3b:00.0", "GPU-a", 0), ("0000:5e:00.0", "GPU-b", 1)):
        directory = tmp_path / f"proc/driver/nvidia/gpus/{address}"
        directory.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        (directory / "information").write_text(text)
    (tmp_path / "proc/devices").write_text(DEVICES)
    (tmp_path / "dev/nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"):
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    return tmp_path


def run_links(host: Path) -> list[str]:
    words = [sys.executable, "-I", LINKS, host / "proc", host / "dev"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def nodes(host: Path, *uuids: str) -> list[str]:
    return [Path(path).name for path in device_nodes.nodes_of(uuids, host / "proc", host / "dev")]


def test_the_engine_hears_of_a_containers_own_gpus_and_of_what_all_need(host):
    assert nodes(host, "GPU-b") == ["nvidia1", "nvidiactl", "nvidia-uvm"]
    assert nodes(host, "GPU-b", "GPU-a") == ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
    assert nodes(host) == []
    assert nodes(host, "MIG-c") == []
    assert device_nodes.nodes_of(["GPU-a"], host / "nowhere", host / "dev") == []


def test_each_node_is_linked_where_systemd_looks_also_one_that_is_made_later(host):
    printed = run_links(host)
    made = {link.name: str(link.readlink()) for link in (host / "dev/char").iterdir()}
    assert made == {
        "195:0": "../nvidia0",
        "195:1": "../nvidia1",
        "195:254": "../nvidia-modeset",
        "195:255": "../nvidiactl",
        "234:1": "../nvidia-caps/nvidia-cap1",
        "509:0": "../nvidia-uvm",
        "509:1": "../nvidia-uvm-tools",
    }
    assert len(printed) == len(made)
    assert run_links(host) == []


def test_a_host_without_the_driver_gets_no_links(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc/devices").write_text("Character devices:\n  1 mem\n")
    assert run_links(tmp_path) == []


def test_nodes_without_a_link_are_named(host):
    null = Path("/dev/null").stat().st_rdev
    dev = host / "dev"
    (dev / "nvidia-uvm").unlink()
    (dev / "nvidia-uvm").write_text("no device")
    names = ("nvidia-caps/nvidia-cap1", "nvidia0", "nvidia1", "nvidiactl")
    assert device_nodes.unlinked_nodes(dev) == [str(dev / name) for name in names]
    (dev / "char").mkdir()
    (dev / f"char/{null >> 8 & 0xFFF}:{null & 0xFF}").symlink_to("../nvidia0")
    assert device_nodes.unlinked_nodes(dev) == []
