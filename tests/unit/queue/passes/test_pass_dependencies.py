"""Passes over sessions that depend on others, whatever becomes of those."""

from dataclasses import replace

import pytest

from muster.core.lifecycle.applied import applied
from muster.core.lifecycle.dependencies import cancel_impossible
from muster.core.model.session import Result, SessionState
from muster.core.model.snapshot import Snapshot
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import an_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

S = SessionState


@pytest.fixture
def agent() -> SimulatedAgent:
    return an_agent(cpus=8)


@pytest.fixture
def node(control_node, agent):
    return control_node(agent)


def test_what_was_to_start_after_a_failed_session_is_cancelled_and_so_is_what_follows_it(node, agent):
    prep = node.submit(name="prep", command="false")
    train = node.submit(name="train", command="true", after_ok=(prep.id,))
    score = node.submit(name="score", command="true", after_ok=(train.id,), held_by="ada")
    tidy = node.submit(name="tidy", command="true", after_any=(score.id,))
    node.run()
    agent.containers[prep.id].end(1)
    node.run()
    node.run()
    assert [node.state(one) for one in (prep, train, score)] == [S.TERMINATED, S.CANCELLED, S.CANCELLED]
    assert node.session(train).reason == "it was to start after prep succeeds, which failed"
    assert node.session(score).reason == "it was to start after train succeeds, which was cancelled"
    assert node.session(train).ended_at is not None
    assert node.state(tidy) is S.RUNNING
    assert node.story(train) == ["PENDING", "CANCELLED"]


def test_one_failed_session_of_an_array_cancels_all_that_was_to_start_after_it(node, agent):
    shards = [node.submit(command="x", array="0-1", array_id="a", array_index=number) for number in (0, 1)]
    after = tuple(shard.id for shard in shards)
    gathers = [
        node.submit(command="x", array="0-1", array_id="b", array_index=number, after_ok=after) for number in (0, 1)
    ]
    node.run()
    agent.containers[shards[1].id].end(2)
    node.run()
    node.run()
    assert [node.state(one) for one in gathers] == [S.CANCELLED] * 2
    assert node.state(shards[0]) is S.RUNNING


def test_a_site_may_let_them_wait(node, agent):
    node.shell = replace(node.shell, rules=replace(node.shell.rules, cancels_impossible=False))
    node.worker = type(node.worker)(node.shell, node.inbox.put)
    prep = node.submit(name="prep", command="false")
    train = node.submit(name="train", command="true", after_ok=(prep.id,))
    node.run()
    agent.containers[prep.id].end(1)
    node.run()
    node.run()
    assert (node.state(train), node.session(train).wait.code) == (S.PENDING, "never-runs")


def test_a_session_is_not_cancelled_while_the_other_may_be_queued_again(node, agent):
    prep = node.submit(name="prep", command="false", preemptible=True, requeue=True)
    train = node.submit(name="train", command="true", after_ok=(prep.id,))
    node.run()
    agent.reboot()
    node.run()
    node.run()
    assert node.state(train) is S.PENDING


def test_the_reason_does_not_name_another_owners_session():
    prep = replace(
        make_session(1, name="secret-plan", owner="bob"), state=S.TERMINATED, result=Result.FAILURE, ended_at=NOW
    )
    train = make_session(2, after_ok=(prep.id,))
    snapshot = Snapshot((), (train,), NOW, ended={prep.id: prep})
    (event,) = cancel_impossible(snapshot)
    assert event.reason == "it was to start after another session succeeds, which failed"
    assert cancel_impossible(applied(snapshot, [event])) == []
