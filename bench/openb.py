"""Measure how tightly GPUs are packed: the protocol of Weng et al. (USENIX ATC 2023) on cluster-trace-gpu-v2023.

    .venv/bin/python bench/openb.py --data DIR [--workloads default,…] [--seeds 42-51] [--policies muster,fgd,bestfit]
                                    [--json]

DIR holds `openb_node_list_gpu_node.csv` and `openb_pod_list_<workload>.csv` of the trace's public repository
(github.com/alibaba/clusterdata) and, for the comparison, `published.csv`: the means that the paper's authors published.

The 1,213 nodes are empty at first. All tasks arrive in an order drawn by the seed, then random tasks again, until 130 %
of all GPUs have been requested. Each task is tried once, and none ends. The figure at X is the allocated share of all
GPUs, in percent, when X percent have been requested. The table has the mean over the seeds.

- muster: the default policy, by the same `PlacementState.place` as in production, with the workload's typical requests.
- fgd: growth of fragmentation alone, in the steps of the paper's authors and with their typical requests. The order of
  the nodes decides between equal ones, so it is drawn at random, once for all seeds.
- bestfit: the policy `pack`.
"""

import argparse
import csv
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import product, repeat
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.contract.report import Report
from muster.core.agents.agent import Agent, Gpu
from muster.core.model.policy import PlacementPolicy
from muster.core.scheduling.placement import Constraint, Gang, Mix, PlacementState, mix_of, typical_requests
from muster.core.values.slots import Slots
from muster.service.scheduler.plugins import load_placement

MIB = 1 << 20
GPU = 1000
MARKS = (95, 100, 110, 120, 130)
LAST = 1.30


@dataclass(frozen=True, slots=True)
class Task:
    gang: Gang
    gpu_milli: int


