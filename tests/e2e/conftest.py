"""Control nodes and images that the end-to-end tests share."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import docker
import pytest

from tests.control_node import NOTHING, ControlNode, provision

NewNode = Callable[..., ControlNode]


@pytest.fixture(scope="session", autouse=True)
def provisioned() -> None:
    """Leaves this machine as `playbooks/site.yml` makes an agent. `./dev test` has done so just before."""
    if "MUSTER_PROVISIONED" in os.environ:
        return
    done = provision()
    assert done.code == 0, done.out + done.err


@contextmanager
def control_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewNode]:
    """Make control nodes; in the end nothing of theirs may be left on the host."""
    nodes: list[ControlNode] = []

    def make(**settings: Any) -> ControlNode:
        node = ControlNode(tmp_path_factory.mktemp("node"), f"e2e-{secrets.token_hex(4)}", settings)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.end_everything()
        node.stop_daemon()
        left = node.left_on_host()
        node.remove_traces()
        assert left == NOTHING


@pytest.fixture(scope="module")
def new_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewNode]:
    """Makes control nodes that end with the file: a daemon that runs on would observe during all other tests."""
    with control_nodes(tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlNode]:
    with control_nodes(tmp_path_factory) as make:
        made = make()
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def node(shared_node: ControlNode) -> Iterator[ControlNode]:
    """Yield the control node that most tests share, with its daemon running. End a file's sessions at its end."""
    yield shared_node
    shared_node.end_everything()


@pytest.fixture(scope="session")
def busybox_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield an image that holds nothing but a static busybox: no libc, no account files, no ssh."""
    root = tmp_path_factory.mktemp("busybox")
    (root / "bin").mkdir()
    shutil.copy("/opt/muster/runtime/bin/busybox", root / "bin" / "busybox")
    for applet in ("sh", "env", "hostname", "cat", "ls"):
        (root / "bin" / applet).symlink_to("busybox")
    archive = shutil.make_archive(str(root.parent / "busybox"), "tar", root)
    name = f"muster-e2e/busybox:{secrets.token_hex(4)}"
    repository, tag = name.split(":")
    client = docker.from_env()
    client.api.import_image(archive, repository=repository, tag=tag)
    yield name
    client.images.remove(name, force=True)
