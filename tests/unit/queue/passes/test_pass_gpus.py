"""The pass where sessions share GPUs: what a kernel gets, and what becomes of one that takes more."""

from typing import Any

import pytest

from muster.core.gpus.check import TOLERANCE_BYTES
from muster.core.model.session import Result, SessionState
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import an_agent

S = SessionState
CAP = 256 << 20


def host(**attributes: Any) -> SimulatedAgent:
    """Return an agent with one GPU of 1 GiB and two units."""
    return an_agent(gpus=1, units_per_gpu=2, **attributes)


def use(agent: SimulatedAgent, session, mem_bytes: int | None) -> None:
    agent.containers[session.id].gpu_used_bytes = mem_bytes


def gpu_notes(node, session) -> list[str]:
    return [line.reason for line in node.store.story(session.id) if line.from_state == line.to_state == S.RUNNING]


def test_three_sessions_of_a_unit_on_a_gpu_of_two_are_two_that_run_and_one_that_waits(control_node):
    agent = host()
    node = control_node(agent)
    sessions = [node.submit(fgpu=1) for _ in range(3)]
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING, S.RUNNING, S.PENDING]
    caps = [container.gpus[0]["mem_bytes"] for container in agent.containers.values()]
    assert caps == [512 << 20, 512 << 20]
    node.end(sessions[0])
    node.run()
    assert node.state(sessions[2]) == S.RUNNING


def test_a_container_above_its_share_is_reported_at_the_begin_and_at_the_end(control_node):
    agent = host()
    node = control_node(agent)
    session = node.submit(fgpu="0.5")
    node.run()
    use(agent, session, CAP + TOLERANCE_BYTES)
    node.run()
    assert gpu_notes(node, session) == []
    use(agent, session, CAP + TOLERANCE_BYTES + 1)
    node.run()
    problem = "main1 uses 320 MiB of GPU memory, its share is 256 MiB"
    assert gpu_notes(node, session) == [problem]
    assert (node.session(session).main.gpu_problem, node.session(session).reason) == (problem, problem)
    use(agent, session, 2 * CAP)
    node.run()
    # A driver that cannot say now says nothing of whether it is over.
    use(agent, session, None)
    node.run()
    assert (gpu_notes(node, session), node.session(session).main.gpu_problem) == ([problem], problem)
    use(agent, session, CAP)
    node.run()
    assert gpu_notes(node, session) == [problem, "main1 keeps to its share of GPUs again"]
    assert node.session(session).main.gpu_problem is None
    assert node.state(session) == S.RUNNING


def test_each_process_of_a_container_is_allowed_the_error_of_its_own_context(control_node):
    agent = host(fgpu_over_cap="end")
    node = control_node(agent)
    session = node.submit(fgpu="0.5")
    node.run()
    agent.containers[session.id].gpu_processes = 4
    use(agent, session, CAP + 4 * TOLERANCE_BYTES)
    node.run()
    assert (gpu_notes(node, session), node.state(session)) == ([], S.RUNNING)
    use(agent, session, CAP + 4 * TOLERANCE_BYTES + 1)
    node.run()
    assert node.state(session) == S.TERMINATED


@pytest.mark.parametrize("processes", [0, None])
def test_memory_that_no_process_is_listed_for_is_allowed_the_error_of_one_context(control_node, processes):
    agent = host()
    node = control_node(agent)
    session = node.submit(fgpu="0.5")
    node.run()
    agent.containers[session.id].gpu_processes = processes
    use(agent, session, CAP + TOLERANCE_BYTES)
    node.run()
    assert gpu_notes(node, session) == []
    use(agent, session, CAP + TOLERANCE_BYTES + 1)
    node.run()
    assert len(gpu_notes(node, session)) == 1


def test_best_effort_may_be_above_its_share_where_the_site_overcommits(control_node):
    agent = host(fgpu_overcommit=1.5)
    node = control_node(agent)
    rest, guaranteed = node.submit(fgpu="0.5", best_effort=True), node.submit(fgpu="0.5")
    node.run()
    for session in (rest, guaranteed):
        use(agent, session, CAP * 3 // 2)
    node.run()
    assert gpu_notes(node, rest) == []
    assert gpu_notes(node, guaranteed) == ["main1 uses 384 MiB of GPU memory, its share is 256 MiB"]


@pytest.mark.parametrize("before", [0, 2 * CAP])
def test_a_site_may_have_such_a_session_ended(control_node, before):
    agent = host()
    node = control_node(agent)
    session, other = node.submit(fgpu="0.5"), node.submit(fgpu="0.5")
    node.run()
    use(agent, session, before)
    node.run()
    agent.inventory["fgpu_over_cap"] = "end"
    use(agent, session, 2 * CAP)
    node.run()
    ended = node.session(session)
    assert (ended.state, ended.result) == (S.TERMINATED, Result.FAILURE)
    assert ended.reason == "main1 uses 512 MiB of GPU memory, its share is 256 MiB"
    assert node.state(other) == S.RUNNING


def test_a_program_without_the_libraries_is_reported_and_ended_if_the_site_wants_it(control_node):
    agent = host()
    node = control_node(agent)
    session, other = node.submit(fgpu="0.5"), node.submit(fgpu="0.5")
    node.run()
    agent.containers[session.id].uncapped = [57, 8]
    node.run()
    problem = "main1 has programs on a GPU without the libraries that cap its share: process 57 and 8 in its container"
    assert (gpu_notes(node, session), node.state(session)) == ([problem], S.RUNNING)
    agent.containers[session.id].uncapped = []
    node.run()
    assert gpu_notes(node, session) == [problem, "main1 keeps to its share of GPUs again"]
    agent.inventory["fgpu_over_cap"] = "end"
    agent.containers[session.id].uncapped = [57]
    node.run()
    assert (node.state(session), node.session(session).result) == (S.TERMINATED, Result.FAILURE)
    assert node.session(session).reason == problem.replace(" and 8", "")
    assert node.state(other) == S.RUNNING


def test_whole_gpus_have_no_cap(control_node):
    agent = host(fgpu_over_cap="end")
    node = control_node(agent)
    session = node.submit(gpu=1)
    node.run()
    use(agent, session, 1 << 30)
    node.run()
    assert (node.state(session), gpu_notes(node, session)) == (S.RUNNING, [])


def test_a_container_that_holds_another_gpu_than_recorded_is_reported(control_node):
    agent = host()
    node = control_node(agent)
    session = node.submit(fgpu="0.5")
    node.run()
    container = agent.containers[session.id]
    container.gpus = [{**container.gpus[0], "uuid": "GPU-other"}]
    node.run()
    assert gpu_notes(node, session) == ["main1 holds GPU-other, but was promised GPU-a1-0"]
    assert node.state(session) == S.RUNNING


def test_a_container_that_an_older_muster_made_has_no_label_to_compare(control_node):
    agent = host()
    node = control_node(agent)
    session = node.submit(fgpu="0.5")
    node.run()
    agent.containers[session.id].gpus = []
    node.run()
    assert gpu_notes(node, session) == []


def test_a_session_that_is_queued_again_begins_without_what_was_wrong_before(control_node):
    first, second = host(), an_agent("a2")
    node = control_node(first, second)
    session = node.submit(fgpu="0.5", requeue=True)
    node.run()
    use(first, session, 2 * CAP)
    node.run()
    first.reachable = False
    node.run()
    node.now += 10_000
    node.run()
    assert (node.state(session), node.session(session).main.gpu_problem) == (S.PENDING, None)
