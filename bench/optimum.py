"""Compare a pass's plan with the best possible placement, found by CP-SAT.

    .venv/bin/python bench/optimum.py [--agents 20] [--gangs 40] [--instances 10] [--time-limit 10] [--json]

Each instance is a queue of gangs of 1 to 8 kernels, on empty agents of 8 GPUs. The gangs together request about 1.2
times these GPUs. One pass starts gangs in the queue's order by the default policy. Their GPUs are compared:

- with the best in the same order, which takes each gang in its turn if it can be packed with those before it;
- with the best in any order, which may choose its gangs freely.

The first gap is the loss by packing. The rest of the second gap is the price of first in, first out.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.schedule import NOW, agents, policy, session
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.schedule import schedule
from tests.optimum import in_order, optimum

_GIB = 1 << 30


def gangs(random: Random, most: int, gpus: int) -> list[Session]:
    found: list[Session] = []
    requested = 0
    while len(found) < most and requested < gpus:
        gpu, size = random.choice((1, 1, 1, 2, 2, 3, 4, 8)), random.choice((1, 1, 2, 2, 3, 4, 5, 8))
        single = gpu * size <= 8 and random.random() < 0.6
        shape = {"cluster_size": size, "gpu": gpu, "cpu": gpu * random.choice((2, 4, 6, 10)), "mem": f"{gpu * 32}G"}
        found.append(session(len(found), {**shape, "cluster_mode": "single-node" if single else "multi-node"}))
        requested += gpu * size
    return found


def compared(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    known = agents(options.agents)
    queue = gangs(Random(seed), options.gangs, round(options.agents * 8 * 1.2))
    began = time.process_time()
    plan = schedule(Snapshot(known, tuple(queue), NOW, policy=policy()))
    cpu = time.process_time() - began
    gpus = {waiting.id: waiting.slots.gpu for waiting in queue}
    greedy = sum(gpus[placement.session_id] for placement in plan.placements)
    best = optimum(known, queue, options.time_limit)
    ordered = in_order(known, queue, options.time_limit)
    return {
        "instance": seed,
        "gangs": len(queue),
        "greedy_gpus": greedy,
        "best_gpus": best.gpus,
        "bound_gpus": best.bound,
        "same_order_gpus": ordered.gpus,
        "proven": best.proven and ordered.proven,
        "gap_percent": round(100 * (1 - greedy / best.gpus), 2),
        "same_order_gap_percent": round(100 * (1 - greedy / ordered.gpus), 2),
        "greedy_cpu_s": round(cpu, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--gangs", type=int, default=40)
    parser.add_argument("--instances", type=int, default=10)
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each optimum")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    for seed in range(1, options.instances + 1):
        results.append(compared(seed, options))
        if not options.json:
            print("  ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        for name, key in (("any order", "gap_percent"), ("same order", "same_order_gap_percent")):
            gaps = [result[key] for result in results]
            mean, median = statistics.mean(gaps), statistics.median(gaps)
            print(f"gap to {name}: mean {mean:.2f} %, median {median:.2f} %, most {max(gaps):.2f} %")


if __name__ == "__main__":
    main()
