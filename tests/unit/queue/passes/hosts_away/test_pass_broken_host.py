"""One host on which launches fail: retries keep off it, and after several it gets no sessions for a while."""

import pytest

from muster.core.agents.launch_record import SuspectRules
from muster.core.model.session import SessionState
from muster.core.model.wait import WaitCode
from muster.core.values.errors import ImageError
from tests.simulated.agents import Failing, SimulatedAgent
from tests.simulated.control_node import an_agent

S = SessionState
ALWAYS = [Failing.TRANSIENT] * 99


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    """Return agents, of which a1 is the smallest, and so the first that is packed."""
    sizes = {"a1": 4, "a2": 8, "a3": 8}
    return [an_agent(agent_id, cpus=cpus) for agent_id, cpus in sizes.items()]


def known(node, agent_id="a1"):
    return next(agent for agent in node.store.snapshot(node.now).agents if agent.id == agent_id)


def some_time_passes(node, seconds=30):
    node.now += seconds
    node.run()


def test_a_retry_keeps_off_the_agent_on_which_the_launch_failed(node, agents):
    node.run()
    agents[0].next_launches = [*ALWAYS]
    session = node.submit(cpu=2)
    node.run()
    assert (node.state(session), node.session(session).failed_on) == (S.PENDING, ("a1",))
    node.restart()
    some_time_passes(node)
    running = node.session(session)
    assert (running.state, running.agents, running.failed_on) == (S.RUNNING, ("a2",), ())


def test_a_retry_waits_for_the_others_and_says_so(node, agents):
    others = [node.submit(cpu=8), node.submit(cpu=8)]
    node.run()
    agents[0].next_launches = [*ALWAYS]
    session = node.submit(cpu=2)
    node.run()
    some_time_passes(node)
    wait = node.session(session).wait
    assert (node.state(session), wait.code) == (S.PENDING, WaitCode.BUSY)
    assert wait.message.endswith("; it keeps off a1, where its launch failed")
    node.end(others[0])
    node.run()
    assert node.session(session).agents == ("a2",)


def test_a_retry_goes_to_the_same_agent_where_no_other_could_take_it(node, agents):
    node.run()
    agents[0].next_launches = [Failing.TRANSIENT]
    session = node.submit(cpu=2, agents=["a1"])
    node.run()
    some_time_passes(node)
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a1",))


@pytest.mark.parametrize(
    "spec",
    [{"cpu": 2, "agents": ["a1"]}, {"cpu": 2, "exclude_agents": ["a2", "a3"]}, {"cpu": 2, "labels": {"disk": "ssd"}}],
    ids=str,
)
def test_a_session_that_no_other_agent_may_hold_is_given_up_after_three_failures(node, agents, spec):
    agents[0].inventory["labels"] = {"disk": "ssd"}
    node.run()
    agents[0].next_launches = [*ALWAYS]
    session = node.submit(**spec)
    node.run()
    for _ in range(2):
        assert node.state(session) is S.PENDING
        some_time_passes(node)
    assert (node.state(session), len(ALWAYS) - len(agents[0].next_launches)) == (S.ERROR, 3)


def test_a_broken_host_does_not_eat_the_queue(node, agents):
    node.run()
    agents[0].next_launches = [*ALWAYS]
    sessions = [node.submit(cpu=1) for _ in range(8)]
    for _ in range(4):
        some_time_passes(node)
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 8
    assert known(node).is_suspect
    before = len(agents[0].next_launches)
    later = node.submit(cpu=1)
    some_time_passes(node)
    assert node.session(later).agents != ("a1",)
    assert len(agents[0].next_launches) == before


def broken(node, agents):
    node.run()
    agents[0].next_launches = [*ALWAYS]
    for _ in range(3):
        node.submit(cpu=1)
        node.run()
    assert known(node).is_suspect
    agents[0].next_launches = []


def test_a_suspect_agent_comes_back_after_a_while_and_a_success_clears_it(node, agents):
    broken(node, agents)
    some_time_passes(node, SuspectRules().for_s)
    assert not known(node).is_suspect
    assert known(node).launch_record.failures
    session = node.submit(cpu=1, agents=["a1"])
    node.run()
    assert node.session(session).agents == ("a1",)
    assert not known(node).launch_record.failures


def test_a_suspect_agent_is_resumed_by_hand(node, agents):
    broken(node, agents)
    assert node.store.agents.resume("a1")
    session = node.submit(cpu=1)
    node.run()
    assert node.session(session).agents == ("a1",)


def test_a_resume_at_the_moment_at_which_a_failure_is_recorded_is_not_undone(node, agents, monkeypatch):
    node.run()
    agents[0].next_launches = [*ALWAYS]
    for _ in range(2):
        node.submit(cpu=1)
        node.run()
    assert len(known(node).launch_record.failures) == 2
    save = node.store.agents.save_launch_records

    def resumed_first(records, *given):
        if records:
            monkeypatch.undo()
            node.store.agents.resume("a1")
        save(records, *given)

    monkeypatch.setattr(node.store.agents, "save_launch_records", resumed_first)
    node.submit(cpu=1)
    node.run()
    assert not known(node).is_suspect


def test_a_session_that_is_itself_broken_makes_no_agent_suspect(node, agents):
    """It fails everywhere, and so do its sisters."""
    node.run()
    for agent in agents:
        agent.next_launches = [*ALWAYS]
    sessions = [node.submit(cpu=1) for _ in range(6)]
    for _ in range(6):
        some_time_passes(node)
    assert [node.state(session) for session in sessions] == [S.ERROR] * 6
    assert not any(known(node, agent.id).is_suspect for agent in agents)


def test_sessions_on_a_suspect_agent_go_on(node, agents):
    session = node.submit(cpu=1)
    node.run()
    assert node.session(session).agents == ("a1",)
    broken(node, agents)
    some_time_passes(node)
    assert node.state(session) is S.RUNNING


def test_a_retry_keeps_off_the_agent_to_which_its_image_could_not_be_pulled(node, agents):
    node.run()
    agents[0].pull_fails = ImageError("the agent does not answer", permanent=False)
    session = node.submit(cpu=2, image="debian:13")
    node.run()
    assert (node.state(session), node.session(session).failed_on) == (S.PENDING, ("a1",))
    assert [failure.session_id for failure in known(node).launch_record.failures] == [session.id]
    some_time_passes(node)
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a2",))