def nodes_of(data: Path) -> list[Agent]:
    with (data / "openb_node_list_gpu_node.csv").open() as lines:
        return [
            Agent(
                id=row["sn"],
                resource_group="default",
                capacity=Slots(
                    cpu=int(row["cpu_milli"]),
                    mem=int(row["memory_mib"]) * MIB,
                    gpu=int(row["gpu"]),
                    fgpu=int(row["gpu"]) * GPU,
                ),
                gpus=tuple(Gpu(f"{row['sn']}-{i}", i, row["model"], 0, units=1) for i in range(int(row["gpu"]))),
                report=Report(cpu_count=int(row["cpu_milli"]) // 1000),
            )
            for row in csv.DictReader(lines)
        ]


def tasks_of(data: Path, workload: str) -> list[Task]:
    with (data / f"openb_pod_list_{workload}.csv").open() as lines:
        return [task_of(row) for row in csv.DictReader(lines)]


def task_of(row: Mapping[str, str]) -> Task:
    count, milli = int(row["num_gpu"]), int(row["gpu_milli"])
    slots = Slots(
        cpu=int(row["cpu_milli"]),
        mem=int(row["memory_mib"]) * MIB,
        gpu=count if milli == GPU else 0,
        fgpu=count * milli if milli < GPU else 0,
    )
    models = tuple(sorted(set(filter(None, (row.get("gpu_spec") or "").split("|")))))
    return Task(Gang((slots,), constraint=Constraint(gpu_models=models)), count * milli)


def in_random_order(nodes: Sequence[Agent]) -> list[Agent]:
    """Return the nodes with new names, which sort in a fixed random order."""
    places = random.Random(0).sample(range(len(nodes)), len(nodes))
    return [replace(node, id=f"{place:04}") for place, node in zip(places, nodes, strict=True)]


def arrivals(tasks: Sequence[Task], seed: int, capacity: int) -> Iterator[Task]:
    """Yield the tasks in a random order, then drawn with replacement, up to `LAST` of the capacity."""
    chance = random.Random(seed)
    shuffled = list(tasks)
    chance.shuffle(shuffled)
    requested = 0
    for number in range(1 << 30):
        task = shuffled[number] if number < len(shuffled) else chance.choice(tasks)
        requested += task.gpu_milli
        if requested > LAST * capacity:
            return
        yield task


def typical_without_memory(tasks: Sequence[Task]) -> Mix:
    """Return the typical requests as the paper defines them: without memory."""
    shapes = Counter(Gang((replace(task.gang.slots[0], mem=0),), constraint=task.gang.constraint) for task in tasks)
    return Mix(typical_requests(shapes, most=len(shapes)))


def allocated(
    nodes: Sequence[Agent], tasks: Sequence[Task], seed: int, policy: PlacementPolicy, mix: Mix
) -> dict[int, float]:
    """Return the allocated percent of the GPUs, by the percent that was requested."""
    capacity = sum(node.capacity.fgpu for node in nodes)
    state = PlacementState.of(nodes, {}, policy, mix)
    arrived = placed = 0
    samples: dict[int, list[int]] = {}
    for task in arrivals(tasks, seed, capacity):
        arrived += task.gpu_milli
        if state.place(task.gang):
            placed += task.gpu_milli
        samples.setdefault(round(100 * arrived / capacity), []).append(placed)
    return {mark: 100 * fmean(samples[mark]) / capacity for mark in MARKS if mark in samples}


POLICIES = ("muster", "fgd", "bestfit")


def run(data: Path, workload: str, policy: str, seed: int) -> dict[int, float]:
    nodes, tasks = _read(data, workload)
    if policy == "fgd":
        chosen = PlacementPolicy("fgd", fragmentation=1.0, steps=100)
        return allocated(in_random_order(nodes), tasks, seed, chosen, typical_without_memory(tasks))
    chosen = load_placement({"muster": "fragmentation", "bestfit": "pack"}[policy])
    return allocated(nodes, tasks, seed, chosen, mix_of([task.gang for task in tasks]))


@cache
def _read(data: Path, workload: str) -> tuple[list[Agent], list[Task]]:
    return nodes_of(data), tasks_of(data, workload)


def published(data: Path) -> dict[tuple[str, str], dict[int, float]]:
    """Return the published figures by workload and policy; none if the file is missing."""
    path = data / "published.csv"
    if not path.is_file():
        return {}
    with path.open() as lines:
        return {
            (row["workload"], row["policy"]): {mark: float(row[f"alloc_pct_at_{mark}"]) for mark in MARKS}
            for row in csv.DictReader(lines)
        }


def table(rows: Sequence[Mapping[str, Any]], known: Mapping[tuple[str, str], Mapping[int, float]]) -> Iterator[str]:
    yield f"{'workload':<14} {'policy':<23}" + "".join(f"{f'{mark} %':>8}" for mark in MARKS)
    for workload in dict.fromkeys(row["workload"] for row in rows):
        ours = [(row["policy"], row["at"]) for row in rows if row["workload"] == workload]
        theirs = [(f"{policy}, published", at) for (of, policy), at in known.items() if of == workload]
        for policy, at in ours + sorted(theirs, key=lambda line: -line[1][100]):
            values = [at.get(str(mark), at.get(mark)) for mark in MARKS]
            yield f"{workload:<14} {policy:<23}" + "".join("       -" if v is None else f"{v:>8.2f}" for v in values)


def numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workloads", default="default", help="names, with commas")
    parser.add_argument("--seeds", default="42-51", type=numbers, help="FIRST-LAST")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    workloads, policies = options.workloads.split(","), options.policies.split(",")
    for workload in workloads:
        if not (options.data / f"openb_pod_list_{workload}.csv").is_file():
            raise SystemExit(f"--workloads: {options.data} has no openb_pod_list_{workload}.csv")
    if unknown := set(policies) - set(POLICIES):
        raise SystemExit(f"--policies: there is no {', '.join(sorted(unknown))}; write some of {', '.join(POLICIES)}")
    cases = list(product(workloads, policies, options.seeds))
    with ProcessPoolExecutor() as processes:
        found = dict(zip(cases, processes.map(run, repeat(options.data), *zip(*cases, strict=True)), strict=True))
    rows = [
        {
            "workload": workload,
            "policy": policy,
            "seeds": options.seeds,
            "at": {
                str(mark): round(fmean(values), 3)
                for mark in MARKS
                if (values := [at[mark] for seed in options.seeds if mark in (at := found[workload, policy, seed])])
            },
        }
        for workload, policy in product(workloads, policies)
    ]
    print(json.dumps(rows, indent=1) if options.json else "\n".join(table(rows, published(options.data))))


if __name__ == "__main__":
    main()
