"""Agents that go away, or fail, while a session is launched: it begins once, here or elsewhere."""

import pytest

from muster.core.launch.manifest import manifest
from muster.core.model.session import Result, SessionState
from tests.simulated.control_node import Crash
from tests.strategies.values import fake_key_pair
from tests.unit.queue.passes.hosts_away.agents_away import (
    gang,
    goes_away_when,
    is_lost,
    known,
    nothing_is_left_of,
)

S = SessionState


def test_a_gang_whose_agent_goes_away_during_the_launch_starts_elsewhere(node, agents):
    node.run()
    session = gang(node)
    goes_away_when(node, agents[1], session, "launch")
    node.run()
    running = node.session(session)
    assert (running.state, running.agents, running.attempts) == (S.RUNNING, ("a1", "a3"), 0)
    assert "agent a2 stopped answering before the launch" in [line.reason for line in node.store.story(session.id)]


@pytest.mark.parametrize("acted", [False, True])
def test_a_launch_on_a_cut_off_agent_is_removed_when_the_agent_is_back(node, agents, acted):
    node.run()
    session = gang(node)
    if acted:
        agents[1].answer_gets_lost = True
    else:
        goes_away_when(node, agents[1], session, "launch")
    node.run()
    agents[1].reachable, agents[1].answer_gets_lost = False, False
    node.run()
    assert node.session(session).agents == ("a1", "a3")
    assert len(agents[1].containers) == (2 if acted else 0)
    assert not any(container.released for container in agents[1].containers.values())
    agents[1].reachable = True
    node.run()
    assert agents[1].containers == {}
    assert node.state(session) is S.RUNNING


def test_a_gang_on_one_agent_that_goes_away_during_the_launch_waits_for_it(node, agents):
    node.run()
    session = node.submit(cpu=2)
    agents[0].answer_gets_lost = True
    node.run()
    assert node.state(session) is S.PREPARING
    agents[0].answer_gets_lost = False
    node.run()
    assert (node.state(session), agents[0].made) == (S.RUNNING, 1)


def test_a_gang_whose_agent_goes_away_between_the_two_words_begins_when_it_is_back(node, agents):
    node.run()
    session = gang(node)
    goes_away_when(node, agents[1], session, "release")
    node.run()
    assert (node.state(session), node.session(session).agents) == (S.PREPARING, ("a1", "a2"))
    node.gateway.meanwhile = lambda: None
    agents[1].reachable = True
    node.run()
    assert node.state(session) is S.RUNNING
    assert [agent.made for agent in agents] == [2, 2, 0]


@pytest.mark.parametrize("requeue", [False, True])
def test_a_launch_whose_host_is_lost_right_after_the_go_begins_again_only_with_requeue(node, agents, requeue):
    node.run()
    session = node.submit(cpu=2, command="true", requeue=requeue)
    agents[0].answer_gets_lost = True
    node.run()
    agents[0].reachable = agents[0].answer_gets_lost = False
    node.restart()
    is_lost(node)
    node.run()
    known = node.session(session)
    if requeue:
        assert (known.state, known.agents) == (S.RUNNING, ("a2",))
    else:
        assert (known.state, known.result) == (S.TERMINATED, Result.FAILURE)
        assert known.reason == "agent a1 was lost during the launch, when commands may have begun"
        assert not agents[1].containers
    agents[0].reachable = True
    node.run()
    assert agents[0].containers == {}


def test_a_launch_that_never_came_to_its_host_starts_elsewhere_at_once(node, agents):
    node.run()
    session = node.submit(cpu=2)
    agents[0].reachable = False
    node.run(observe=False)
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a2",))
    assert node.session(session).attempts == 0


def test_a_visit_that_breaks_off_after_the_go_is_no_failed_launch(node, agents):
    """The agent's engine dies once the command has begun: what the session is, its next answer says."""
    node.run()
    session = node.submit(cpu=2)
    agents[0].module_breaks_off = "the engine does not answer"
    node.run()
    assert (node.state(session), agents[1].made) == (S.PREPARING, 0)
    agents[0].module_breaks_off = ""
    node.run()
    assert (node.state(session), agents[0].made) == (S.RUNNING, 1)


def test_one_agent_that_fails_to_release_does_not_let_the_gang_begin_twice(node, agents):
    node.run()
    session = gang(node)
    agents[1].releases_fail = True
    began = []
    for agent in agents:
        agent.was_released = began.append
    node.run()
    node.now += 60
    node.run()
    assert (node.state(session), node.session(session).reason) == (S.TERMINATED, "the engine does not answer")
    assert len({container.generation for container in began}) == 1
    assert nothing_is_left_of(session, node, agents)


def test_a_launch_of_a_dead_worker_that_the_agent_takes_late_begins_once(node, agents):
    """The next worker must not believe a report that is older than what the agent still does."""
    node.run()
    session = node.submit(cpu=2, command="true")
    node.gateway.crash_before = Crash()
    with pytest.raises(Crash):
        node.run()
    node.restart()
    late = node.gateway.overlays
    sent = node.session(session)
    began = []
    agents[0].was_released = began.append

    def the_old_manifest_arrives():
        node.gateway.meanwhile = lambda: None
        manifest = launching_manifest(node, sent)
        agents[0].converge(manifest.model_dump(mode="json"), late)

    node.gateway.meanwhile = the_old_manifest_arrives
    node.run()
    node.run()
    assert node.state(session) is S.RUNNING
    assert [container.generation for container in began] == [sent.generation]


def launching_manifest(node, session):
    """Return the manifest that the dead worker had sent."""
    keys = {session.id: fake_key_pair("late")}
    agent = known(node, "a1")
    render = node.shell.render
    return manifest(agent, [session], keys, session.generation, node.shell.launch_policy, render)
