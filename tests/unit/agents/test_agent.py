"""What a report says of an agent, and what silence does."""

from dataclasses import replace

import pytest

from muster.contract.report import stored_report
from muster.core.agents.agent import AgentState
from muster.core.agents.gpu_model import is_of_model
from muster.core.agents.numa import NumaNode, cpuset, promised_by_node
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW


def test_an_agent_made_of_a_report_keeps_back_what_is_reserved():
    agent = make_agent(cpus=8, mem_bytes=16 << 30, gpus=2, units_per_gpu=2, reserved_cpu=1.5, reserved_mem="2G")
    assert (agent.capacity.cpu, agent.capacity.mem) == (6500, 14 << 30)
    assert (agent.capacity.gpu, agent.capacity.fgpu) == (2, 4000)


def test_labels_rack_and_zone_are_those_of_the_inventory():
    agent = make_agent(labels={"gpu": "a100", "ssd": True, "generation": 4}, rack=12, zone="dc-1/hall-2")
    assert agent.labels == {"gpu": "a100", "ssd": "true", "generation": "4"}
    assert (agent.rack, agent.zone) == ("12", "dc-1/hall-2")
    unsaid = make_agent(labels=None, rack=None)
    assert (unsaid.labels, unsaid.rack, unsaid.zone) == ({}, "", "")


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"resource_group": "a b"}, "resource_group: 'a b' is no name; write letters,"),
        ({"labels": ["gpu"]}, "labels: ['gpu'] is not a mapping; write names with values"),
        ({"labels": {"my gpu": "a100"}}, "labels: 'my gpu' is no name of a label; write letters,"),
        ({"labels": {"cuda": 12.4}}, "labels.cuda: 12.4 is not text; put it in quotes"),
        ({"labels": {"gpu": ""}}, "labels.gpu: '' is no value of a label; write one line"),
        ({"labels": {"gpu": "a\nb"}}, "labels.gpu: 'a\\nb' is no value of a label; write one line"),
        ({"rack": {"row": 3}}, "rack: {'row': 3} is no name; write letters,"),
        ({"zone": "hall 2"}, "zone: 'hall 2' is no name; write letters,"),
        ({"reserved_cpu": "many"}, "reserved_cpu: 'many' is not a number; write a number"),
        ({"reserved_mem": "2Q"}, "reserved_mem: '2Q' is not an amount of bytes; write bytes"),
        ({"fgpu_overcommit": 0.5}, "fgpu_overcommit: 0.5 is no such factor; write a factor from 1 to 16, such as 1.5"),
        ({"fgpu_overcommit": "a lot"}, "fgpu_overcommit: 'a lot' is not a number; write a factor from 1 to 16"),
        ({"fgpu_overcommit": 17}, "fgpu_overcommit: 17 is no such factor; write a factor from 1 to 16"),
        ({"cpu_overcommit": 0}, "cpu_overcommit: it leaves no cores; write a factor above 0"),
        ({"cpu_overcommit": -1}, "cpu_overcommit: '-1' is not a positive number; write a factor above 0"),
        ({"units_per_gpu": 1.5}, "units_per_gpu: 1.5 is not a whole number from 0 to 1000; write one number, or one"),
        ({"units_per_gpu": {"A100": "x"}}, "units_per_gpu.A100: 'x' is not a whole number from 0 to 1000; write"),
        ({"fgpu_provider": "hami"}, "fgpu_provider: 'hami' is not known; write shim or mps or mig or whole"),
        ({"fgpu_compute": True}, "fgpu_compute: True is not known; write fair or hard or none"),
        ({"fgpu_choice": ["fill"]}, "fgpu_choice: ['fill'] is not known; write policy or fill or spread or frag"),
        ({"fgpu_over_cap": "kill"}, "fgpu_over_cap: 'kill' is not known; write report or end"),
        ({"fgpu_devices": ""}, "fgpu_devices: '' is not known; write auto or nvidia or cdi"),
        ({"fgpu_context_bytes": "some"}, "fgpu_context_bytes: 'some' is not an amount of bytes; write bytes"),
        ({"gpu_health": "warn"}, "gpu_health: 'warn' is not a mapping; write verdicts by symptom, as in {xid-94: ign"),
        ({"gpu_health": {"heat": "warn"}}, "gpu_health.heat: it is no symptom; write missing, recovery, remap-failed"),
        ({"gpu_health": {"ecc": "stop"}}, "gpu_health.ecc: 'stop' is not known; write quarantine, warn, ignore"),
        ({"gpu_health": {"xid-13": "warn"}}, "gpu_health.xid-13: users' programs cause it, and no user may take a GPU"),
    ],
)
def test_an_agent_of_which_the_inventory_says_what_cannot_be_gets_no_sessions(attributes, problem):
    agent = make_agent(**attributes)
    assert agent.problem.startswith(f"inventory: {problem}")
    assert "\n" not in agent.problem
    assert not agent.takes_sessions


def test_valid_inventory_attributes_count_beside_invalid_ones():
    agent = make_agent(cpus=8, gpus=2, units_per_gpu=2, reserved_cpu="2", labels=3, rack={}, zone="z1")
    assert (agent.capacity.cpu, agent.capacity.fgpu, agent.zone, agent.labels) == (6000, 4000, "z1", {})
    assert agent.problem.count("; ") == 2


