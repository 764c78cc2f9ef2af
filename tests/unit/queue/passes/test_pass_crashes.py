"""The control node dies at any commit, or while agents act: the next worker goes on by the same code."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from muster.core.lifecycle import transitions
from muster.core.model.session import Result, SessionState
from muster.core.values.errors import QueueLockLostError
from muster.service.queue.worker import QueueWorker
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import ControlNode, Crash, an_agent

S = SessionState
# The commits of a pass by the gang's size: two kernels lie on one agent, four on two.
LAUNCHING = {2: 9, 4: 12}
ENDING = {2: 6, 4: 8}


def at_each(commits: dict[int, int]) -> pytest.MarkDecorator:
    """Return the cases: a death just before each commit; for the gang over agents also just after it."""
    points = [(size, commit, False) for size, count in commits.items() for commit in range(1, count + 1)]
    points += [(4, commit, True) for commit in range(1, commits[4] + 1)]
    return pytest.mark.parametrize(("size", "commit", "after_commit"), points)


@pytest.fixture
def agents() -> list[SimulatedAgent]:
    return [an_agent(agent_id, cpus=2, swarm="manager") for agent_id in ("a1", "a2")]


@pytest.fixture
def node(control_node, agents):
    return control_node(*agents)


def dies(node: ControlNode, commit: int, *, after_commit: bool) -> None:
    """Let the worker die in the present pass. A fresh one takes over."""
    node.store.crash_in, node.store.after_commit = commit, after_commit
    with suppress(Crash):
        node.run()
    node.restart()


def gang(node: ControlNode, size: int, **values: Any):
    return node.submit(cluster_size=size, cluster_mode="multi-node", **values)


def nothing_is_left(node, agents) -> bool:
    return not node.gateway.overlays and not any(agent.containers or agent.networks for agent in agents)


@pytest.mark.parametrize("size", [2, 4])
def test_these_are_all_the_commits(node, agents, size):
    session = gang(node, size, command="true")
    counts = [node.store.commits]
    node.run()
    counts.append(node.store.commits)
    next(agent for agent in agents if session.id in agent.containers).containers[session.id].end(0)
    node.run()
    counts.append(node.store.commits)
    assert (counts[1] - counts[0], counts[2] - counts[1]) == (LAUNCHING[size], ENDING[size])


@at_each(LAUNCHING)
def test_a_crash_at_any_commit_of_a_launch_is_healed_by_the_next_pass(node, agents, size, commit, after_commit):
    session = gang(node, size)
    dies(node, commit, after_commit=after_commit)
    node.run()
    running = node.session(session)
    assert (running.state, running.attempts) == (S.RUNNING, 0)
    containers = [c for agent in agents for c in agent.of_session(session.id)]
    assert sorted(c.name for c in containers) == sorted(kernel.name for kernel in session.kernels)
    assert {(c.generation, c.released) for c in containers} == {(running.generation, True)}
    assert list(node.gateway.overlays) == ([running.network] if size == 4 else [])


@at_each(ENDING)
def test_a_crash_at_any_commit_of_an_end_is_healed_and_the_logs_are_kept(node, agents, size, commit, after_commit):
    session = gang(node, size, command="true")
    node.run()
    main = next(agent for agent in agents if session.id in agent.containers)
    main.containers[session.id].end(0)
    dies(node, commit, after_commit=after_commit)
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.result, ended.main.exit_code) == (S.TERMINATED, Result.SUCCESS, 0)
    logs = {kernel.name: node.store.log(session.id, kernel.name) for kernel in session.kernels}
    assert logs == {name: f"{name}\n".encode() for name in logs}
    node.run()
    assert nothing_is_left(node, agents)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("when", ["crash_before", "crash_after"])
def test_a_crash_while_agents_act_is_healed(node, agents, size, when):
    session = gang(node, size)
    setattr(node.gateway, when, Crash())
    with pytest.raises(Crash):
        node.run()
    node.restart()
    node.run()
    assert node.state(session) is S.RUNNING
    assert sum(agent.made for agent in agents) == size


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_while_agents_release_is_healed_and_nothing_is_made_again(node, agents, when):
    session = gang(node, 4)

    def die_at_the_second_word() -> None:
        if len(node.gateway.manifests) == 2:
            if when == "before":
                raise Crash
            node.gateway.crash_after = Crash()

    node.gateway.meanwhile = die_at_the_second_word
    with pytest.raises(Crash):
        node.run()
    node.gateway.meanwhile = lambda: None
    node.restart()
    node.run()
    assert node.story(session) == ["PENDING", "SCHEDULED", "PREPARING", "PREPARING", "RUNNING"]
    assert [agent.made for agent in agents] == [2, 2]


def test_a_gang_that_a_crash_cut_short_is_launched_anew_where_it_is_not_whole(node, agents):
    session = gang(node, 4)
    node.gateway.crash_after = Crash()
    with pytest.raises(Crash):
        node.run()
    del agents[1].containers[agents[1].of_session(session.id)[0].kernel_id]
    before = node.session(session).generation
    node.restart()
    node.run()
    running = node.session(session)
    assert running.state is S.RUNNING
    assert running.generation > before
    assert {c.generation for agent in agents for c in agent.of_session(session.id)} == {running.generation}
    assert "the launch was cut short and is repeated" in [line.reason for line in node.store.story(session.id)]


@pytest.fixture
def sleeps_before(node, monkeypatch):
    """Makes the worker sleep before its next call of this method, while another does this."""

    def sleep_before(of: object, method: str, meanwhile: Callable[[], None]) -> QueueWorker:
        sleeper, call = node.worker, getattr(of, method)

        def sleeps(*arguments: object) -> object:
            monkeypatch.undo()
            node.restart()
            meanwhile()
            return call(*arguments)

        monkeypatch.setattr(of, method, sleeps)
        return sleeper

    return sleep_before


def test_a_worker_that_slept_while_another_worked_sends_no_manifests_of_before(node, agents, sleeps_before):
    """They once had the newest number, and agents removed what the other had launched."""
    first = gang(node, 4, command="true")
    node.run()
    node.end(first)
    sleeper = sleeps_before(node.store.queue, "next_generation", node.run)
    second = gang(node, 4)
    with pytest.raises(QueueLockLostError, match="another control node has worked the queue since"):
        sleeper.decide()
    assert (node.state(first), node.state(second)) == (S.TERMINATED, S.RUNNING)
    node.run()
    assert node.state(second) is S.RUNNING
    assert [len(agent.of_session(second.id)) for agent in agents] == [2, 2]
    assert node.wrongly_removed == []


def test_a_worker_that_slept_while_another_worked_places_nothing_where_that_has_placed(node, agents, sleeps_before):
    """The session was as the sleeper knew it, and what it was placed on no longer free."""
    node.run()
    first = gang(node, 4)

    def another_takes_the_room() -> None:
        node.store.apply([transitions.hold(node.session(first), "ada", node.now)])
        gang(node, 4)
        node.run()
        node.store.apply([transitions.release(node.session(first), "ada", node.now)])

    sleeper = sleeps_before(node.store, "apply", another_takes_the_room)
    with pytest.raises(QueueLockLostError):
        sleeper.decide()
    node.run()
    assert [len(agent.containers) for agent in agents] == [2, 2]
    assert node.state(first) is S.PENDING


def test_a_launch_that_began_on_a_host_that_has_lost_its_disk_since_is_not_repeated(node, agents):
    """What that host knows is less than what it had accepted before: it proves nothing."""
    agents[0].generation = None
    node.run()
    node.gateway.crash_after = Crash()
    session = gang(node, 2, command="true")
    with pytest.raises(Crash):
        node.run(observe=False)
    assert all(container.released for container in agents[0].of_session(session.id))
    agents[0].reinstall()
    node.restart()
    node.run()
    assert (node.state(session), node.session(session).reason) == (
        S.TERMINATED,
        "agent a1 was rebooted during the launch",
    )


def test_a_new_agent_accepts_a_manifest_before_it_is_launched_upon(node, agents):
    """Its reports tell later whether it still knows what it knew then."""
    for agent in agents:
        agent.generation = None
    session = gang(node, 4)
    node.run()
    assert node.state(session) is S.RUNNING
    assert all(
        0 < kernel.agent_generation < node.session(session).generation for kernel in node.session(session).kernels
    )


def test_a_launch_that_never_came_is_tried_again_where_its_agent_was_rebooted_before(node, agents):
    """A newer manifest clears that up. It once left no trace of what had come before, and the session failed."""
    node.run()
    agents[0].reboot()
    node.gateway.crash_before = Crash()
    session = gang(node, 2)
    with pytest.raises(Crash):
        node.run(observe=False)
    node.restart()
    node.run(observe=False)
    assert "agent a1 was rebooted before the launch" in [line.reason for line in node.store.story(session.id)]
    node.now += 60
    node.run()
    assert node.state(session) is S.RUNNING
