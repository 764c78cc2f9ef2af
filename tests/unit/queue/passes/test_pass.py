"""The pass, by example: a real store and simulated agents."""

from dataclasses import replace

import pytest

from muster.core.lifecycle.transitions import MAX_LAUNCHES
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import Result, SessionState
from muster.service.queue.worker import QueueWorker
from tests.simulated.agents import Failing, Network, SimulatedAgent
from tests.simulated.control_node import an_agent

S = SessionState


@pytest.fixture
def agent() -> SimulatedAgent:
    return an_agent(cpus=4)


@pytest.fixture
def node(control_node, agent):
    return control_node(agent)


def test_one_pass_takes_a_session_from_the_queue_to_running(node, agent):
    session = node.submit(cluster_size=3)
    summary = node.run()
    assert (summary.scheduled, summary.started, summary.changed) == ([session.id], [session.id], True)
    assert node.story(session) == ["PENDING", "SCHEDULED", "PREPARING", "RUNNING"]
    assert [c.name for c in agent.of_session(session.id)] == ["main1", "sub1", "sub2"]
    running = node.session(session)
    assert (running.main.ssh_port, running.main.container_state) == (49153, "running")
    assert running.public_key == f"ssh-ed25519 AAAA muster-{session.name}"


def test_a_session_that_waits_starts_when_another_ends(node):
    first, second = node.submit(cpu=3), node.submit(cpu=3)
    assert node.run().waiting == 1
    assert node.session(second).wait.code == "busy"
    node.end(first)
    node.run()
    node.run()
    assert (node.state(first), node.state(second)) == (S.TERMINATED, S.RUNNING)
    assert node.session(second).wait is None


def test_one_visit_ends_a_session_whose_command_has_ended_and_starts_the_next(node, agent):
    first, second = node.submit(cpu=3, command="true"), node.submit(cpu=3)
    node.run()
    agent.containers[first.id].end(0)
    visits = len(node.gateway.manifests)
    node.run()
    assert (node.state(first), node.state(second)) == (S.TERMINATED, S.RUNNING)
    desired = {entry["id"]: entry["desired"] for entry in node.gateway.manifests[visits]["a1"]["sessions"]}
    assert desired == {first.id: "stop", second.id: "launch"}


def test_a_batch_session_ends_with_its_command_and_leaves_its_log(node, agent):
    session = node.submit(command="python train.py", cluster_size=2)
    node.run()
    agent.containers[session.id].end(3)
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.result, ended.exit_code) == (S.TERMINATED, Result.FAILURE, 3)
    assert ended.ended_at is not None
    assert (agent.containers, agent.networks) == ({}, {})
    assert node.store.log(session.id, "main1") == b"main1\n"
    assert node.store.log(session.id, "sub1") == b"sub1\n"


def test_nothing_is_converged_and_nothing_written_when_there_is_nothing_to_do(node):
    node.submit()
    node.submit(cpu=4)
    # In how many passes a session was the first that did not fit is counted until its room is reserved.
    for _ in range(GroupPolicy().reserve_after_passes):
        node.run()
    before, known = len(node.gateway.manifests), node.store.search()
    for _ in range(3):
        assert not node.run().changed
    assert len(node.gateway.manifests) == before
    assert node.store.search() == known


def test_without_observing_the_last_reports_serve(node):
    node.run()
    session = node.submit()
    node.run(observe=False)
    assert (node.state(session), len(node.gateway.observations)) == (S.RUNNING, 1)


@pytest.mark.parametrize("stray", [{"session_id": "stray"}, {"generation": 1}])
def test_a_container_that_no_session_accounts_for_is_removed(node, agent, stray):
    session = node.submit()
    node.run()
    # An old one is not another database's.
    node.store.queue.disown_unknown()
    agent.containers["stray"] = replace(agent.containers[session.id], kernel_id="stray", **stray)
    assert not node.run().changed
    assert list(agent.containers) == [session.id]
    assert node.state(session) is S.RUNNING


