"""The packing benchmark's protocol, on a trace of a few lines."""

import pytest

from bench.openb import allocated, arrivals, nodes_of, numbers, table, tasks_of, typical_without_memory
from muster.core.model.policy import PACK

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},64000,65536,2,{model}\n" for number, model in enumerate(("T4", "P100") * 20)
)
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "p1,1000,1024,1,500,\np2,1000,1024,2,1000,\np3,1000,1024,1,400,P100|V100M32\np4,1000,1024,0,0,\n"
)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_small.csv").write_text(PODS)
    return tmp_path


def test_tasks_are_gangs_of_one_kernel(data):
    tasks = tasks_of(data, "small")
    assert [(t.gang.slots[0].fgpu, t.gang.slots[0].gpu, t.gpu_milli) for t in tasks] == [
        (500, 0, 500),
        (0, 2, 2000),
        (400, 0, 400),
        (0, 0, 0),
    ]
    assert [task.gang.constraint.gpu_models for task in tasks] == [(), (), ("P100", "V100M32"), ()]


def test_arrivals_are_each_task_once_and_then_some_until_130_percent(data):
    tasks = tasks_of(data, "small")
    drawn = list(arrivals(tasks, 42, 80_000))
    assert sorted(task.gpu_milli for task in drawn[:4]) == [0, 400, 500, 2000]
    requested = sum(task.gpu_milli for task in drawn)
    assert requested <= 1.3 * 80_000 < requested + 2000
    assert drawn == list(arrivals(tasks, 42, 80_000))


def test_allocations_are_at_most_the_capacity(data):
    tasks = tasks_of(data, "small")
    at = allocated(nodes_of(data), tasks, 42, PACK, typical_without_memory(tasks))
    assert set(at) >= {100, 110, 120}
    assert all(0 < share <= 100 for share in at.values())


def test_ours_stands_beside_what_was_published():
    rows = [{"workload": "small", "policy": "muster", "at": {"100": 95.5}}]
    lines = list(table(rows, {("small", "FGD"): {100: 95.2}}))
    assert [line.split()[1] for line in lines] == ["policy", "muster", "FGD,"]
    assert numbers("42-44") == [42, 43, 44]
    assert numbers("7") == [7]
