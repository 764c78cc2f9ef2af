"""Gangs over several agents: one overlay network, and two words until their commands begin."""

import pytest

from muster.core.model.session import Result, SessionState
from tests.simulated.agents import Failing, Network, SimulatedAgent
from tests.simulated.control_node import an_agent

S = SessionState


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    """Return agents with room for two kernels each; a1 and a2 manage the swarm."""
    roles = {"a1": "manager", "a2": "manager", "a3": "worker", "a4": "worker"}
    return [an_agent(agent_id, cpus=2, swarm=role) for agent_id, role in roles.items()]


@pytest.fixture
def node(control_node, agents):
    return control_node(*agents)


def gang(node, size=4, **values):
    return node.submit(cluster_size=size, cluster_mode="multi-node", **values)


def asked_of(node, agent_id, session):
    """Return what each manifest in turn demanded for the session on this agent."""
    return [
        (entry["desired"], entry.get("release"))
        for manifests in node.gateway.manifests
        for entry in manifests.get(agent_id, {"sessions": ()})["sessions"]
        if entry["id"] == session.id
    ]


def overlays_of(node):
    """Return by agent the overlay names in each of its manifests; None for an agent that keeps no overlays."""
    found = {}
    for manifests in node.gateway.manifests:
        for agent_id, manifest in manifests.items():
            overlays = manifest["overlays"]
            found.setdefault(agent_id, []).append(overlays and [overlay["name"] for overlay in overlays])
    return found


@pytest.mark.parametrize(("size", "span"), [(4, 2), (6, 3)])
def test_a_gang_over_agents_is_launched_everywhere_before_it_is_released_anywhere(node, agents, size, span):
    session = gang(node, size)
    assert node.run().started == [session.id]
    running = node.session(session)
    assert (len(running.agents), running.placed_mode) == (span, "multi-node")
    assert [line.reason for line in node.store.story(session.id)][2:] == [
        "launching", "all containers answer", "running"
    ]  # fmt: skip
    for agent_id in running.agents:
        assert asked_of(node, agent_id, session) == [("launch", False), ("release", None)]
    containers = [c for agent in agents for c in agent.of_session(session.id)]
    assert len(containers) == size
    assert all(c.released for c in containers)
    assert {entry["network"]["driver"] for m in node.gateway.manifests[0].values() for entry in m["sessions"]} == {
        "overlay"
    }


def test_a_gang_on_one_agent_needs_one_word_and_no_overlay(node):
    session = gang(node, 2)
    node.run()
    assert node.state(session) is S.RUNNING
    assert asked_of(node, node.session(session).agents[0], session) == [("launch", True)]
    assert node.gateway.overlays == {}


def test_kernels_count_their_local_rank_on_their_agent(node, agents):
    session = gang(node, 4)
    node.run()
    for agent in agents:
        ranks = [(c.env["LOCAL_RANK"], c.env["WORLD_SIZE"]) for c in agent.of_session(session.id)]
        assert ranks in ([], [("0", "4"), ("1", "4")])
    world = [c.env["WORLD_RANK"] for agent in agents for c in agent.of_session(session.id)]
    assert sorted(world) == ["0", "1", "2", "3"]


def test_local_rank_is_0_in_each_kernel_where_the_spec_says_so(node, agents):
    session = gang(node, 4, local_rank="kernel")
    node.run()
    env = [c.env for agent in agents for c in agent.of_session(session.id)]
    assert [one["LOCAL_RANK"] for one in env] == ["0"] * 4
    assert sorted(one["RANK"] for one in env) == ["0", "1", "2", "3"]


def test_only_the_keeper_makes_and_removes_overlays(node):
    session = gang(node)
    node.run()
    network = node.session(session).network
    assert list(node.gateway.overlays) == [network]
    node.end(session)
    node.run()
    assert node.state(session) is S.TERMINATED
    assert node.gateway.overlays == {}
    assert overlays_of(node)["a1"] == [[network]] * 3 + [[]]
    assert overlays_of(node)["a2"] == [None] * 3