def test_a_network_that_no_session_accounts_for_is_removed(node, agent):
    session = node.submit()
    node.run()
    agent.networks["stray"] = Network("muster-stray", "bridge", 1)
    node.run()
    assert list(agent.networks) == [session.id]


def test_a_launch_that_fails_now_is_tried_again_and_may_succeed(node, agent):
    agent.next_launches = [Failing.TRANSIENT]
    session = node.submit()
    node.run()
    assert node.state(session) is S.PENDING
    assert node.session(session).agents == ()
    assert (agent.containers, agent.networks) == ({}, {})
    node.run()
    assert node.session(session).wait.code == "retry"
    node.now += 60
    node.run()
    assert node.state(session) is S.RUNNING


def test_a_launch_that_fails_again_and_again_is_an_error(node, agent):
    agent.next_launches = [Failing.TRANSIENT] * MAX_LAUNCHES
    session = node.submit()
    for _ in range(MAX_LAUNCHES):
        assert node.state(session) is S.PENDING
        node.run()
        node.now += 3600
    assert (node.state(session), node.session(session).result) == (S.ERROR, Result.FAILURE)


def test_a_launch_that_fails_for_good_is_an_error_at_once(node, agent):
    agent.next_launches = [Failing.PERMANENT]
    session = node.submit()
    assert node.run().failed == [session.id]
    assert "it fails" in node.session(session).reason


def test_other_sessions_are_kept_while_one_is_launched_and_one_is_stopped(node, agent):
    kept, ended = node.submit(), node.submit()
    node.run()
    node.end(ended)
    started = node.submit()
    node.run()
    desired = {entry["id"]: entry["desired"] for entry in node.gateway.manifests[-1]["a1"]["sessions"]}
    assert desired == {kept.id: "keep", ended.id: "stop", started.id: "launch"}
    assert agent.containers[kept.id].number == 1


def test_a_manifest_says_all_that_a_kernel_needs(node):
    session = node.submit(
        cluster_size=2, cpu=1.5, mem="2G", shm="128M", command="hostname", env={"A": "1"}, mounts=["data:/data:ro"]
    )
    node.run()
    manifest = node.gateway.manifests[-1]["a1"]
    assert manifest["generation"] == node.session(session).generation
    (entry,) = manifest["sessions"]
    main, sub = entry["kernels"]
    assert (main["command"], sub["command"]) == (["sh", "-c", "hostname"], [])
    assert (main["publish"], sub["publish"]) == ([], [])
    assert main["env"]["A"] == "1"
    assert main["resources"] == {
        "cpu_milli": 1500,
        "mem_bytes": 2 << 30,
        "shm_bytes": 128 << 20,
        "disk_bytes": None,
        "pids": 4096,
        "cpuset": None,
    }
    assert (main["gpus"], main["gpu_access"]) == ([], None)
    assert main["mounts"] == [{"folder": "data", "target": "/data", "read_only": True, "owned": False}]
    assert entry["network"]["name"] == f"muster-{session.id.replace('-', '')[:12]}"
    files = {**entry["files"], **main["files"]}
    assert files["id_ed25519"] == {"content": "private", "mode": "0600"}
    assert "sub1 slots=1" in files["hostfile"]["content"]


def test_a_kernel_gets_the_gpus_that_it_was_given(control_node):
    node = control_node(an_agent(gpus=2, units_per_gpu=1))
    node.submit(fgpu="0.5")
    node.submit(gpu=1)
    node.run()
    sessions = node.gateway.manifests[-1]["a1"]["sessions"]
    given = [entry["kernels"][0]["gpu_access"]["devices"]["ids"] for entry in sessions]
    assert sorted(map(len, given)) == [1, 1]
    assert given[0] != given[1]


