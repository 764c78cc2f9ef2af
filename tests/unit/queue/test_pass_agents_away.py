"""Agents that do not answer: UNREACHABLE at once, LOST after a time; and agents that come back."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.launch.manifest import manifest
from muster.core.lifecycle import last_words
from muster.core.model.session import Result, SessionState
from tests.simulated_agents import SimulatedAgent
from tests.simulated_control_node import LOST_AFTER_S, Crash, an_agent
from tests.strategies.values import fake_key_pair

S = SessionState


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    """Return agents with room for two kernels each; a1 and a2 manage the swarm."""
    roles = {"a1": "manager", "a2": "manager", "a3": "worker"}
    return [an_agent(agent_id, cpus=2, swarm=role) for agent_id, role in roles.items()]


@pytest.fixture
def node(control_node, agents):
    return control_node(*agents)


def gang(node, size=4, **values):
    return node.submit(cluster_size=size, cluster_mode="multi-node", **values)


def known(node, agent_id):
    return next(agent for agent in node.store.snapshot(node.now).agents if agent.id == agent_id)


def goes_away_when(node, agent, session, desired):
    """Cut the agent off in the visit whose manifest has this for the session."""

    def meanwhile():
        for entry in node.gateway.manifests[-1].get(agent.id, {"sessions": ()})["sessions"]:
            if (entry["id"], entry["desired"]) == (session.id, desired):
                agent.reachable = False

    node.gateway.meanwhile = meanwhile


def is_lost(node):
    """Let time pass until the silent agent is LOST, and that was observed."""
    node.run()
    node.now += LOST_AFTER_S
    node.run()


def nothing_is_left_of(session, node, agents):
    return not node.gateway.overlays and not any(agent.of_session(session.id) for agent in agents)


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


def test_a_reboot_ends_what_ran_and_says_so(node, agents):
    ends, again = node.submit(command="true"), node.submit(command="true", requeue=True)
    node.run()
    agents[0].reboot()
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
    node.gateway.agents.clear()
    node.run()
    (agent,) = node.store.snapshot(node.now).agents
    assert (agent.id, agent.problem) == (node.session(session).agents[0], "it is no longer in the inventory")
    is_lost(node)
    assert node.session(session).reason == f"agent {agent.id} was lost"
    node.run()
    assert node.store.snapshot(node.now).agents == ()


def test_an_inventory_that_for_a_moment_names_nobody_ends_no_session(node):
    session = node.submit()
    node.run()
    named = dict(node.gateway.agents)
    node.gateway.agents.clear()
    node.run()
    node.gateway.agents.update(named)
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


# Last words


def test_the_last_words_on_an_idle_agent_are_removed_once_they_are_kept(node, agents):
    session = node.submit()
    node.run()
    node.end(session)
    node.run()
    assert (node.state(session), list(agents[0].spool)) == (S.TERMINATED, [session.id])
    node.run()
    assert agents[0].spool == {}
    assert node.store.log(session.id, "main1") == b"main1\n"


def test_last_words_that_the_control_node_never_got_are_fetched_when_their_agent_is_back(node, agents):
    session = gang(node)
    node.run()
    node.end(session)
    agents[0].answer_gets_lost = True
    node.run()
    agents[0].reachable = agents[0].answer_gets_lost = False
    is_lost(node)
    assert (node.state(session), node.store.log(session.id, "main1")) == (S.TERMINATED, None)
    agents[0].reachable = True
    node.run()
    assert node.store.log(session.id, "main1") == b"main1\n"
    node.run()
    assert agents[0].spool == {}
    visits = agents[0].visits
    node.run()
    assert agents[0].visits == visits + 1


def test_no_last_words_are_lost_where_one_visit_cannot_fetch_them_all(node, agents, monkeypatch):
    monkeypatch.setattr(last_words, "MOST_FETCHED", 1)
    sessions = [node.submit(agents=["a1"], cpu="500m") for _ in range(3)]
    node.run()
    for session in sessions:
        node.end(session)
    agents[0].answer_gets_lost = True
    node.run()
    agents[0].reachable = agents[0].answer_gets_lost = False
    is_lost(node)
    assert agents[0].spool.keys() == {session.id for session in sessions}
    agents[0].reachable = True
    for _ in range(4):
        node.run()
    assert [node.store.log(session.id, "main1") for session in sessions] == [b"main1\n"] * 3
    assert agents[0].spool == {}


def test_last_words_that_will_never_come_are_not_fetched_again_and_again(node, agents):
    """One of the kernels has vanished: nobody has its log."""
    session = node.submit(cluster_size=2)
    node.run()
    del agents[0].containers[session.kernels[1].id]
    node.run()
    assert node.state(session) is S.TERMINATED
    for _ in range(3):
        node.run()
    assert agents[0].spool == {}
    visits = agents[0].visits
    node.run()
    assert agents[0].visits == visits + 1
