"""Measure how placement policies do under churn: sessions of many shapes arrive, run, and end, with gangs among them.

    .venv/bin/python bench/churn.py [--workloads mixed,gangs,shares] [--seeds 1-5] [--policies muster,fgd,pack,spread]
                                    [--hours 12] [--load 1.05] [--json]

Everything is synthetic and seeded. The cluster has 16 agents of 8 GPUs, 96 cores and 768 GiB. Sessions arrive at random
(a Poisson process), so that they ask for `--load` of all GPUs over time, and run for a time that is spread widely
(log-normal). Three of four have a time limit, 1.2 to 4 times as long as they run. The queue is the default one: first
in, first out, with EASY backfill.

- mixed: shares, whole GPUs, agents' worths, and gangs of 2 to 8 agents;
- gangs: half of the GPU time is asked for by gangs of 2 to 16 kernels;
- shares: notebooks with shares of GPUs, cpu-only sessions, and some gangs.

The policies are `muster` (the default, `fragmentation`), `pack`, `spread`, and `fgd`: growth of fragmentation alone, in
the steps of its authors (Weng et al., USENIX ATC 2023). Figures are those of the sessions that arrive between 20 % and
90 % of the time of arrivals, and of the use of GPUs in that time; the table has the means over the seeds. Bounded
slowdown is (wait + run) / max(run, 10 s), at least 1; a gang is a session of several kernels.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.schedule import agents
from muster.core.model.policy import GroupPolicy, PlacementPolicy, SchedulingPolicy
from muster.core.model.session import Kernel, Session, kernel_count, kernels_of
from muster.core.simulation.simulation import Cluster, Job, simulate
from muster.core.simulation.summary import Window, summarize
from muster.core.spec.session_spec import SessionSpec
from muster.service.scheduler.plugins import load_placement

_GIB = 1 << 30
_AGENTS = 16
_GPUS = 8
_SPAN = {"cluster_mode": "multi-node"}
_WINDOW = (0.2, 0.9)
_MEDIAN_S = 900.0
_SPREAD = 1.2
_LIMITED = 0.75
# Weight and shape.
_Mix = Sequence[tuple[float, dict[str, Any]]]
WORKLOADS: Mapping[str, _Mix] = {
    "mixed": (
        (20, {"cpu": 4, "mem": "16G", "fgpu": 0.5}),
        (10, {"cpu": 4, "mem": "16G", "fgpu": 0.75}),
        (30, {"cpu": 8, "mem": "48G", "gpu": 1}),
        (10, {"cpu": 20, "mem": "96G", "gpu": 1}),
        (12, {"cpu": 16, "mem": "96G", "gpu": 2}),
        (8, {"cpu": 40, "mem": "256G", "gpu": 4}),
        (3, {"cpu": 80, "mem": "640G", "gpu": 8}),
        (4, {"cluster_size": 4, "cpu": 10, "mem": "64G", "gpu": 1, **_SPAN}),
        (2, {"cluster_size": 2, "cpu": 80, "mem": "512G", "gpu": 8, **_SPAN}),
        (1, {"cluster_size": 8, "cpu": 32, "mem": "256G", "gpu": 4, **_SPAN}),
    ),
    "gangs": (
        (20, {"cpu": 4, "mem": "16G", "fgpu": 0.5}),
        (40, {"cpu": 8, "mem": "48G", "gpu": 1}),
        (15, {"cpu": 16, "mem": "96G", "gpu": 2}),
        (8, {"cpu": 48, "mem": "256G", "gpu": 4}),
        (8, {"cluster_size": 2, "cpu": 16, "mem": "128G", "gpu": 2, **_SPAN}),
        (5, {"cluster_size": 4, "cpu": 40, "mem": "256G", "gpu": 4, **_SPAN}),
        (3, {"cluster_size": 2, "cpu": 80, "mem": "512G", "gpu": 8, **_SPAN}),
        (1, {"cluster_size": 16, "cpu": 8, "mem": "48G", "gpu": 1, **_SPAN}),
    ),
    "shares": (
        (30, {"cpu": 2, "mem": "16G", "fgpu": 0.25}),
        (25, {"cpu": 4, "mem": "32G", "fgpu": 0.5}),
        (10, {"cpu": 6, "mem": "32G", "fgpu": 0.75}),
        (15, {"cpu": 8, "mem": "64G"}),
        (12, {"cpu": 8, "mem": "64G", "gpu": 1}),
        (5, {"cpu": 20, "mem": "128G", "gpu": 2}),
        (2, {"cluster_size": 4, "cpu": 20, "mem": "128G", "gpu": 2, **_SPAN}),
        (1, {"cluster_size": 2, "cpu": 80, "mem": "512G", "gpu": 8, **_SPAN}),
    ),
}
POLICIES: Mapping[str, PlacementPolicy] = {
    "muster": load_placement("fragmentation"),
    "fgd": PlacementPolicy("fgd", fragmentation=1.0, steps=100),
    "pack": load_placement("pack"),
    "spread": load_placement("spread"),
}
FIGURES = ("gpu_use", "wait_s", "slowdown", "gang_wait_s")


@cache
def _shape(text: str) -> tuple[SessionSpec, tuple[Kernel, ...]]:
    spec = SessionSpec.model_validate({"name": "churn", "image": "churn", **json.loads(text)})
    return spec, kernels_of(spec, tuple(map(str, range(kernel_count(spec)))), spec.image)


def _gpus(request: Mapping[str, Any]) -> float:
    return float(request.get("cluster_size", 1) * (request.get("gpu", 0) + request.get("fgpu", 0)))


def jobs(mix: _Mix, hours: float, load: float, seed: int, capacity: float = _AGENTS * _GPUS) -> list[Job]:
    """Return the jobs in the order in which they arrive. They ask for just `load` of the GPUs while they arrive."""
    chance = Random(seed)
    worth = sum(weight * _gpus(request) for weight, request in mix) / sum(weight for weight, _ in mix)
    length = _MEDIAN_S * math.exp(_SPREAD**2 / 2)
    count = round(load * capacity * hours * 3600 / (worth * length))
    requests = chance.choices([request for _, request in mix], [weight for weight, _ in mix], k=count)
    lengths = [max(1.0, chance.lognormvariate(math.log(_MEDIAN_S), _SPREAD)) for _ in requests]
    arrivals = list(accumulate(chance.expovariate(1.0) for _ in requests))
    work = sum(_gpus(request) * length for request, length in zip(requests, lengths, strict=True))
    scale = work / (load * capacity) / arrivals[-1]
    made = []
    for number, (request, length, at) in enumerate(zip(requests, lengths, arrivals, strict=True)):
        # In whole minutes, as people write them.
        limit = {"time_limit": f"{math.ceil(chance.uniform(1.2, 4.0) * length / 60)}m"}
        limited = limit if chance.random() < _LIMITED else {}
        spec, kernels = _shape(json.dumps({**request, **limited}, sort_keys=True))
        own = tuple(replace(kernel, id=f"{number:06}-{kernel.rank:03}") for kernel in kernels)
        owner = f"user{chance.randrange(40)}"
        made.append(Job(Session(own[0].id, f"s{number}", owner, spec, own, at * scale), length))
    return made


def run(workload: str, policy: str, seed: int, hours: float, load: float) -> dict[str, float]:
    queue = jobs(WORKLOADS[workload], hours, load, seed)
    known = agents(_AGENTS, cpus=96, mem=768 * _GIB, units=1)
    cluster = Cluster(known, SchedulingPolicy(GroupPolicy(placement=POLICIES[policy])), launch_s=5.0, interval_s=1.0)
    result = simulate(queue, cluster)
    first, last = queue[0].session.submitted_at, queue[-1].session.submitted_at
    begins, ends = (first + part * (last - first) for part in _WINDOW)
    found = summarize(result, Window(begins, ends))
    return {
        "gpu_use": 100 * found.use["gpu"],
        "wait_s": found.waits.mean,
        "slowdown": found.slowdowns.mean,
        "gang_wait_s": found.gang_waits.mean,
    }


def means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: round(fmean(figures[name] for figures in found), 2) for name in FIGURES}


def numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def chosen(text: str, known: Mapping[str, object], option: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        raise SystemExit(f"{option}: there is no {', '.join(sorted(unknown))}; write some of {', '.join(known)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--seeds", default="1-5", type=numbers, help="FIRST-LAST")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--hours", type=float, default=12.0, help="in which sessions arrive")
    parser.add_argument("--load", type=float, default=1.05)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    workloads = chosen(options.workloads, WORKLOADS, "--workloads")
    policies = chosen(options.policies, POLICIES, "--policies")
    rows = []
    for workload, policy in product(workloads, policies):
        found = [run(workload, policy, seed, options.hours, options.load) for seed in options.seeds]
        rows.append({"workload": workload, "policy": policy, "seeds": options.seeds, **means(found), "each": found})
        if not options.json:
            figures = "".join(f"{rows[-1][name]:>14,.2f}" for name in FIGURES)
            heading = f"{'workload':<10}{'policy':<10}" + "".join(f"{name:>14}" for name in FIGURES) + "\n"
            print(f"{heading if len(rows) == 1 else ''}{workload:<10}{policy:<10}{figures}", flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