def test_an_agent_whose_module_fails_has_failed_the_launch_and_gets_no_other_until_it_answers(node, agent):
    node.run()
    agent.module_fails = "the engine does not answer"
    session = node.submit()
    assert node.run(observe=False).problems == {"a1": "the engine does not answer"}
    failed = node.session(session)
    assert (failed.state, failed.reason) == (S.PENDING, "agent a1: the engine does not answer")
    assert failed.attempts == 1
    node.now += 60
    node.run()
    assert node.session(session).wait.filtered == {"unreachable": 1}
    agent.module_fails = ""
    node.run()
    assert node.state(session) is S.RUNNING


def test_an_agent_that_is_observed_while_a_session_waits_for_it_is_in_a_hurry(node, agent):
    hurried: list[frozenset[str]] = []
    node.worker = QueueWorker(replace(node.shell, hurry=hurried.append), node.inbox.put)
    node.run()
    agent.hangs = True
    node.run()
    assert hurried == []
    session = node.submit()
    node.run(observe=False)
    assert (node.state(session), hurried) == (S.SCHEDULED, [{agent.id}])
    node.gateway.let_go.set()
    node.go_on_until(lambda: node.state(session) is S.RUNNING)


def test_a_session_that_is_ended_while_it_is_launched_ends_with_its_log(node, agent):
    session = node.submit()

    def end_once() -> None:
        node.gateway.meanwhile = lambda: None
        node.end(session)

    node.gateway.meanwhile = end_once
    node.run()
    assert node.story(session) == ["PENDING", "SCHEDULED", "PREPARING", "TERMINATING", "TERMINATED"]
    assert node.store.log(session.id, "main1") == b"main1\n"
    assert agent.containers == {}


def test_a_launch_whose_answer_was_lost_is_adopted(node, agent):
    agent.answer_gets_lost = True
    session = node.submit()
    node.run()
    assert node.state(session) is S.PREPARING
    agent.answer_gets_lost = False
    node.run()
    assert node.story(session) == ["PENDING", "SCHEDULED", "PREPARING", "RUNNING"]
    assert agent.made == 1


def preempt(node):
    """Let the site preempt sessions from now on."""
    policy = SchedulingPolicy(GroupPolicy(preemption=True))
    node.shell = replace(node.shell, with_policy=lambda snapshot: replace(snapshot, policy=policy))
    node.worker = QueueWorker(node.shell, node.inbox.put)


@pytest.mark.parametrize("values", [{"time_limit": "60s"}, {"preemptible": True, "requeue": True}])
def test_a_command_that_ended_well_while_nobody_worked_the_queue_has_succeeded(node, agent, values):
    """Its time limit has passed since, or another session asks for its place."""
    session = node.submit(command="python train.py", cpu=3, **values)
    node.run()
    agent.containers[session.id].end(0)
    node.now += 120
    urgent = node.submit(cpu=3, priority=90)
    node.restart()
    preempt(node)
    node.run()
    ended = node.session(session)
    reason = "the command ended with exit code 0"
    assert (ended.state, ended.result, ended.reason) == (S.TERMINATED, Result.SUCCESS, reason)
    assert node.state(urgent) is S.RUNNING


def test_sessions_that_run_are_still_preempted_and_ended_by_their_time_limit(node):
    limited, cheap = node.submit(time_limit="60s", cpu=1), node.submit(preemptible=True, cpu=3)
    preempt(node)
    node.run()
    node.now += 120
    urgent = node.submit(cpu=3, priority=90)
    node.run()
    reasons = [node.session(session).reason for session in (limited, cheap)]
    assert reasons[0] == "its time limit of 1m is reached"
    assert reasons[1].startswith(f"preempted by {urgent.name}")
    assert [node.state(session) for session in (limited, cheap, urgent)] == [S.TERMINATED, S.TERMINATED, S.RUNNING]


def test_an_agent_is_asked_before_a_time_limit_ends_a_session(node, agent):
    """Its command may have ended well since the last observation."""
    good, slow = (node.submit(command="python train.py", time_limit="60s") for _ in range(2))
    node.run()
    agent.containers[good.id].end(0)
    node.now += 120
    node.run(observe=False)
    assert [node.session(session).reason for session in (good, slow)] == [
        "the command ended with exit code 0",
        "its time limit of 1m is reached",
    ]
