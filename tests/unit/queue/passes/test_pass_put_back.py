"""The pass with a database that was put back by other means than `muster restore`, and is older than what runs."""

import shutil

import pytest

from muster.core.model.session import SessionState
from tests.simulated.control_node import ControlNode, an_agent

S = SessionState


@pytest.fixture
def agents():
    return [an_agent(agent_id, cpus=2) for agent_id in ("a1", "a2")]


def put_back(node: ControlNode) -> None:
    """Put a copy of the database in its place that was taken before the latest work."""
    node.store.close()
    (node.directory / "kept.db").rename(node.directory / "muster.db")
    node.open()


def kept(node: ControlNode) -> None:
    node.store.close()
    shutil.copy(node.directory / "muster.db", node.directory / "kept.db")
    node.open()


def test_a_session_that_was_launched_since_runs_on_and_is_not_launched_again(node, agents):
    session = node.submit(cpu=2)
    kept(node)
    node.run()
    [container] = [one for agent in agents for one in agent.containers.values()]
    put_back(node)
    assert node.state(session) is S.PENDING
    node.run()
    assert node.state(session) is S.RUNNING
    assert [one for agent in agents for one in agent.containers.values()] == [container]
    assert "the database did not know when it was put back" in node.session(session).reason


def test_what_waits_begins_once_it_is_known_what_runs(node):
    session = node.submit(cpu=2)
    kept(node)
    put_back(node)
    node.run()
    assert node.state(session) is S.RUNNING
