"""A drained agent keeps what runs and gets nothing new."""

import pytest

from muster.core.model.session import SessionState

S = SessionState


def gang(node, size=4, **values):
    return node.submit(cluster_size=size, cluster_mode="multi-node", **values)


def test_sessions_of_a_drained_agent_run_on_and_can_be_ended(node, agents):
    session, other = node.submit(cpu=2), node.submit(cpu=2)
    node.run()
    node.store.agents.drain("a1", "disks")
    node.run()
    assert (node.state(session), agents[0].made) == (S.RUNNING, 1)
    node.end(session)
    node.run()
    assert (node.state(session), node.state(other)) == (S.TERMINATED, S.RUNNING)
    assert agents[0].containers == {}


def test_a_drained_agent_gets_nothing_new_until_it_is_resumed(node):
    node.store.agents.drain("a1", "disks")
    large, small = node.submit(cluster_size=2), node.submit()
    node.run()
    assert (node.session(large).agents, node.state(small)) == (("a2",), S.PENDING)
    wait = node.session(small).wait
    assert wait.filtered == {"drained": 1}
    assert "left out: 1 drained" in wait.message
    node.store.agents.resume("a1")
    node.run(observe=False)
    assert node.session(small).agents == ("a1",)


def test_an_observation_does_not_resume_an_agent(node):
    node.store.agents.drain("a1", "disks")
    node.run()
    assert [agent.drain_reason for agent in node.store.snapshot(node.now).agents] == ["disks", None]


@pytest.mark.parametrize("image", ["busybox", "debian:13"])
def test_sessions_that_are_only_placed_on_a_drained_agent_return_to_the_queue(node, agents, image):
    """It has no container yet: a1 is busy with another visit, or its image is still on its way."""
    agents[0].hangs = agents[0].pull_hangs = True
    if image == "busybox":
        node.worker.ledger = node.worker.ledger.observing(["a1"])
        node.go_on()
    session = node.submit(cpu=2, image=image)
    node.go_on()
    assert node.session(session).agents == ("a1",)
    node.store.agents.drain("a1", "disks")
    node.go_on_until(lambda: node.state(session) is S.RUNNING)
    assert node.session(session).agents == ("a2",)
    assert "agent a1 is being drained" in [line.reason for line in node.store.story(session.id)]
    node.gateway.let_go.set()


def test_a_drained_manager_keeps_the_overlays(node):
    session = gang(node)
    node.run()
    node.store.agents.drain("a1", "disks")
    node.run()
    assert node.state(session) is S.RUNNING
    node.end(session)
    node.run()
    assert (node.state(session), node.gateway.overlays) == (S.TERMINATED, {})


def test_a_launch_that_has_begun_on_a_drained_agent_is_carried_through(node):
    session = gang(node)
    node.gateway.meanwhile = lambda: node.store.agents.drain("a1", "disks")
    node.run()
    assert (node.state(session), node.session(session).agents) == (S.RUNNING, ("a1", "a2"))
