"""What runs on agents when the control node has a new database: nobody knows whether by mistake."""

import pytest

from muster.core.model.session import SessionState
from muster.core.turn.foreign_kernels import databases_of
from tests.simulated.control_node import an_agent

S = SessionState


@pytest.fixture
def node(control_node):
    """Return a control node with a session that runs on a1, and with another agent."""
    made = control_node(an_agent("a1", cpus=4), an_agent("a2", cpus=4))
    made.ran = made.submit(agents=("a1",))
    made.run()
    assert made.state(made.ran) is S.RUNNING
    return made


def with_a_new_database(node, empty_database):
    node.store.close()
    (node.directory / "muster.db").rename(node.directory / "former.db")
    (node.directory / "muster.db").write_bytes(empty_database.read_bytes())
    node.open()


def problem_of(node, agent_id):
    return next(agent.problem for agent in node.store.agents.all() if agent.id == agent_id)


def test_a_new_database_ends_nothing_that_ran_before_it_and_works_with_the_other_agents(node, empty_database):
    with_a_new_database(node, empty_database)
    node.run()
    there, here = node.submit(agents=("a1",)), node.submit(agents=("a2",))
    for _ in range(3):
        node.run()
    assert list(node.gateway.agents["a1"].containers) == [node.ran.id]
    assert node.gateway.agents["a1"].containers[node.ran.id].state == "running"
    assert problem_of(node, "a1").startswith(f"it has containers that another database launched ({node.ran.id[:8]})")
    assert (node.state(there), node.state(here), problem_of(node, "a2")) == (S.PENDING, S.RUNNING, "")


def test_what_ran_before_is_removed_when_somebody_says_so(node, empty_database):
    with_a_new_database(node, empty_database)
    there = node.submit(agents=("a1",))
    node.run()
    node.store.queue.disown_unknown(databases_of(node.store.agents.all()))
    for _ in range(2):
        node.run()
    assert (problem_of(node, "a1"), node.state(there)) == ("", S.RUNNING)
    assert list(node.gateway.agents["a1"].containers) == [there.id]


def test_an_agent_is_taken_in_when_what_ran_before_is_gone(node, empty_database):
    with_a_new_database(node, empty_database)
    there = node.submit(agents=("a1",))
    node.run()
    node.gateway.agents["a1"].containers.clear()
    node.run()
    assert (problem_of(node, "a1"), node.state(there)) == ("", S.RUNNING)
