"""The lab, provisioned, and control nodes of their own for its tests."""

import functools
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.control_node import NOTHING
from tests.lab.bring_up import bring_up, is_up
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab
from tests.waiting import eventually

HOSTS = 3
NewLabNode = Callable[..., LabControlNode]


@pytest.fixture(scope="session")
def lab() -> Lab:
    """Return three provisioned hosts. A lab that is up, and was provisioned by these very roles, is taken as it is."""
    if not is_up(HOSTS):
        assert bring_up(HOSTS) == 0
    return Lab()


@contextmanager
def control_nodes(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewLabNode]:
    """Make control nodes; in the end nothing of theirs may be left on any host."""
    nodes: list[LabControlNode] = []

    def make(**settings: Any) -> LabControlNode:
        node = LabControlNode(tmp_path_factory.mktemp("node"), f"lab-{secrets.token_hex(4)}", settings)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.end_everything()
        # An overlay goes after its session has ended: the swarm may hold it until a later visit to its keeper.
        eventually(functools.partial(_left_anywhere, lab, node), lambda left: left == {})
        node.stop_daemon()


def _left_anywhere(lab: Lab, node: LabControlNode) -> dict[str, dict[str, list[str]]]:
    """Return, by host, what is left of the node's sessions, after a pass if no daemon works its queue."""
    if node.daemon is None:
        node.run("pass", "--wait", check=False)
    left = {host.name: lab.left_on(host.name, node.cluster) for host in lab.hosts}
    return {host: what for host, what in left.items() if what != NOTHING}


@pytest.fixture(scope="module")
def new_lab_node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewLabNode]:
    """Makes control nodes that end with the file: a daemon that runs on would observe during all other tests."""
    with control_nodes(lab, tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="session")
def lab_node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabControlNode]:
    """Yield the control node that most tests share, with its daemon running."""
    with control_nodes(lab, tmp_path_factory) as make:
        shared = make()
        shared.start_daemon()
        yield shared
