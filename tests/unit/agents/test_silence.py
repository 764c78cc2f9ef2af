"""When the silence of agents is that of the control node's own network."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import HAS_LEFT, NAMES_NOBODY, Agent, AgentState
from muster.core.agents.agent_connection import AgentConnection
from muster.core.agents.silence import cluster_problem, excused, is_cut_off
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW


def remote(agent_id: str) -> Agent:
    return replace(make_agent(agent_id), connection=AgentConnection(connection="ssh"))


def cluster(answering: int, silent: int) -> list[Agent]:
    agents = [remote(f"a{number}") for number in range(answering + silent)]
    return [*agents[:answering], *(agent.unanswered("no", NOW, reached=False) for agent in agents[answering:])]


@pytest.mark.parametrize(
    ("answering", "silent", "cut_off"),
    [
        (1, 0, False),
        (0, 1, True),
        (0, 2, True),
        (1, 1, False),
        (1, 2, False),
        (1, 4, False),
        (1, 5, True),
        (2, 8, False),
    ],
)
def test_the_control_node_is_cut_off_when_nearly_all_agents_are_silent(answering, silent, cut_off):
    agents = cluster(answering, silent)
    assert is_cut_off(agents) == cut_off
    assert (agents[-1].id in excused(agents)) == cut_off
    assert bool(cluster_problem(agents)) == cut_off


def test_a_host_that_is_reached_shows_that_the_network_works():
    agents = [remote("a1").unanswered("its engine does not answer", NOW), *cluster(0, 1)]
    assert not is_cut_off(agents)
    assert not excused(agents)


@pytest.mark.parametrize(
    "other",
    [
        make_agent("local"),
        replace(remote("lost"), state=AgentState.LOST),
        remote("left").unanswered(HAS_LEFT, NOW, reached=False),
    ],
)
def test_these_are_no_witnesses_of_the_network(other):
    silent = remote("a1").unanswered("no", NOW, reached=False)
    answering = replace(make_agent("local"), connection=AgentConnection(connection="local"))
    agents = [silent, other if other.id != "local" else answering]
    assert is_cut_off(agents)
    assert excused(agents) == {"a1"}


def test_an_agent_that_has_left_the_inventory_may_be_lost_in_any_case():
    left = remote("left").unanswered(HAS_LEFT, NOW, reached=False)
    assert excused([left, *cluster(0, 1)]) == {"a0"}


def test_the_problem_says_what_is_kept_and_what_to_do():
    assert cluster_problem(cluster(0, 3)).startswith("3 of 3 agents do not answer: the network of the control node")
    assert "put another host in its place in the inventory" in cluster_problem(cluster(0, 1))
    unnamed = [agent.unanswered(NAMES_NOBODY, NOW, reached=False) for agent in cluster(3, 0)]
    assert cluster_problem(unnamed).startswith("the inventory names no agent: put it right.")
