"""The lab, provisioned, and control nodes of their own for its tests."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.control_node import NOTHING
from tests.lab.bring_up import bring_up, is_up
from tests.lab.control_node import LabControlNode
from tests.lab.lab import Lab

HOSTS = 3
NewLabNode = Callable[..., LabControlNode]


@pytest.fixture(scope="session")
def lab() -> Lab:
    """Three provisioned hosts. A lab that is up, and was provisioned by these very roles, is taken as it is."""
    if not is_up(HOSTS):
        assert bring_up(HOSTS) == 0
    return Lab()


@pytest.fixture(scope="session")
def new_lab_node(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewLabNode]:
    """Makes control nodes; at the end of the tests nothing of theirs may be left on any host."""
    nodes: list[LabControlNode] = []

    def make(**settings: Any) -> LabControlNode:
        node = LabControlNode(tmp_path_factory.mktemp("node"), f"lab-{secrets.token_hex(4)}", settings)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.end_everything()
        node.stop_daemon()
    left = {(node.cluster, host.name): lab.left_on(host.name, node.cluster) for node in nodes for host in lab.hosts}
    assert {place: what for place, what in left.items() if what != NOTHING} == {}


@pytest.fixture(scope="session")
def lab_node(new_lab_node: NewLabNode) -> LabControlNode:
    """The control node that most tests share, with its daemon running."""
    shared = new_lab_node()
    shared.start_daemon()
    return shared
