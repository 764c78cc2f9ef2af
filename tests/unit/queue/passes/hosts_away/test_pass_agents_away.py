"""Agents that do not answer: UNREACHABLE at once, LOST after a time; and agents that come back."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.session import Result, SessionState
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import LOST_AFTER_S, Crash, an_agent
from tests.unit.queue.passes.hosts_away.agents_away import (
    gang,
    goes_away_when,
    is_lost,
    known,
    nothing_is_left_of,
)

S = SessionState


def test_an_agent_that_does_not_answer_is_unreachable_and_its_sessions_stay(node, agents):
    session = node.submit(cpu=2)
    node.run()
    agents[0].reachable = False
    assert node.run().problems == {"a1": "it does not answer"}
    away = known(node, "a1")
    assert (away.state, away.problem, away.unreachable_since) == (
        AgentState.UNREACHABLE,
        "it does not answer",
        node.now,
    )
    node.now += LOST_AFTER_S - 10
    node.run()
    assert node.state(session) is S.RUNNING
    agents[0].reachable = True
    assert node.run().problems == {}
    back = known(node, "a1")
    assert (back.state, back.problem, back.unreachable_since) == (AgentState.ALIVE, "", None)
    assert (node.state(session), agents[0].made) == (S.RUNNING, 1)


def test_an_unreachable_agent_gets_no_new_sessions(node, agents):
    node.run()
    for agent in agents:
        agent.reachable = False
    node.run()
    session = node.submit()
    node.run()
    wait = node.session(session).wait
    assert wait.filtered == {"unreachable": 3}
    assert "takes sessions now (3 unreachable)" in wait.message
    agents[2].reachable = True
    node.run()
    assert node.session(session).agents == ("a3",)


@pytest.mark.parametrize("boots", [SimulatedAgent.reboot, SimulatedAgent.reinstall])
def test_a_reboot_ends_what_ran_and_says_so(node, agents, boots):
    """Reports of a host that had lost its disk seemed older than the launch: its sessions were running for ever."""
    ends, again = node.submit(command="true"), node.submit(command="true", requeue=True)
    node.run()
    boots(agents[0])
    node.run()
    assert (node.state(ends), node.session(ends).reason) == (S.TERMINATED, "agent a1 was rebooted")
    assert node.session(ends).exit_code is None
    assert (node.state(again), node.session(again).requeues) == (S.RUNNING, 1)


def test_a_reboot_that_a_dead_worker_had_seen_is_still_known(node, agents):
    """The report is stored before what follows from it."""
    session = node.submit(command="true")
    node.run()
    agents[0].reboot()
    node.store.crash_in = 1
    node.store.after_commit = True
    with pytest.raises(Crash):
        node.run()
    node.restart()
    node.run()
    assert (node.state(session), node.session(session).reason) == (S.TERMINATED, "agent a1 was rebooted")


@pytest.mark.parametrize("size", [1, 4])
def test_a_session_on_a_lost_agent_ends_with_that_reason(node, agents, size):
    session = gang(node, size)
    node.run()
    held = node.session(session).agents[0]
    agents[0].reachable = False
    is_lost(node)
    ended = node.session(session)
    assert held == "a1"
    assert known(node, "a1").state is AgentState.LOST
    assert (ended.state, ended.result, ended.reason) == (S.TERMINATED, Result.FAILURE, "agent a1 was lost")
    assert not any(agent.of_session(session.id) for agent in agents[1:])
    agents[0].reachable = True
    node.run()
    assert nothing_is_left_of(session, node, agents)
    assert known(node, "a1").state is AgentState.ALIVE


@pytest.mark.parametrize("size", [1, 4])
def test_a_session_on_a_lost_agent_is_queued_again_where_it_may_be(node, agents, size):
    session = gang(node, size, requeue=True, command="python train.py")
    node.run()
    first = node.session(session)
    agents[0].reachable = False
    is_lost(node)
    node.run()
    again = node.session(session)
    assert first.agents[0] == "a1"
    assert "a1" not in again.agents
    assert (again.state, again.requeues, again.attempts) == (S.RUNNING, 1, 0)
    assert again.started_at > first.started_at
    assert "agent a1 was lost; the session is queued again" in [line.reason for line in node.store.story(session.id)]
    agents[0].reachable = True
    node.run()
    assert agents[0].containers == {}
    assert [c.released for agent in agents for c in agent.of_session(session.id)] == [True] * size


def test_a_session_that_is_queued_again_and_waits_has_no_container(node, agents):
    for agent in agents[1:]:
        agent.reachable = False
    session = node.submit(requeue=True)
    node.run()
    agents[0].reachable = False
    is_lost(node)
    waiting = node.session(session)
    assert (waiting.state, waiting.agents, waiting.started_at, waiting.result) == (S.PENDING, (), None, None)
    main = waiting.main
    assert (main.container_id, main.container_state, main.address, main.ssh_port) == (None, None, None, None)


def test_a_user_withdraws_the_requeueing_by_ending_the_session(node, agents):
    session = gang(node, 4, requeue=True)
    node.run()
    agents[0].reachable = False
    node.run()
    agents[1].reachable = False
    node.now += LOST_AFTER_S - 1
    node.run()
    assert (node.state(session), node.session(session).requeue_after_end) == (S.TERMINATING, True)
    node.end(session)
    node.run()
    agents[1].reachable = True
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.reason, ended.requeues) == (S.TERMINATED, "ended by ada", 0)


def test_a_session_that_is_ended_ends_on_an_unreachable_agent_when_that_is_back(node, agents):
    session = gang(node)
    node.run()
    goes_away_when(node, agents[0], session, "stop")
    node.end(session)
    node.run()
    assert node.state(session) is S.TERMINATING
    assert [len(agent.containers) for agent in agents] == [2, 0, 0]
    node.gateway.meanwhile = lambda: None
    agents[0].reachable = True
    node.run()
    assert node.state(session) is S.TERMINATED
    assert node.store.log(session.id, "main1") == b"main1\n"
    assert nothing_is_left_of(session, node, agents)


def test_a_session_that_is_ended_does_not_wait_for_a_lost_agent(node, agents):
    session = gang(node)
    node.run()
    goes_away_when(node, agents[0], session, "stop")
    node.end(session)
    node.run()
    is_lost(node)
    assert (node.state(session), node.session(session).reason) == (S.TERMINATED, "ended by ada")
    agents[0].reachable = True
    node.run()
    assert nothing_is_left_of(session, node, agents)


def test_an_agent_that_the_inventory_no_longer_names_is_forgotten_once_nothing_is_on_it(node):
    session = node.submit()
    node.run()
    node.gateway.agents = {"a9": an_agent("a9")}
    node.run()
    agent, _ = node.store.snapshot(node.now).agents
    assert (agent.id, agent.problem) == (node.session(session).agents[0], "it is no longer in the inventory")
    is_lost(node)
    assert node.session(session).reason == f"agent {agent.id} was lost"
    node.run()
    assert [agent.id for agent in node.store.snapshot(node.now).agents] == ["a9"]


def test_an_inventory_that_names_nobody_ends_no_session(node):
    """As a program whose source is down, or a file that was cut short."""
    session = node.submit()
    node.run()
    named = dict(node.gateway.agents)
    node.gateway.agents.clear()
    node.run()
    assert known(node, "a1").problem == "the inventory names no agent"
    is_lost(node)
    node.gateway.agents = {"a9": an_agent("a9")}
    # Who is missing now is lost when it has been for long.
    node.run()
    node.run()
    assert node.state(session) is S.RUNNING
    node.gateway.agents |= named
    node.run()
    assert node.state(session) is S.RUNNING
    assert known(node, "a1").state is AgentState.ALIVE


def test_a_running_session_that_its_agent_cannot_keep_ends_with_the_agents_word(node, agents):
    session = node.submit(cpu=2)
    node.run()

    def cannot_keep(said):
        kept = [{**entry, "outcome": "failed", "error": "the network of main1 is gone"} for entry in said["sessions"]]
        return {**said, "sessions": kept}

    def session_is_kept(said):
        return any(entry["outcome"] == "kept" for entry in said.get("sessions", ()))

    agents[0].says = lambda said: cannot_keep(said) if session_is_kept(said) else said
    agents[0].networks["stray"] = replace(agents[0].networks[session.id], name="stray", session_id="stray")
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.result, ended.reason) == (S.TERMINATED, Result.FAILURE, "the network of main1 is gone")
