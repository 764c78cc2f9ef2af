"""Where the shares of GPUs are shown: `muster agents --gpus`, `muster show`, `muster agent show`."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import Agent
from muster.core.model.session import Allocation, GpuShare, Session
from tests.command_line import muster
from tests.reports import kernel_entry
from tests.simulated.hosts import host_of
from tests.strategies.agents import make_agent, observed, reporting
from tests.unit.running_sessions import running_session

GIB = 1 << 30


def holds(session: Session, *shares: GpuShare) -> Session:
    (kernel,) = session.kernels
    return replace(session, kernels=(replace(kernel, allocation=Allocation("a1", shares)),))


def an_agent_where(*used: tuple[Session, str, int | None, int | None]) -> Agent:
    """Return an agent of two GPUs of 8 GiB, the first one cut; `used`: session, GPU, cap and use in bytes."""
    models = ("H200", "T4")
    report, inventory = host_of("a1", gpus=2, units_per_gpu={"H200": 2}, gpu_models=models)
    for gpu in report["gpus"]:
        gpu["mem_bytes"] = 8 * GIB
    report["gpus"][0]["mem_used_bytes"] = 3 * GIB
    for session, uuid, cap, use in used:
        held = {"uuid": uuid, "amount": 500, "capacity": 2000, "mem_bytes": cap, "compute": cap and 250}
        gpus = [{**held, "used_bytes": use, "processes": 1, "enforced_bytes": cap}]
        report["kernels"].append(kernel_entry(session, "main1", gpus=gpus))
    return observed("a1", report, inventory)


@pytest.fixture
def cluster(store):
    """Save an agent of two GPUs: the first with two shares, one above its cap; the second wholly a session's."""
    train = holds(
        running_session(1, "a1", name="train", fgpu=0.5), GpuShare("GPU-a1-0", 500, whole=False, capacity=2000)
    )
    lab = holds(running_session(2, "a1", name="lab", fgpu=1), GpuShare("GPU-a1-0", 1000, whole=False))
    big = holds(running_session(3, "a1", name="big", gpu=1), GpuShare("GPU-a1-1", 1000, whole=True))
    problem = "main1 uses 2.5 GiB of GPU memory, its share is 2 GiB"
    train = replace(train, kernels=(replace(train.main, gpu_problem=problem),))
    used = [(train, "GPU-a1-0", 2 * GIB, 5 * GIB // 2), (big, "GPU-a1-1", None, None)]
    store.agents.save([an_agent_where(*used), make_agent("a2", labels={"disk": "ssd"})])
    store.add([train, lab, big])
    return store


@pytest.mark.usefixtures("cluster")
def test_the_map_has_a_bar_for_each_gpu_and_names_who_shares_it():
    lines = muster("agents", "--gpus").out.splitlines()
    assert [line.split() for line in lines] == [
        ["AGENT", "GPU", "MODEL", "SHARES", "FGPU", "FREE", "MEMORY", "HEALTH", "KERNELS"],
        ["a1", "0", "H200", "[aaaaabbbbbbbbbb.....]", "0.5/2", "3G/8G", "ok", "a", "train/main1", "0.5", "(2.5G/2G),",
         "b", "lab/main1", "1", "(-/4G)"],
        ["a1", "1", "T4", "[aaaaaaaaaaaaaaaaaaaa]", "-", "0/8G", "ok", "a", "big/main1", "whole"],
    ]  # fmt: skip
    assert len(muster("agents", "--gpus", "--label", "disk=ssd").out.splitlines()) == 1


def test_the_map_as_json_has_every_share(cluster):
    first, second = muster("agents", "--gpus", "--json").json
    assert (first["agent"], first["uuid"], first["units"], first["capacity"]) == ("a1", "GPU-a1-0", 2, 2000)
    assert (first["free"], first["mem"], first["mem_used"]) == (500, 8 * GIB, 3 * GIB)
    train = cluster.find("train")
    assert first["shares"][0] == {
        "session_id": train.id,
        "session": "train",
        "kernel_id": train.main.id,
        "kernel": "main1",
        "problem": "main1 uses 2.5 GiB of GPU memory, its share is 2 GiB",
        "uuid": "GPU-a1-0",
        "amount": 500,
        "whole": False,
        "mem_bytes": 2 * GIB,
        "compute": 250,
        "used_bytes": 5 * GIB // 2,
        "enforced_bytes": 2 * GIB,
        "is_device": False,
    }
    assert [share["used_bytes"] for share in first["shares"][1:]] == [None]
    assert [(share["whole"], share["mem_bytes"]) for share in second["shares"]] == [(True, None)]


@pytest.mark.usefixtures("cluster")
def test_show_tells_each_kernels_share_with_memory_and_compute():
    lines = [line.split() for line in muster("show", "train").out.splitlines()]
    assert ["KERNEL", "GPU", "SHARE", "COMPUTE", "MEMORY", "CAP", "UUID", "PROBLEM"] in lines
    problem = "main1 uses 2.5 GiB of GPU memory, its share is 2 GiB"
    assert ["main1", "0", "0.5", "25%", "2.5G/2G", "driver", "GPU-a1-0", *problem.split()] in lines
    assert "main1   1    whole  -        -/8G    -    GPU-a1-1  -" in muster("show", "big").out
    (kernel,) = muster("show", "train", "--json").json["kernels"]
    assert kernel["gpus"] == [
        {
            "uuid": "GPU-a1-0",
            "amount": 500,
            "whole": False,
            "capacity": 2000,
            "mem_bytes": 2 * GIB,
            "compute": 250,
            "used_bytes": 5 * GIB // 2,
            "enforced_bytes": 2 * GIB,
            "index": 0,
            "is_device": False,
            "gpu_mem_bytes": 8 * GIB,
        }
    ]
    assert kernel["gpu_problem"] == problem


def test_a_sessions_share_of_a_missing_gpu_is_still_shown(cluster):
    cluster.agents.save([make_agent("a1")])
    line = next(line.split() for line in muster("show", "lab").out.splitlines() if "GPU-a1-0" in line)
    assert line[:5] == ["main1", "-", "1", "-", "-/-"]
    assert muster("agents", "--gpus").out.splitlines()[1:] == []


def test_sick_gpus_are_shown_with_the_cause_and_an_operator_puts_one_back(store):
    report, inventory = host_of("a1", gpus=2, units_per_gpu=2)
    report["gpu_health"][0]["xids"] = [{"number": 79, "sequence": 3}]
    report["gpu_health"][1]["throttled"] = ["heat"]
    store.agents.save([observed("a1", report, inventory)])
    cause = "Xid 79: the GPU has fallen off the bus"
    first, second = muster("agents", "--gpus").out.splitlines()[1:]
    assert f"0/2        0/1G    QUARANTINED ({cause})  -" in first
    assert "2/2        0/1G    its clocks are slowed: heat " in second
    sick, warned = muster("agents", "--gpus", "--json").json
    assert (sick["quarantine"], sick["quarantined_by"], sick["free"]) == (cause, ["xid-79"], 0)
    assert (warned["quarantine"], warned["warning"], warned["free"]) == (None, "its clocks are slowed: heat", 2000)
    assert f"  {cause}" in muster("agent", "show", "a1").out
    assert "fgpu  4         2" in muster("agent", "show", "a1").out
    assert muster("agent", "resume", "a1").out.splitlines()[1:] == [f"GPU 0 of a1 is in quarantine: {cause}"]
    assert muster("agent", "resume", "a1", "--gpu", "0").out.splitlines() == ["a1 is ALIVE"]
    assert muster("agents", "--gpus", "--json").json[0]["quarantine"] is None
    assert not muster("agent", "resume", "a1", "--gpu", "GPU-a1-0", "--json").json[0]["changed"]


@pytest.mark.usefixtures("cluster")
def test_a_resume_of_a_gpu_names_one_agent_and_a_gpu_that_it_has():
    two = muster("agent", "resume", "a1", "a2", "--gpu", "0")
    assert (two.code, two.err) == (2, "muster: --gpu: it is about one agent; name one\n")
    none = muster("agent", "resume", "a1", "--gpu", "7")
    assert "agent a1 has no GPU '7'; see `muster agents --gpus`" in none.err
    assert none.code != 0


def test_every_share_has_a_cell_of_the_bar_and_no_bar_is_too_long(store):
    few = [holds(running_session(n, "a1", fgpu="0.01"), GpuShare("GPU-a1-0", 10, whole=False)) for n in range(1, 4)]
    rest = holds(running_session(9, "a1", fgpu="1.97"), GpuShare("GPU-a1-0", 1970, whole=False))
    store.agents.save([an_agent_where()])
    store.add([*few, rest])
    assert "[abcddddddddddddddddd]" in muster("agents", "--gpus").out


def test_a_share_fills_its_part_of_the_bar_however_the_gpu_is_cut_since(store):
    half = GpuShare("GPU-a1-0", 500, whole=False, capacity=1000)
    store.agents.save([an_agent_where()])
    store.add([holds(running_session(1, "a1", fgpu="0.5", name="train"), half)])
    (line,) = [line.split() for line in muster("agents", "--gpus").out.splitlines() if "[a" in line]
    assert line[3:5] == ["[aaaaaaaaaa..........]", "1/2"]
    (kernel,) = muster("show", "train", "--json").json["kernels"]
    (share,) = kernel["gpus"]
    assert (share["amount"], share["capacity"], share["mem_bytes"]) == (500, 1000, 4 * GIB)


def test_mig_instances_have_a_line_each(store):
    report, inventory = host_of("a1", gpus=1, units_per_gpu=2, fgpu_provider="mig", gpu_models=("NVIDIA H200",))
    (gpu,) = report["gpus"]
    report["gpus"] = [
        {**gpu, "uuid": f"MIG-{number}", "parent_uuid": "GPU-a1-0", "mig_profile": "1g.18gb", "fraction": 125}
        for number in range(2)
    ]
    store.agents.save([observed("a1", report, inventory)])
    store.add([holds(running_session(1, "a1", name="train"), GpuShare("MIG-1", 250, whole=True))])
    lines = muster("agents", "--gpus").out.splitlines()
    assert [line.partition("[")[2].split()[:2] for line in lines[1:]] == [
        ["....................]", "0.25/0.25"],
        ["aaaaaaaaaaaaaaaaaaaa]", "0/0.25"],
    ]
    assert all("NVIDIA H200 1g.18gb" in line for line in lines[1:])


def test_the_reason_for_uncut_gpus_is_shown_if_the_site_wants_them_cut(store):
    lacking = reporting(make_agent("a1", gpus=1, units_per_gpu=2), fgpu=None)
    store.agents.save([lacking, make_agent("a2", gpus=1, units_per_gpu=2)])
    obstacle = "the libraries that cap GPUs are not there; run playbooks/site.yml with the tag fgpu"
    first, second = muster("agents").out.splitlines()[1:]
    assert first.endswith(f"fgpu: {obstacle}")
    assert second.endswith("  -")
    assert f"fGPU:        {obstacle}" in muster("agent", "show", "a1").out
    assert "fGPU:        1\n" in muster("agent", "show", "a2").out
    assert [agent["fgpu_problem"] for agent in muster("agents", "--json").json] == [obstacle, None]
