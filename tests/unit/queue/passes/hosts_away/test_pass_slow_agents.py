"""An agent that takes long, or hangs, holds up nobody else; and small sessions do not keep a large one waiting."""

import pytest

from muster.core.model.session import SessionState
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import SLOW_AFTER_S, an_agent

S = SessionState


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    return [an_agent(agent_id, cpus=2, swarm="manager") for agent_id in ("a1", "a2", "a3")]


@pytest.fixture
def node(control_node, agents):
    made = control_node(*agents)
    made.run()
    yield made
    made.gateway.let_go.set()


def gang(node, size=4):
    return node.submit(cluster_size=size, cluster_mode="multi-node")


def hang(node, agent):
    """Visit the agent, and let the visit not end."""
    agent.hangs = True
    node.worker.ledger = node.worker.ledger.observing([agent.id])
    node.go_on()
    assert node.worker.ledger.visits.in_flight == {agent.id}


def let_go(node):
    for agent in node.gateway.agents.values():
        agent.hangs = False
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.worker.is_idle)


def test_a_hanging_agent_does_not_delay_the_sessions_of_others(node, agents):
    hang(node, agents[0])
    first, second = node.submit(cpu=2), node.submit(cpu=2)
    third = node.submit(cpu=2)
    node.go_on_until(lambda: [node.state(s) for s in (second, third)] == [S.RUNNING] * 2)
    assert (node.state(first), node.session(first).agents) == (S.SCHEDULED, ("a1",))
    node.end(second)
    node.go_on_until(lambda: node.state(second) is S.TERMINATED)
    assert agents[0].visits == 1


def test_observing_all_agents_leaves_out_one_that_hangs(node, agents):
    hang(node, agents[0])
    session = node.submit(cpu=2, command="true")
    other = node.submit(cpu=2, command="true")
    node.go_on_until(lambda: node.state(other) is S.RUNNING)
    agents[1].containers[other.id].end(0)
    node.worker.observe_all()
    node.go_on_until(lambda: node.state(other) is S.TERMINATED)
    assert node.gateway.observations[-1] == ["a2", "a3"]
    assert node.state(session) is S.SCHEDULED


def test_an_agent_that_hangs_in_an_observation_of_all_delays_no_answer_of_the_others(node, agents):
    agents[2].hangs = True
    node.worker.observe_all()
    session = node.submit()
    node.go_on_until(lambda: node.state(session) is S.RUNNING)
    assert node.worker.ledger.visits.in_flight == {"a3"}


def test_a_session_that_was_placed_on_an_agent_is_taken_back_once_that_is_slow(node, agents):
    hang(node, agents[0])
    sessions = [node.submit(cpu=2) for _ in range(3)]
    node.go_on_until(lambda: node.state(sessions[2]) is S.RUNNING)
    agents[0].hangs = False
    node.now += SLOW_AFTER_S + 1
    node.run(observe=False)
    taken_back = node.session(sessions[0])
    assert (taken_back.state, taken_back.agents) == (S.PENDING, ())
    assert taken_back.reason == "agent a1 is slow to answer"
    assert taken_back.wait.filtered == {"slow": 1}
    let_go(node)
    node.run()
    assert (node.state(sessions[0]), node.session(sessions[0]).agents) == (S.RUNNING, ("a1",))


def test_another_manager_keeps_the_overlays_while_the_first_is_slow(node, agents):
    hang(node, agents[0])
    agents[0].hangs = False
    node.now += SLOW_AFTER_S + 1
    session = gang(node)
    node.run(observe=False)
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a2", "a3"))


def test_a_launch_that_lasts_long_is_not_given_up(node, agents):
    session = node.submit(cpu=2)
    agents[0].hangs = True
    node.go_on()
    node.now += SLOW_AFTER_S + 1
    node.go_on()
    assert node.state(session) is S.PREPARING
    let_go(node)
    assert (node.state(session), agents[0].made) == (S.RUNNING, 1)


def test_a_stream_of_small_sessions_does_not_starve_a_gang_over_agents(node, agents):
    """Each time one of its agents is free the other is busy with a small session, unless it is kept for the gang."""
    for agent in agents:
        agent.hardware["cpu_count"] = 16
    node.run()
    agents[2].reachable = False
    node.run()
    hang(node, agents[0])
    large = gang(node, 30)
    assert node.state(large) is S.PENDING
    node.go_on()
    small = node.submit()
    node.go_on()
    assert (node.state(large), node.session(large).agents) == (S.SCHEDULED, ("a1", "a2"))
    assert (node.state(small), node.session(small).agents) == (S.SCHEDULED, ("a2",))
    let_go(node)
    assert (node.state(large), node.state(small)) == (S.RUNNING, S.RUNNING)
    launched = [
        entry["id"]
        for manifests in node.gateway.manifests
        for entry in manifests["a2"]["sessions"]
        if entry["desired"] == "launch"
    ]
    assert launched[0] == large.id


def test_observations_do_not_keep_a_gang_waiting(node, agents):
    """Each time one of its agents is free the other is being observed, unless it is kept for the gang."""
    hang(node, agents[0])
    large = gang(node, 6)
    node.go_on()
    assert node.state(large) is S.SCHEDULED
    begun = node.worker.ledger.visits.last_number
    node.worker.observe_all()
    node.go_on()
    assert node.worker.ledger.visits.last_number == begun
    let_go(node)
    assert node.state(large) is S.RUNNING


def test_a_gang_that_waits_for_a_slow_agent_keeps_no_other_from_being_observed(node, agents):
    hang(node, agents[0])
    gang(node, 6)
    node.go_on()
    node.now += SLOW_AFTER_S + 1
    visits = agents[1].visits
    node.worker.observe_all()
    node.go_on_until(lambda: agents[1].visits > visits)


def test_while_no_agent_is_known_one_look_at_the_inventory_goes_on_at_a_time(control_node):
    node = control_node(an_agent("a1"))
    node.gateway.agents["a1"].hangs = True
    for _ in range(3):
        node.worker.observe_all()
        node.go_on()
    assert len(node.worker.ledger.visits.numbers) == 1
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.worker.is_idle)
