"""Elastic sessions in the pass: kernels, environment and lists of hosts are those that were given, run after run."""

import pytest

from muster.core.lifecycle import transitions
from muster.core.model.session import SessionState
from tests.simulated.control_node import an_agent
from tests.unit.queue.passes.hosts_away.agents_away import is_lost

S = SessionState
SPREAD = {"cluster_mode": "multi-node", "cpu": 1}


@pytest.fixture
def agents():
    return [an_agent(name, cpus=cpus, swarm="manager") for name, cpus in (("a1", 3), ("a2", 3))]


@pytest.fixture
def node(control_node, agents):
    return control_node(*agents)


def launched(node, session):
    """Return by name the kernels that manifests said to launch."""
    manifests = [manifest for visit in node.gateway.manifests for manifest in visit.values()]
    entries = [entry for manifest in manifests for entry in manifest["sessions"] if entry["id"] == session.id]
    return {
        kernel["name"]: {**kernel, "files": {**entry["files"], **kernel["files"]}}
        for entry in entries
        if entry["desired"] == "launch"
        for kernel in entry["kernels"]
    }


def test_it_is_launched_with_what_it_was_given_and_told_so(node, agents):
    session = node.submit(cluster_size="2-8", **SPREAD)
    node.run()
    runs = node.session(session)
    assert (runs.state, runs.given, len(runs.spare)) == (S.RUNNING, 6, 2)
    names = ["main1", "sub1", "sub2", "sub3", "sub4", "sub5"]
    assert sorted(c.name for agent in agents for c in agent.of_session(session.id)) == names
    kernels = launched(node, session)
    assert sorted(kernels) == names
    for kernel in kernels.values():
        assert kernel["env"]["WORLD_SIZE"] == kernel["env"]["BACKENDAI_CLUSTER_SIZE"] == "6"
        assert kernel["env"]["BACKENDAI_CLUSTER_HOSTS"] == ",".join(names)
        assert kernel["files"]["hosts"]["content"].split() == names
        assert len(kernel["files"]["hostfile"]["content"].splitlines()) == 6


def test_after_an_agent_was_lost_it_starts_with_what_there_is_then(node, agents):
    session = node.submit(cluster_size="2-8", requeue=True, **SPREAD)
    node.run()
    agents[0].reachable = False
    is_lost(node)
    node.run()
    again = node.session(session)
    assert (again.state, again.given, again.agents) == (S.RUNNING, 3, ("a2",))
    assert {c.generation for c in agents[1].of_session(session.id)} == {again.generation}
    assert [line.reason for line in node.store.story(session.id) if "with" in line.reason] == [
        "placed on a1, a2, with 6 of 2-8 containers",
        "placed on a2, with 3 of 2-8 containers",
    ]


def test_a_restarted_session_keeps_its_size(node):
    session = node.submit(cluster_size="2-8", **SPREAD)
    node.run()
    before = node.session(session)
    assert node.store.apply([transitions.restart(before, "ada", node.now)])
    node.run()
    node.run()
    after = node.session(session)
    assert (after.state, after.given, after.generation > before.generation) == (S.RUNNING, 6, True)
    assert [kernel.allocation for kernel in after.kernels] == [kernel.allocation for kernel in before.kernels]