def test_the_keeper_need_not_hold_a_kernel(node):
    holds_the_keeper = node.submit(cpu=2)
    node.run()
    held = node.session(holds_the_keeper).agents
    session = gang(node)
    node.run()
    assert held == ("a1",)
    assert node.session(session).agents == ("a2", "a3")
    assert node.state(session) is S.RUNNING
    assert asked_of(node, "a1", session) == []
    node.end(session)
    node.run()
    assert node.gateway.overlays == {}


def test_another_manager_keeps_the_overlays_when_the_first_is_away(node, agents):
    first = gang(node)
    node.run()
    agents[0].reachable = False
    node.run()
    node.end(first)
    second = gang(node)
    node.run()
    assert node.session(second).agents == ("a3", "a4")
    assert node.state(second) is S.RUNNING
    assert overlays_of(node)["a2"][-1] is not None
    assert node.session(second).network in node.gateway.overlays


def test_without_a_manager_a_gang_that_needs_several_agents_waits_and_says_so(node, agents):
    node.run()
    for agent in agents[:2]:
        agent.reachable = False
    session = gang(node)
    node.run()
    assert node.state(session) is S.PENDING
    assert "no swarm manager answers" in node.session(session).wait.message
    agents[1].reachable = True
    node.run()
    assert node.state(session) is S.RUNNING


def test_an_overlay_that_no_session_accounts_for_is_removed_by_the_keeper(node):
    session = gang(node)
    node.run()
    node.gateway.overlays["muster-stray"] = Network("muster-stray", "overlay", 1, "stray")
    node.run()
    assert list(node.gateway.overlays) == [node.session(session).network]
    assert node.state(session) is S.RUNNING


def test_an_overlay_whose_gang_goes_to_one_agent_next_time_is_removed(node, agents):
    node.run()
    agents[0].next_launches = [Failing.TRANSIENT]
    session = gang(node, 4)
    node.run()
    assert node.state(session) is S.PENDING
    assert node.gateway.overlays == {}
    agents[3].hardware["cpu_count"] = 4
    node.run()
    node.now += 60
    node.run()
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a4",))
    assert node.gateway.overlays == {}


def test_a_kernel_that_dies_before_the_second_word_has_failed_a_session_that_began(node, agents):
    """The other agent has released its kernels: the commands do not begin again."""
    node.run()
    session = gang(node)

    def kill_one_when_all_answer():
        if len(node.gateway.manifests) == before + 2:
            agents[0].containers[session.kernels[0].id].end(1)

    before = len(node.gateway.manifests)
    node.gateway.meanwhile = kill_one_when_all_answer
    node.run()
    failed = node.session(session)
    assert (failed.state, failed.result) == (S.TERMINATED, Result.FAILURE)
    assert failed.reason == "main1 ended before it was released"
    assert not any(agent.of_session(session.id) for agent in agents)


def test_a_gang_that_a_user_ends_between_the_two_words_never_begins(node, agents):
    node.run()
    session = gang(node)
    began = []

    def end_when_all_answer():
        if asked_of(node, "a1", session)[-1:] == [("launch", False)] and not began:
            began.append(True)
            node.end(session)

    node.gateway.meanwhile = end_when_all_answer
    node.run()
    assert node.state(session) is S.TERMINATED
    assert all(("release", None) not in asked_of(node, agent.id, session) for agent in agents)
    assert (node.gateway.overlays, [c for agent in agents for c in agent.containers]) == ({}, [])


def test_a_gang_over_agents_ends_when_one_of_its_kernels_fails_anywhere(node, agents):
    session = gang(node, command="python train.py")
    node.run()
    last = session.kernels[3]
    held = next(agent for agent in agents if last.id in agent.containers)
    held.containers[last.id].end(7)
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.exit_code) == (S.TERMINATED, 7)
    assert [node.store.log(session.id, k.name) for k in session.kernels] == [
        f"{k.name}\n".encode() for k in session.kernels
    ]
    assert (node.gateway.overlays, [c for agent in agents for c in agent.containers]) == ({}, [])
