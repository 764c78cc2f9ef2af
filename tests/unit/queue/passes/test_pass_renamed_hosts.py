"""A host that the inventory gives another name while sessions run there: they go on, and are the former agent's."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.session import SessionState
from tests.simulated.control_node import LOST_AFTER_S, an_agent

S = SessionState


@pytest.fixture
def node(control_node):
    """Return a control node with a session that runs on a1, which the inventory then names a9, and with a2."""
    made = control_node(an_agent("a1", cpus=4), an_agent("a2", cpus=4))
    made.ran = made.submit(agents=("a1",), command="train")
    made.run()
    assert made.state(made.ran) is S.RUNNING
    rename(made, "a1", "a9")
    return made


def rename(node, before, after):
    host = node.gateway.agents.pop(before)
    host.id = after
    node.gateway.agents[after] = host


def agent_of(node, agent_id):
    return next(agent for agent in node.store.agents.all() if agent.id == agent_id)


def passes(node, seconds):
    for _ in range(int(seconds // 30) + 1):
        node.now += 30
        node.run()


def test_what_runs_goes_on_and_the_problem_names_both_ways_out(node):
    there, here = node.submit(agents=("a9",)), node.submit(agents=("a2",))
    passes(node, LOST_AFTER_S * 3)
    assert [container.state for container in node.gateway.agents["a9"].containers.values()] == ["running"]
    assert node.state(node.ran) is S.RUNNING
    assert agent_of(node, "a1").state is AgentState.UNREACHABLE
    assert agent_of(node, "a9").problem == (
        f"its host runs sessions that were placed on a1 ({node.ran.id[:8]}): give it that name in the inventory until"
        " they have ended, or end them with `muster terminate`"
    )
    assert (node.state(there), node.state(here), agent_of(node, "a2").problem) == (S.PENDING, S.RUNNING, "")


def test_under_its_former_name_all_is_as_it_was(node):
    passes(node, 60)
    rename(node, "a9", "a1")
    there = node.submit(agents=("a1",))
    passes(node, 60)
    assert (agent_of(node, "a1").state, agent_of(node, "a1").problem) == (AgentState.ALIVE, "")
    assert (node.state(node.ran), node.state(there)) == (S.RUNNING, S.RUNNING)
    assert {agent.id for agent in node.store.agents.all()} == {"a1", "a2"}


def test_a_command_that_ends_under_the_new_name_succeeds_under_the_former(node):
    passes(node, 60)
    (container,) = node.gateway.agents["a9"].containers.values()
    container.end(0)
    passes(node, LOST_AFTER_S * 2)
    assert node.state(node.ran) is S.RUNNING
    rename(node, "a9", "a1")
    passes(node, 60)
    assert (node.state(node.ran), node.session(node.ran).reason) == (S.TERMINATED, "the command ended with exit code 0")


def test_sessions_that_a_user_ends_leave_the_host_to_its_new_name(node):
    passes(node, 60)
    node.end(node.ran)
    there = node.submit(agents=("a9",))
    passes(node, LOST_AFTER_S * 2)
    assert (node.state(node.ran), node.state(there), agent_of(node, "a9").problem) == (S.TERMINATED, S.RUNNING, "")
    assert list(node.gateway.agents["a9"].containers) == [there.id]
    assert {agent.id for agent in node.store.agents.all()} == {"a2", "a9"}


def test_an_agent_that_the_inventory_leads_to_anothers_host_keeps_what_it_had(control_node):
    """Such as by an address that was copied from another line."""
    node = control_node(an_agent("a1", cpus=4), an_agent("a2", cpus=4))
    first, second = (node.submit(agents=(name,)) for name in ("a1", "a2"))
    node.run()
    right = node.gateway.agents["a2"]
    node.gateway.agents["a2"] = replace(node.gateway.agents["a1"], id="a2")
    passes(node, LOST_AFTER_S * 2)
    assert agent_of(node, "a2").problem.startswith("its host runs sessions that were placed on a1")
    assert [container.state for container in node.gateway.agents["a1"].containers.values()] == ["running"]
    node.gateway.agents["a2"] = right
    passes(node, 60)
    assert [node.state(session) for session in (first, second)] == [S.RUNNING, S.RUNNING]
    assert (agent_of(node, "a2").problem, list(right.containers)) == ("", [second.id])


def test_a_host_that_left_under_any_name_is_lost_with_its_sessions(node):
    del node.gateway.agents["a9"]
    passes(node, LOST_AFTER_S * 2)
    assert node.state(node.ran) is S.TERMINATED
