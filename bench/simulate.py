"""Measure what `muster simulate` costs: a trace of many jobs, from its file to the table of its figures.

    .venv/bin/python -m bench.simulate [--jobs 100000] [--agents 320] [--load 0.95] [--profile FILE]
    .venv/bin/python -m bench.simulate --data DIR [--jobs 100000] [--load 0.95] [--profile FILE]

The generated trace is for agents of 8 GPUs, 96 cores and 768 GiB: shares, whole GPUs and whole agents that are asked
for by 300 users. With `--data`, the jobs are drawn from the pods of DIR's `openb_pod_list_default.csv`, with as long as
they ran, for the nodes of its `openb_node_list_gpu_node.csv` (Alibaba's cluster-trace-gpu-v2023).
Jobs arrive at random (a Poisson process) and ask for `--load` of all GPUs over time. Both are seeded.

It prints the seconds, and the CPU seconds and memory of the command, with the table that the command printed.
"""

import argparse
import csv
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

_NODES = "openb_node_list_gpu_node.csv"
_PODS = "openb_pod_list_default.csv"
_SEED = 1
_GPUS = 8
_USERS = 300
_MEDIAN_S = 900.0
_SPREAD = 1.5
_HEADER = ("owner", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "duration")
# Weight, and what is asked for: millicores, MiB, GPUs, thousandths of each.
_MIX = (
    (25, (4_000, 16_384, 1, 250)),
    (20, (4_000, 32_768, 1, 500)),
    (10, (8_000, 32_768, 0, 0)),
    (30, (8_000, 65_536, 1, 1000)),
    (8, (16_000, 131_072, 2, 1000)),
    (5, (40_000, 262_144, 4, 1000)),
    (2, (80_000, 524_288, 8, 1000)),
)
_Request = tuple[int, int, int, int]


def trace(requests: Sequence[_Request], lengths: Sequence[float], load: float, gpus: int, path: Path) -> None:
    """Write the jobs in the order of their arrival; the time of arrivals is as long as the load says."""
    chance = Random(_SEED)
    work = sum(count * milli / 1000 * length for (_, _, count, milli), length in zip(requests, lengths, strict=True))
    between = work / (load * gpus) / len(requests)
    at = 0.0
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_HEADER)
        for request, length in zip(requests, lengths, strict=True):
            at += chance.expovariate(1 / between)
            writer.writerow((f"user{chance.randrange(_USERS)}", *request, round(at, 3), round(length, 3)))


def generated(jobs: int, agents: int, load: float, folder: Path) -> tuple[Path, Path]:
    """Write nodes and jobs; return the files."""
    chance = Random(_SEED)
    nodes, pods = folder / "nodes.csv", folder / "pods.csv"
    lines = [f"node{number:05},96000,{768 * 1024},{_GPUS},H100" for number in range(agents)]
    nodes.write_text("\n".join(("sn,cpu_milli,memory_mib,gpu,model", *lines, "")))
    requests = chance.choices([request for _, request in _MIX], [weight for weight, _ in _MIX], k=jobs)
    lengths = [max(1.0, chance.lognormvariate(math.log(_MEDIAN_S), _SPREAD)) for _ in requests]
    trace(requests, lengths, load, agents * _GPUS, pods)
    return nodes, pods


def drawn(jobs: int, data: Path, load: float, folder: Path) -> tuple[Path, Path]:
    """Write jobs drawn from the trace; return its nodes and them."""
    chance = Random(_SEED)
    nodes, pods = data / _NODES, folder / "pods.csv"
    with nodes.open() as lines:
        gpus = sum(int(row["gpu"]) for row in csv.DictReader(lines))
    with (data / _PODS).open() as lines:
        known = [
            (
                (int(row["cpu_milli"]), int(row["memory_mib"]), int(row["num_gpu"]), int(row["gpu_milli"])),
                float(row["deletion_time"]) - float(row["scheduled_time"] or row["creation_time"]),
            )
            for row in csv.DictReader(lines)
        ]
    chosen = chance.choices(known, k=jobs)
    trace([request for request, _ in chosen], [length for _, length in chosen], load, gpus, pods)
    return nodes, pods


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--agents", type=int, default=320, help="of the generated trace's cluster")
    parser.add_argument("--load", type=float, default=0.95, help="of all GPUs, over the time of arrivals")
    parser.add_argument("--data", type=Path, help="folder of the openb trace")
    parser.add_argument("--profile", type=Path, help="where the command's profile goes")
    options = parser.parse_args()
    if options.data is not None and not (options.data / _PODS).is_file():
        raise SystemExit(f"--data: {options.data} has no {_PODS}; name the folder of the openb trace")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if options.data is None:
            nodes, pods = generated(options.jobs, options.agents, options.load, folder)
        else:
            nodes, pods = drawn(options.jobs, options.data, options.load, folder)
        profiled = () if options.profile is None else ("-m", "cProfile", "-o", str(options.profile))
        muster = Path(sys.executable).with_name("muster")
        command = (sys.executable, *profiled, str(muster), "simulate", "--cluster", str(nodes), "--workload", str(pods))
        settings = folder / "muster.yml"
        settings.write_text("cluster: simulated\n")
        began = time.monotonic()
        subprocess.run(command, check=True, env={**os.environ, "MUSTER_CONFIG": str(settings)})
        seconds = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"\n{options.jobs} jobs in {seconds:.1f} s; {cpu_s:.1f} CPU s; {used.ru_maxrss / 1024:.0f} MiB at the most")


if __name__ == "__main__":
    main()
