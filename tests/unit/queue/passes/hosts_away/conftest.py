"""Three agents and their control node, for tests that say nothing else of theirs."""

from collections.abc import Callable

import pytest

from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import ControlNode, an_agent


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    """Return agents with room for two kernels each; a1 and a2 manage the swarm."""
    roles = {"a1": "manager", "a2": "manager", "a3": "worker"}
    return [an_agent(agent_id, cpus=2, swarm=role) for agent_id, role in roles.items()]


@pytest.fixture
def node(control_node: Callable[..., ControlNode], agents: list[SimulatedAgent]) -> ControlNode:
    return control_node(*agents)
