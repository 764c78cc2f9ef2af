"""A restart: stopped and launched again at the same place, whatever happens in between."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from muster.core.agents.agent import AgentState
from muster.core.lifecycle import transitions
from muster.core.model.session import LaunchStep, Result, Session, SessionState
from muster.core.scheduling.future import end_of
from muster.core.values.errors import IllegalTransitionError
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import ControlNode, Crash, an_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState
# The commits of the pass that carries a restart out: of two kernels on one agent, of four on two.
COMMITS = {2: 12, 4: 23}


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    return [an_agent(agent_id, cpus=2, swarm="manager") for agent_id in ("a1", "a2")]


@pytest.fixture
def node(control_node, agents) -> ControlNode:
    return control_node(*agents)


def running(node: ControlNode, size: int, **values: Any) -> Session:
    session = node.submit(cluster_size=size, cluster_mode="multi-node", **values)
    node.run()
    return node.session(session)


def restart(node: ControlNode, session: Session) -> None:
    assert node.store.apply([transitions.restart(node.session(session), "ada", node.now)])


def places(session: Session) -> list[object]:
    return [(kernel.id, kernel.allocation) for kernel in session.kernels]


def runs_again(node: ControlNode, agents: list[SimulatedAgent], before: Session) -> bool:
    """Return whether each kernel runs once, of a newer launch, where it was."""
    after = node.session(before)
    found = [c for agent in agents for c in agent.of_session(before.id)]
    assert (after.state, after.step, after.generation > before.generation) == (S.RUNNING, None, True)
    assert {(c.generation, c.released) for c in found} == {(after.generation, True)}
    return len(found) == len(before.kernels) and places(after) == places(before)


@pytest.mark.parametrize("size", [2, 4])
def test_a_restart_keeps_ids_and_places_and_takes_a_new_generation(node, agents, size):
    before = running(node, size)
    restart(node, before)
    node.run()
    assert runs_again(node, agents, before)
    story = node.story(before)
    again = story[story.index(S.TERMINATING) :]
    assert list(dict.fromkeys(again)) == [S.TERMINATING, S.SCHEDULED, S.PREPARING, S.RUNNING]
    assert not node.wrongly_removed
    assert not node.wrongly_released


@pytest.mark.parametrize(
    ("size", "commit"), [(size, commit) for size, count in COMMITS.items() for commit in range(1, count + 1)]
)
def test_a_crash_at_any_commit_of_a_restart_is_healed_by_the_next_pass(node, agents, size, commit):
    before = running(node, size)
    restart(node, before)
    # Just before it with one agent, just after it with two: what comes between two commits is the same.
    node.store.crash_in, node.store.after_commit = commit, size == 4
    with suppress(Crash):
        node.run()
    node.restart()
    node.run()
    assert runs_again(node, agents, before)


@pytest.mark.parametrize("size", [2, 4])
def test_these_are_all_the_commits(node, size):
    before = running(node, size)
    restart(node, before)
    count = node.store.commits
    node.run()
    assert node.store.commits - count <= COMMITS[size]


def test_a_batch_session_runs_its_command_again_and_its_time_begins_anew(node, agents):
    before = running(node, 2, command="train", time_limit="1h")
    node.now += 3000
    restart(node, before)
    node.run()
    after = node.session(before)
    assert runs_again(node, agents, before)
    assert after.started_at > before.started_at + 2999
    node.now += 3000
    node.run()
    assert node.state(before) is S.RUNNING
    next(a for a in agents if before.id in a.containers).containers[before.id].end(0)
    node.run()
    assert (node.state(before), node.session(before).result) == (S.TERMINATED, Result.SUCCESS)


def test_where_an_agent_is_drained_meanwhile_it_goes_back_to_the_queue_with_its_ids(node):
    before = running(node, 2)
    node.store.agents.drain(before.agents[0], "maintenance")
    restart(node, before)
    node.run()
    after = node.session(before)
    assert [kernel.id for kernel in after.kernels] == [kernel.id for kernel in before.kernels]
    assert after.state is S.RUNNING
    assert set(after.agents).isdisjoint(before.agents)
    assert S.PENDING in node.story(before)[4:]
    assert any("is being drained" in line.reason for line in node.store.story(before.id))


def test_where_its_agent_is_lost_meanwhile_it_goes_back_to_the_queue(node, agents):
    before = running(node, 2)
    lost = next(agent for agent in agents if agent.id == before.agents[0])
    lost.reachable = False
    restart(node, before)
    node.run()
    assert node.state(before) is S.TERMINATING
    node.now += 400
    node.run()
    node.run()
    after = node.session(before)
    assert (after.state, lost.id in after.agents) == (S.RUNNING, False)
    lost.reachable = True
    node.run()
    node.run()
    assert lost.of_session(before.id) == []


def test_a_session_that_is_ended_during_its_restart_ends_for_good(node, agents):
    before = running(node, 2)
    restart(node, before)
    node.end(before)
    node.run()
    assert node.state(before) is S.TERMINATED
    assert not any(agent.containers for agent in agents)


@pytest.mark.parametrize("state", [state for state in S if state is not S.RUNNING])
def test_only_a_running_session_can_be_restarted(state):
    with pytest.raises(IllegalTransitionError, match="only a RUNNING one"):
        transitions.restart(make_session(state=state), "ada", NOW)


def test_a_restart_counts_with_its_room_for_as_long_as_it_may_run_then():
    session = placed_on(make_session(time_limit="1h"), "a1", state=S.TERMINATING)
    assert end_of(session, NOW + 100) == NOW + 100
    assert end_of(replace(session, step=LaunchStep.RESTARTING), NOW + 100) == NOW + 3700


def test_the_word_that_it_was_stopped_does_nothing_once_a_user_ended_it(node):
    before = running(node, 2)
    restart(node, before)
    late = transitions.ended(node.session(before), {}, node.now)
    node.end(before)
    assert node.store.apply([late]) == []
    assert node.state(before) is S.TERMINATING
    assert AgentState.ALIVE in {agent.state for agent in node.store.agents.all()}