def test_gpus_are_cut_as_the_inventory_says_of_their_model():
    models = ("NVIDIA A100-SXM4-80GB", "NVIDIA A10", "Tesla T4")
    agent = make_agent(gpus=4, gpu_models=models, units_per_gpu={"a100": 7, "A100-SXM4": 4, "default": 2, "T4": 0})
    assert [gpu.units for gpu in agent.gpus] == [4, 2, 0, 4]
    assert (agent.capacity.gpu, agent.capacity.fgpu) == (4, 10_000)
    assert [gpu.units for gpu in make_agent(gpus=3, gpu_models=models, units_per_gpu={"A100": 4}).gpus] == [4, 0, 0]


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("A100", True),
        ("a100-sxm4", True),
        ("NVIDIA A100 SXM4 80gb", True),
        ("A10", False),
        ("SXM4-A100", False),
        ("A100-PCIE", False),
        ("", False),
        ("-", False),
    ],
)
def test_a_gpu_is_known_by_whole_words_of_its_model(name, is_one):
    assert is_of_model("NVIDIA A100-SXM4-80GB", name) is is_one


def test_an_agents_numa_nodes_are_those_of_its_report():
    assert make_agent().numa == ()
    agent = make_agent(cpus=8, mem_bytes=16 << 30, gpus=4, numa_nodes=2)
    assert agent.numa == (NumaNode(0, "0-3", 8 << 30), NumaNode(1, "4-7", 8 << 30))
    assert [gpu.numa_node for gpu in agent.gpus] == [0, 0, 1, 1]
    assert NumaNode(0, "0-1,8,16-23", 0).cpu == 11_000
    assert NumaNode(2, "", 1 << 30).cpu == 0


@pytest.mark.parametrize(
    ("chosen", "cpus"),
    [
        ((1,), "8-15,24-31"),
        ((0, 1), "0-7,16-23,8-15,24-31"),
        ((2,), None),  # kernels were promised more cores than it has
        ((0, 2), None),
        ((), None),
        ((0, 1, 2), None),  # that is everywhere
        ((1, 3), None),  # a node that has no cores of its own
        ((1, 7), None),  # a node that is gone
    ],
)
def test_a_kernel_is_bound_to_the_cores_near_to_its_gpus(chosen, cpus):
    nodes = (
        NumaNode(0, "0-7,16-23", 0),
        NumaNode(1, "8-15,24-31", 0),
        NumaNode(2, "32-39", 0),
        NumaNode(3, "", 1 << 30),
    )
    promised = promised_by_node([((0,), 15_999), ((0, 1), 1), ((1,), 15_000), ((2,), 8_001), ((), 64_000)])
    assert cpuset(nodes, chosen, promised, cpu_of_all=40_000) == cpus
    assert cpuset(nodes, chosen, promised, cpu_of_all=32_000) is None


def test_an_agent_is_unreachable_at_once_and_lost_after_a_time():
    agent = make_agent()
    assert agent.lost_at(300) is None
    first = agent.unanswered("it does not answer", NOW, reached=False)
    assert (first.state, first.problem, first.unreachable_since) == (AgentState.UNREACHABLE, "it does not answer", NOW)
    later = first.unanswered("no route to host", NOW + 299, reached=False)
    assert (later.state, later.problem, later.unreachable_since) == (AgentState.UNREACHABLE, "no route to host", NOW)
    assert later.lost_at(300) == NOW + 300
    assert replace(later, silence_counts_from=NOW + 50).lost_at(300) == NOW + 350
    lost = replace(later, state=AgentState.LOST)
    assert (lost.lost_at(300), lost.unanswered("x", NOW).state) == (None, AgentState.LOST)


@pytest.mark.parametrize(
    ("changes", "takes"),
    [
        ({}, True),
        ({"state": AgentState.UNREACHABLE}, False),
        ({"state": AgentState.LOST}, False),
        ({"drain_reason": ""}, False),
        ({"drain_reason": "disks"}, False),
    ],
)
def test_an_agent_takes_sessions_while_it_answers_and_is_not_drained(changes, takes):
    assert replace(make_agent(), **changes).takes_sessions is takes


@pytest.mark.parametrize(
    ("swarm", "reached", "manages"),
    [
        ({"state": "active", "node_id": "n", "manager": True}, True, True),
        ({"state": "active", "node_id": "n", "manager": False}, True, False),
        ({"state": "pending", "node_id": "n", "manager": True}, False, False),
        ({"state": "inactive", "node_id": None, "manager": False}, False, False),
        (None, False, False),
    ],
)
def test_overlays_reach_an_active_member_of_the_swarm(swarm, reached, manages):
    agent = make_agent()
    report = {**agent.report.model_dump(), "swarm": swarm}
    if swarm is None:
        del report["swarm"]
    agent = replace(agent, report=stored_report(report))
    assert (agent.on_overlay, agent.manages_overlays) == (reached, manages)


def test_images_are_known_by_tag_and_by_id():
    assert {"debian:12", "sha256:debian:12"} <= make_agent().images
