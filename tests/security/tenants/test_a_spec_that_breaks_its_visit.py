"""A tenant's spec that no manifest can carry: that session's launch fails, and all others go on."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.ansible_gateway.templates import Templates
from muster.core.model.session import Result, SessionState
from muster.core.spec.errors import validated
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import SpecError
from muster.service.queue.worker import QueueWorker

S = SessionState


def break_for(node, name: str) -> None:
    """Let a template of the site fail for one session, as for a field that it did not think of."""
    render = Templates().render

    def failing(template: str, variables: Mapping[str, Any]) -> str:
        if variables.get("session") is not None and variables["session"].name == name:
            raise KeyError("no such\nfield")
        return render(template, variables)

    node.shell = replace(node.shell, render=failing)
    node.worker = QueueWorker(node.shell, node.inbox.put)


def test_a_session_of_which_no_manifest_can_be_written_fails_alone(node, agents):
    break_for(node, "evil")
    runs = node.submit()
    node.run()
    evil, other, gang = node.submit(name="evil"), node.submit(), node.submit(cluster_size=2, cluster_mode="multi-node")
    node.run()
    failed = node.session(evil)
    assert (failed.state, failed.result) == (S.ERROR, Result.FAILURE)
    assert failed.reason == "its manifest cannot be written (KeyError); the daemon's log says why"
    assert [node.state(session) for session in (runs, other, gang)] == [S.RUNNING] * 3
    assert not any(agent.of_session(evil.id) for agent in agents)


def test_a_gang_over_two_agents_of_which_no_manifest_can_be_written_leaves_nothing(node, agents):
    break_for(node, "evil")
    evil = node.submit(name="evil", cluster_size=4, cluster_mode="multi-node")
    node.run()
    other = node.submit(cluster_size=4, cluster_mode="multi-node")
    node.run()
    assert (node.state(evil), node.state(other)) == (S.ERROR, S.RUNNING)
    assert not any(agent.of_session(evil.id) for agent in agents)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"mounts": ["x" * 300]}, "mounts[0].folder"),
        ({"mounts": ["é" * 128]}, "mounts[0].folder"),
        ({"mounts": ["a/" * 600 + "b"]}, "mounts[0].folder"),
        ({"mounts": ["x:/data/" + "y" * 300]}, "mounts[0].target"),
        ({"mounts": ["a\nb"]}, "mounts[0].folder"),
        ({"mounts": [f"f{number}:/data/{number}" for number in range(101)]}, "mounts"),
        ({"image": "a\x1b[2Jb"}, "image"),
        ({"image": "x" * 1025}, "image"),
        ({"roles": [{"name": "ps", "image": "a\nb"}]}, "roles[0].image"),
        ({"roles": [{"name": "ps", "command": "x" * (128 << 10)}]}, "roles[0].command"),
        ({"command": "x" * (128 << 10)}, "command"),
        ({"command": "true\0"}, "command"),
        ({"script": "x" * ((1 << 20) + 1)}, "script"),
        ({"script": "\ud800"}, "script"),
        ({"env": {"A": "x" * (128 << 10)}}, "env"),
        ({"env": {f"A{number}": "" for number in range(1001)}}, "env"),
        ({"env": {"A": "\udc80"}}, "env"),
        ({"env": {"A": "\0"}}, "env"),
        ({"agents": ["a1\0"]}, "agents"),
        ({"agents": ["x" * 1025]}, "agents"),
        ({"gpu_models": [str(number) for number in range(1001)]}, "gpu_models"),
        ({"labels": {"disk": "\x1b[2J"}}, "labels"),
        ({"labels": {"disk": "x" * 1025}}, "labels"),
        ({"project": "a\u202eb"}, "project"),
        ({"resource_group": "\x9b"}, "resource_group"),
        ({"after": [f"s{number}" for number in range(10_001)]}, "after"),
        ({"time_limit": "999999999d"}, "time_limit"),
        ({"idle_timeout": "999999999d"}, "idle_timeout"),
        ({"ssh_keys": ["ssh-rsa " + "A" * (64 << 10)]}, "ssh_keys"),
        ({"workdir": "/" + "x" * 1024}, "workdir"),
        ({"apps": [{"name": "a", "port": 1, "command": "x" * (128 << 10)}]}, "apps[0].command"),
        ({"apps": [{"name": "a", "health": "/" + "x" * 1024}]}, "apps[0].health"),
    ],
)
def test_a_spec_that_no_host_can_run_is_refused_in_one_line_with_its_field(values, field):
    with pytest.raises(SpecError) as refused:
        validated(SessionSpec, values)
    (error,) = refused.value.errors
    assert error.field == field
    assert str(error).isprintable()
    assert len(str(error)) < 300


def test_a_queued_spec_from_before_a_bound_is_still_read():
    """Bounds are for what comes in: one that a later version brings must not break the queue."""
    text = SessionSpec(name="old", time_limit=5).model_dump_json()
    old = text.replace('"time_limit":"300s"', '"time_limit":"999999999d"').replace(
        '"command":null', '"command":"a\\u0000"'
    )
    assert old != text
    assert SessionSpec.model_validate_json(old).time_limit == 999999999 * 86400
