"""Control nodes with simulated agents; a test file that needs others defines its own."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import ControlNode, an_agent


@pytest.fixture
def control_node(tmp_path: Path, empty_database: Path) -> Iterator[Callable[..., ControlNode]]:
    """Makes the test's control node, with these agents in its inventory."""
    made: list[ControlNode] = []

    def make(*agents: SimulatedAgent) -> ControlNode:
        shutil.copy(empty_database, tmp_path / "muster.db")
        made.append(ControlNode(tmp_path, *agents))
        return made[0]

    yield make
    for node in made:
        node.store.close()


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    return [an_agent(agent_id, cpus=2, swarm="manager") for agent_id in ("a1", "a2")]


@pytest.fixture
def node(control_node, agents):
    made = control_node(*agents)
    made.run()
    return made


@pytest.fixture
def summer_time_in_summer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the machine be in a zone one hour ahead of UTC, and two in summer."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()
