"""The pass with sick GPUs: they get no new sessions, those that run there go on, and their neighbours are used."""

import pytest

from muster.core.model.session import SessionState
from muster.service.agents.agents import Agents
from muster.settings import Settings
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import ControlNode, an_agent

S = SessionState
OFF_THE_BUS = "Xid 79: the GPU has fallen off the bus"


def sicken(agent: SimulatedAgent, index: int = 0, sequence: int = 1) -> None:
    agent.hardware["gpu_health"][index]["xids"] = [{"number": 79, "sequence": sequence}]


def gpu_of(node: ControlNode, session) -> list[str]:
    return [share.uuid for share in node.session(session).main.allocation.gpus]


@pytest.mark.parametrize("resources", [{"gpu": 1}, {"fgpu": 1}])
def test_new_sessions_take_the_neighbours_of_a_sick_gpu_and_then_wait_with_the_cause(control_node, resources):
    agent = an_agent(gpus=2, units_per_gpu=1)
    sicken(agent)
    node = control_node(agent)
    first, second = node.submit(**resources), node.submit(**resources)
    node.run()
    assert (node.state(first), node.state(second)) == (S.RUNNING, S.PENDING)
    assert gpu_of(node, first) == ["GPU-a1-1"]
    message = node.session(second).wait.message
    assert message.endswith("; in quarantine: GPU 0 of a1")
    assert message.startswith("too little is free now; ")


def test_sessions_on_a_gpu_that_falls_sick_go_on_and_their_stories_name_the_cause(control_node):
    agent = an_agent(gpus=1, units_per_gpu=2)
    node = control_node(agent)
    session = node.submit(fgpu=1)
    node.run()
    sicken(agent)
    node.run()
    problem = f"main1 has a GPU in quarantine, GPU 0 of a1: {OFF_THE_BUS}"
    assert (node.state(session), node.session(session).main.gpu_problem) == (S.RUNNING, problem)
    late = node.submit(fgpu=1)
    node.run()
    assert node.state(late) == S.PENDING
    Agents(node.store, Settings()).resume_gpu("a1", "0")
    node.run()
    assert node.state(late) == S.RUNNING
    gpu_notes = [line.reason for line in node.store.story(session.id) if line.from_state == line.to_state == S.RUNNING]
    assert gpu_notes == [problem, "main1 has all of its GPUs in service again"]
    assert node.session(session).main.gpu_problem is None
    sicken(agent, sequence=2)
    node.run()
    assert node.session(session).main.gpu_problem == problem


def test_a_session_that_was_promised_a_gpu_goes_back_to_the_queue_when_that_falls_sick(control_node):
    agent = an_agent(gpus=2)
    node = control_node(agent)
    agent.pull_hangs = True
    session = node.submit(gpu=1, image="registry.example/new:1")
    node.run()
    sick = int(gpu_of(node, session)[0][-1])
    sicken(agent, sick)
    node.run()
    reasons = [line.reason for line in node.store.story(session.id)]
    assert f"agent a1 has GPU {sick} in quarantine: {OFF_THE_BUS}" in reasons
    assert gpu_of(node, session) == [f"GPU-a1-{1 - sick}"]


def test_a_request_for_more_gpus_than_are_well_waits_for_the_sick_one_instead_of_never_fitting(control_node):
    agent = an_agent(gpus=2)
    sicken(agent)
    node = control_node(agent)
    session = node.submit(gpu=2)
    node.run()
    assert node.session(session).wait.message.startswith("too little is free now; ")
    agent.hardware["boot_id"] = "boot-2"
    agent.hardware["gpu_health"][0]["xids"] = []
    node.run()
    assert node.state(session) == S.RUNNING


def test_a_gpu_that_vanishes_is_shown_as_missing_and_is_not_placed_on(control_node):
    agent = an_agent(gpus=2)
    node = control_node(agent)
    node.run()
    gone = agent.hardware["gpus"].pop(0), agent.hardware["gpu_health"].pop(0)
    node.run()
    (known,) = node.store.agents.all()
    assert [gpu.quarantined_by for gpu in known.gpus] == [("missing",), ()]
    sessions = [node.submit(gpu=1) for _ in range(2)]
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING, S.PENDING]
    agent.hardware["gpus"].insert(0, gone[0])
    agent.hardware["gpu_health"].insert(0, gone[1])
    node.run()
    assert node.state(sessions[1]) == S.RUNNING
