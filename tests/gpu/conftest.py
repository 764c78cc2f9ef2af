"""A provisioned host with a GPU, and a control node that has it as its agent."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from tests.control_node import ROOT
from tests.gpu.gpu_host import GpuHost, bring_up
from tests.lab.control_node import LabControlNode


@pytest.fixture(scope="session")
def gpu_host() -> GpuHost:
    host = bring_up()
    done = host.provision()
    assert done.code == 0, done.out[-6000:] + done.err
    of_the_driver = [host.driver_file(name) for name in ("smi", "libclock.so")]
    host.copy_to_folder("tools", *of_the_driver, Path(pynvml.__file__), ROOT / "tests/native/cuda_client.py")
    return host


@pytest.fixture(scope="session")
def shared_node(gpu_host: GpuHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabControlNode]:
    directory = tmp_path_factory.mktemp("node")
    node = LabControlNode(directory, f"lab-{secrets.token_hex(4)}", hosts=gpu_host.inventory)
    node.start_daemon()
    yield node
    node.end_everything()
    node.stop_daemon()
    left = gpu_host.run("find", "/run/muster-fgpu", "/run/muster", "-path", f"*/{node.cluster}/*", check=False).out
    assert left == ""


@pytest.fixture
def node(shared_node: LabControlNode) -> Iterator[LabControlNode]:
    """Yield the control node, on which nothing runs before and after a test."""
    yield shared_node
    shared_node.end_everything()
