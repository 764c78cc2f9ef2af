"""Measure submit → RUNNING of a gang on one host and over several, in the lab.

    .venv/bin/python -m bench.gangs [--runs 5] [--hosts 3] [--json]

Run as root. A lab that is up is taken as it is (`./dev lab-up`), otherwise it is brought up first, and stays. In each
round, after one that warms caches, a gang with as many kernels as there are hosts is launched on one of them, and one
with a kernel on each. The time is from the store's submit to its RUNNING event, with the daemon running; all sshds
answer by then. CPU is the CPU time of the whole machine meanwhile, in seconds.
"""

import argparse
import json
import os
import platform
import secrets
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.turnover import machine_cpu_s, medians
from tests.lab.bring_up import bring_up, is_up
from tests.lab.control_node import LabControlNode

WAYS = {"one host": "single-node", "several hosts": "multi-node"}


def launched(node: LabControlNode, kernels: int, mode: str, mem: int) -> tuple[float, set[str]]:
    """Return the seconds from submit to RUNNING, and the agents of the gang."""
    name = f"gang-{secrets.token_hex(4)}"
    request = ("--cluster-size", str(kernels), "--cluster-mode", mode, "--cpu", "0.05", "--mem", str(mem))
    node.run("submit", "--name", name, *request, "--shm", "16M", "--wait")
    session = node.show(name)
    node.run("terminate", name, "--wait")
    times = {line["to"]: datetime.fromisoformat(line["at"]) for line in session["story"]}
    return (times["RUNNING"] - times["PENDING"]).total_seconds(), {kernel["agent"] for kernel in session["kernels"]}


def measure(runs: int, hosts: int) -> list[dict[str, Any]]:
    samples: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as directory:
        node = LabControlNode(Path(directory) / "node", f"bench-{secrets.token_hex(4)}", {"observe_interval_s": 60})
        node.start_daemon()
        try:
            mem = min(agent["capacity"]["mem"] for agent in node.run("agents", "--json").json())
            # More than half of a host's memory: so no host takes two.
            sizes = {"one host": 64 << 20, "several hosts": mem * 6 // 10}
            for number in range(runs + 1):
                for way, mode in WAYS.items():
                    cpu = machine_cpu_s()
                    seconds, agents = launched(node, hosts, mode, sizes[way])
                    assert len(agents) == (1 if way == "one host" else hosts), agents
                    if number:  # the first round warms caches
                        samples[way].append((seconds, machine_cpu_s() - cpu))
                print(f"round {number} of {runs}", file=sys.stderr)
        finally:
            node.end_everything()
            node.stop_daemon()
    return [medians(f"{hosts} kernels on {way}", found) for way, found in samples.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not is_up(arguments.hosts) and bring_up(arguments.hosts):
        sys.exit("the lab cannot be brought up")
    rows = measure(arguments.runs, arguments.hosts)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{os.cpu_count()} cores, {platform.platform()}, medians of {arguments.runs} runs")
    for row in rows:
        print(f"{row['way']:>26}  {row['median_s']:>6.2f} s  {row['median_cpu_s']:>6.2f} s of CPU  {row['runs_s']}")


if __name__ == "__main__":
    main()
