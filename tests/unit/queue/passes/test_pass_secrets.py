"""Launches that need secrets: each kernel gets them; if one is missing, no agent gets the launch."""

from contextlib import suppress
from typing import Any

import pytest

from muster.core.lifecycle import transitions
from muster.core.model.session import Result, SessionState
from muster.core.values.errors import StoreUnavailableError
from muster.store.secrets import SecretRows
from tests.simulated.control_node import ControlNode, Crash
from tests.strategies.values import NOW

S = SessionState
HUSH = "hush, a secret"


@pytest.fixture
def node(control_node, agents) -> ControlNode:
    return control_node(*agents)


def kernels_of(manifests) -> list[dict[str, Any]]:
    return [
        {**kernel, "files": {**session["files"], **kernel["files"]}}
        for manifest in manifests
        for of_agent in manifest.values()
        for session in of_agent["sessions"]
        for kernel in session["kernels"]
        if "files" in kernel
    ]


def test_every_kernel_of_a_gang_is_given_its_owners_secrets(node):
    node.shell.secrets.set("ada", "token", HUSH, NOW)
    session = node.submit(cluster_size=3, cluster_mode="multi-node", secrets=["token=TOKEN"])
    other = node.submit()
    node.run()
    assert (node.state(session), node.state(other)) == (S.RUNNING, S.RUNNING)
    given = {kernel["id"]: kernel["files"].get("secrets/token") for kernel in kernels_of(node.gateway.manifests)}
    assert {given[kernel.id]["content"] for kernel in session.kernels} == {HUSH}
    assert given[other.id] is None


def test_a_launch_without_its_secret_is_over_before_an_agent_hears_of_it(node, agents):
    session, other = node.submit(secrets=["token"]), node.submit()
    node.run()
    failed = node.session(session)
    assert (failed.state, failed.result) == (S.ERROR, Result.FAILURE)
    assert failed.reason == "ada has no secret 'token' any more; set it with `muster secret set`"
    assert node.state(other) is S.RUNNING
    assert not any(agent.of_session(session.id) for agent in agents)


def test_a_database_that_is_away_for_a_moment_fails_no_launch(node, monkeypatch):
    node.shell.secrets.set("ada", "token", HUSH, NOW)
    session = node.submit(secrets=["token"])

    def away(_rows, _owner):
        raise StoreUnavailableError("database postgresql://db failed: connection lost")

    with monkeypatch.context() as changed, suppress(StoreUnavailableError):
        changed.setattr(SecretRows, "of", away)
        node.run()
    assert node.state(session) is S.PREPARING
    node.restart()
    node.run()
    assert node.state(session) is S.RUNNING


@pytest.mark.parametrize("commit", range(1, 8))
def test_a_crash_at_any_commit_of_such_a_launch_comes_to_the_same(node, agents, commit):
    session = node.submit(secrets=["token"])
    node.store.crash_in = commit
    with suppress(Crash):
        node.run()
    node.restart()
    node.run()
    assert node.state(session) is S.ERROR
    assert not any(agent.of_session(session.id) for agent in agents)


def test_a_restart_brings_the_secret_as_it_is_then_and_fails_where_it_is_gone(node):
    node.shell.secrets.set("ada", "token", HUSH, NOW)
    session = node.submit(secrets=["token"])
    node.run()
    node.shell.secrets.set("ada", "token", "changed", NOW)
    node.store.apply([transitions.restart(node.session(session), "ada", node.now)])
    node.run()
    assert kernels_of(node.gateway.manifests)[-1]["files"]["secrets/token"]["content"] == "changed"
    node.shell.secrets.remove("ada", "token")
    node.store.apply([transitions.restart(node.session(session), "ada", node.now)])
    node.run()
    assert node.state(session) is S.ERROR
