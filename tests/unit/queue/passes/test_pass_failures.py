"""Failures are reported and harm no other session: of Ansible, of leftovers, of agents that refuse everything."""

from dataclasses import replace
from itertools import count

import pytest

from muster.core.agents.agent import AgentState
from muster.core.launch.manifest import LaunchPolicy
from muster.core.model.session import SessionState
from muster.core.values.errors import AnsibleFailedError, StoreUnavailableError
from muster.service.queue.worker import QueueWorker
from muster.store.owner_uids import OwnerUids
from tests.strategies.values import new_id

S = SessionState


def states_of_agents(node):
    return [agent.state for agent in node.store.snapshot(node.now).agents]


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (AnsibleFailedError("the inventory cannot be read"), "the inventory cannot be read"),
        (OSError(28, "No space left on device"), "Ansible cannot be run: .*No space left on device"),
    ],
)
def test_ansible_that_cannot_be_run_is_reported_and_loses_nothing(node, failure, said):
    running, waiting = node.submit(), node.submit(cluster_size=4, cluster_mode="multi-node")
    node.run(observe=False)
    node.gateway.fails = failure
    launching = node.submit()
    node.end(running)
    with pytest.raises(AnsibleFailedError, match=said):
        node.run()
    assert (node.state(running), node.state(launching)) == (S.TERMINATING, S.PENDING)
    assert states_of_agents(node) == [AgentState.ALIVE, AgentState.ALIVE]
    node.gateway.fails = None
    node.now += 60
    node.run()
    assert (node.state(running), node.state(waiting), node.state(launching)) == (S.TERMINATED, S.RUNNING, S.PENDING)


def test_after_a_failure_ansible_is_left_alone_for_a_while(node):
    node.gateway.fails = AnsibleFailedError("the inventory cannot be read")
    session = node.submit()
    with pytest.raises(AnsibleFailedError):
        node.run(observe=False)
    node.gateway.fails = None
    before = len(node.gateway.observations)
    node.run()
    assert (node.state(session), len(node.gateway.observations)) == (S.PREPARING, before)
    assert node.worker.ledger.paused_until > node.now
    node.now = node.worker.ledger.paused_until
    node.run(observe=False)
    assert node.state(session) is S.RUNNING


def test_a_run_that_breaks_off_says_nothing_of_the_agents_that_it_did_not_ask(node):
    sessions = [node.submit(cpu=2) for _ in range(2)]
    node.run()
    node.gateway.breaks_off_after = 1
    with pytest.raises(AnsibleFailedError):
        node.run()
    assert states_of_agents(node) == [AgentState.ALIVE, AgentState.ALIVE]
    assert [node.state(session) for session in sessions] == [S.RUNNING, S.RUNNING]


def test_an_agent_that_ansible_brings_no_answer_of_is_unreachable(node):
    session = node.submit()
    del node.gateway.agents["a1"]
    node.run(observe=False)
    assert node.worker.work.problems == {"a1": "Ansible returned no answer from it"}
    assert states_of_agents(node) == [AgentState.UNREACHABLE, AgentState.ALIVE]
    assert node.state(session) is S.PREPARING


def test_leftovers_that_resist_are_tried_once_for_each_observation(node, agents):
    session = node.submit()
    node.run()
    agents[0].containers["stray"] = replace(agents[0].containers[session.id], kernel_id="stray", session_id="stray")
    agents[0].resists = True
    tried = len(node.gateway.manifests)
    node.run()
    assert len(node.gateway.manifests) == tried + 1
    for _ in range(3):
        node.run(observe=False)
    assert len(node.gateway.manifests) == tried + 1
    node.run()
    assert len(node.gateway.manifests) == tried + 2
    agents[0].resists = False
    node.run()
    assert list(agents[0].containers) == [session.id]


def test_what_no_report_names_is_tried_again_until_it_is_removed(node, agents):
    node.submit()
    agents[0].resists, agents[0].leftover_files = True, "files of session 6f1c"
    node.run()
    (session,) = node.gateway.manifests[-1]["a1"]["sessions"]
    assert session["desired"] == "launch"
    tried = len(node.gateway.manifests)
    node.run(observe=False)
    assert len(node.gateway.manifests) == tried, "the next observation is soon enough"
    node.run()
    assert len(node.gateway.manifests) == tried + 1
    agents[0].resists = False
    node.run()
    assert len(node.gateway.manifests) == tried + 2
    node.run()
    assert len(node.gateway.manifests) == tried + 2


def test_files_of_a_session_that_is_not_there_are_removed_and_those_of_others_stay(node, agents):
    session = node.submit()
    node.run()
    agents[0].files.add(new_id(9))
    tried = len(node.gateway.manifests)
    node.run()
    assert agents[0].files == {session.id}
    assert len(node.gateway.manifests) == tried + 1
    node.run()
    assert len(node.gateway.manifests) == tried + 1


def test_ids_that_an_agent_makes_up_cost_a_visit_for_each_observation(node, agents):
    node.run()
    made_up = (new_id(number) for number in count(9))

    def says(result):
        result["report"]["files"] = [next(made_up)]
        return result

    agents[0].says = says
    tried = len(node.gateway.manifests)
    node.run()
    for _ in range(3):
        node.run(observe=False)
    assert len(node.gateway.manifests) == tried + 1


def test_leftovers_that_resist_hold_up_nothing(node, agents):
    session = node.submit()
    node.run()
    agents[0].containers["stray"] = replace(agents[0].containers[session.id], kernel_id="stray", session_id="stray")
    agents[0].resists = True
    node.run()
    other = node.submit()
    node.end(session)
    node.run()
    assert (node.state(session), node.state(other)) == (S.TERMINATED, S.RUNNING)


def test_a_stop_that_fails_is_tried_once_for_each_observation(node, agents):
    session = node.submit(cluster_size=2)
    node.run()
    agents[0].stops_fail = True
    node.end(session)
    node.run()
    tried = len(node.gateway.manifests)
    node.run(observe=False)
    assert (node.state(session), len(node.gateway.manifests)) == (S.TERMINATING, tried)
    node.run()
    assert (node.state(session), len(node.gateway.manifests)) == (S.TERMINATING, tried + 1)
    agents[0].stops_fail = False
    node.run()
    assert node.state(session) is S.TERMINATED


def test_uids_that_the_database_does_not_tell_for_a_moment_fail_no_launch(node, monkeypatch):
    node.shell = replace(node.shell, launch_policy=LaunchPolicy(owner_uid_range=range(5000, 5010)))
    node.worker = QueueWorker(node.shell, node.inbox.put)
    session = node.submit()

    def away(_uids, _owners, _range, _kept):
        raise StoreUnavailableError("database postgresql://db failed: connection lost")

    with monkeypatch.context() as changed:
        changed.setattr(OwnerUids, "given", away)
        with pytest.raises(StoreUnavailableError):
            node.run()
    assert node.state(session) is S.PREPARING
    node.restart()
    node.run()
    assert node.state(session) is S.RUNNING
