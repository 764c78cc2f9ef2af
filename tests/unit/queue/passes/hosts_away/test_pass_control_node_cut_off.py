"""The control node's own network fails: no agent is lost for that, and no session ends."""

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.session import SessionState
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import LOST_AFTER_S, an_agent

S = SessionState


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    return [an_agent(agent_id, cpus=2, connection="ssh") for agent_id in ("a1", "a2", "a3")]


def states(node):
    return [agent.state for agent in node.store.snapshot(node.now).agents]


def cut(agents, *, reachable=False):
    for agent in agents:
        agent.reachable = reachable


def hours_pass(node):
    for _ in range(3):
        node.now += LOST_AFTER_S
        node.run()


def test_all_agents_that_fall_silent_at_once_lose_no_session(node, agents):
    sessions = [node.submit(cpu=2, command="true") for _ in agents]
    node.run()
    cut(agents)
    node.run()
    hours_pass(node)
    assert states(node) == [AgentState.UNREACHABLE] * 3
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 3
    cut(agents, reachable=True)
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 3
    assert [agent.made for agent in agents] == [1, 1, 1]


def test_the_time_of_an_agent_that_stays_silent_counts_from_when_others_answer(node, agents):
    sessions = [node.submit(cpu=2, command="true") for _ in agents]
    node.run()
    cut(agents)
    node.run()
    hours_pass(node)
    cut(agents[:2], reachable=True)
    node.run()
    node.now += LOST_AFTER_S - 10
    node.run()
    assert states(node) == [AgentState.ALIVE, AgentState.ALIVE, AgentState.UNREACHABLE]
    node.restart()
    node.now += 10
    node.run()
    assert states(node)[2] is AgentState.LOST
    assert [node.state(session) for session in sessions] == [S.RUNNING, S.RUNNING, S.TERMINATED]


def test_the_only_agent_is_not_lost_until_another_is_in_its_place(control_node):
    node = control_node(an_agent("a1", connection="ssh"))
    session = node.submit()
    node.run()
    cut(node.gateway.agents.values())
    node.run()
    hours_pass(node)
    assert (states(node), node.state(session)) == ([AgentState.UNREACHABLE], S.RUNNING)
    node.gateway.agents = {"a2": an_agent("a2", connection="ssh")}
    node.run()
    hours_pass(node)
    assert node.state(session) is S.TERMINATED


def test_a_session_that_its_user_ends_while_the_only_agent_is_silent_ends_with_its_log_when_it_is_back(control_node):
    agent = an_agent("a1", connection="ssh")
    node = control_node(agent)
    session = node.submit()
    node.run()
    cut([agent])
    node.run()
    node.end(session)
    hours_pass(node)
    assert node.state(session) is S.TERMINATING
    cut([agent], reachable=True)
    node.run()
    assert (node.state(session), node.store.log(session.id, "main1")) == (S.TERMINATED, b"main1\n")


def test_an_agent_whose_engine_is_dead_is_lost_though_it_is_the_only_one(control_node):
    """Its host is reached: the network works."""
    node = control_node(an_agent("a1", connection="ssh"))
    session = node.submit()
    node.run()
    node.gateway.agents["a1"].module_fails = "the engine does not answer"
    node.run()
    hours_pass(node)
    assert (states(node), node.state(session)) == ([AgentState.LOST], S.TERMINATED)


# When an agent is lost


def test_an_agent_is_lost_when_its_time_is_up_without_another_visit(node, agents):
    node.run()
    agents[0].reachable = False
    node.run()
    since = node.now
    node.now = since + LOST_AFTER_S / 2
    node.run()
    before = len(node.gateway.observations)
    node.now = since + LOST_AFTER_S - 2
    node.run(observe=False)
    assert states(node)[0] is AgentState.UNREACHABLE
    node.run(observe=False)
    assert (states(node)[0], len(node.gateway.observations)) == (AgentState.LOST, before)


def test_the_silence_of_a_host_that_hangs_counts_from_the_visits_begin(node, agents):
    node.run()
    agents[0].hangs = True
    began = node.now + 1
    node.worker.ledger = node.worker.ledger.observing(["a1"])
    node.now = began
    node.worker.decide()
    agents[0].reachable = False
    node.now += 60
    node.gateway.let_go.set()
    node.go_on_until(lambda: states(node)[0] is AgentState.UNREACHABLE)
    assert node.store.snapshot(node.now).agents[0].unreachable_since == began


def test_a_control_node_that_was_asleep_asks_once_more_before_it_gives_an_agent_up(node, agents):
    session = node.submit(cpu=2)
    node.run()
    agents[0].reachable = False
    node.run()
    node.now += 10 * LOST_AFTER_S
    agents[0].reachable = True
    node.run(observe=False)
    assert states(node)[0] is AgentState.UNREACHABLE
    node.run()
    assert (states(node)[0], node.state(session)) == (AgentState.ALIVE, S.RUNNING)


def test_one_visit_that_takes_longer_than_that_loses_no_agent(node, agents):
    """The agent did not fall silent: it was slow, once."""
    session = node.submit(cpu=2)
    node.run()
    agents[0].hangs = True
    node.worker.ledger = node.worker.ledger.observing(["a1"])
    node.worker.decide()
    agents[0].reachable = False
    node.now += 2 * LOST_AFTER_S
    node.gateway.let_go.set()
    node.go_on_until(lambda: states(node)[0] is AgentState.UNREACHABLE)
    agents[0].reachable, agents[0].hangs = True, False
    node.run()
    assert (states(node)[0], node.state(session)) == (AgentState.ALIVE, S.RUNNING)


@pytest.mark.parametrize("is_in_trouble", [False, True])
def test_agents_that_answered_before_nobody_worked_the_queue_are_no_witnesses(control_node, is_in_trouble):
    """One host was cut off for a while. The control node is cut off by the time that it works the queue again."""
    agents = [an_agent(agent_id, cpus=2, connection="ssh") for agent_id in ("a1", "a2")]
    node = control_node(*agents)
    session = node.submit(cpu=2, command="true", agents=["a2"])
    node.run()
    cut(agents[1:])
    agents[0].module_fails = "no space left on device" if is_in_trouble else ""
    node.run()
    assert states(node) == [AgentState.UNREACHABLE if is_in_trouble else AgentState.ALIVE, AgentState.UNREACHABLE]
    cut(agents)
    node.restart()
    node.now += LOST_AFTER_S + 10
    node.worker.observe_all()
    node.worker.decide()
    # Their silence comes to be known one after the other.
    answers = []
    while not node.inbox.empty():
        answers.append(node.inbox.get())
    for answer in sorted(answers, key=lambda answer: getattr(answer, "agent_id", ""), reverse=True):
        node.worker.take([answer])
        node.worker.decide()
    assert states(node) == [AgentState.UNREACHABLE] * 2
    assert node.state(session) is S.RUNNING
