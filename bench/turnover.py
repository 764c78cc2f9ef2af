"""Measure how fast short jobs follow one another on one machine, against `docker run` in parallel.

    .venv/bin/python -m bench.turnover [--runs 5] [--jobs 100] [--at-a-time 20] [--json]

Run as root on a machine that `playbooks/site.yml` has provisioned. In each round the ways take turns:

- `docker`: seconds for all jobs of `true` by `docker run --rm`, `--at-a-time` of them in parallel, with the options of
  Muster's kernels, the cores included: the engine starts a container within its limit;
- `network`: the same on a network that somebody made, as all of Muster's are: none of its containers reaches another.
  The engine gives such containers its resolver, which costs it a process and eleven calls of iptables for each;
- `muster`: the same jobs as sessions of one kernel, from the first PENDING to the last TERMINATED;
- `freed slot`: while nine sessions run and fifty wait, seconds from the end of a kernel's process to the next RUNNING.

CPU is the CPU time of the whole machine meanwhile, in seconds.
"""

import argparse
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker

from tests.control_node import ControlNode, provision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

IMAGE = "muster/default:latest"
MEM = "32M"
RUNNING_SLOTS = 9
WAITING = 50
_TICKS = os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """Return the seconds of CPU that this machine has used since it started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / _TICKS


def by_docker(jobs: int, at_a_time: int, network: str, millicores: int) -> float:
    given = (
        *("--init", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--cpus", f"{millicores / 1000}", "--memory", MEM, "--memory-swap", MEM),
        *("--pids-limit", "4096", "--shm-size", "16m"),
    )
    command = ["docker", "run", "--rm", "--network", network, *given, IMAGE, "true"]
    began = time.monotonic()
    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(lambda _: subprocess.run(command, check=True), range(jobs)))
    return time.monotonic() - began


def millicores_for(node: ControlNode, sessions: int) -> int:
    """Return the thousandths of a core for a session so that just `sessions` of them fit on the agent."""
    (agent,) = node.run("agents", "--json").json()
    return int(agent["capacity"]["cpu"]) // sessions


def by_muster(node: ControlNode, jobs: int, millicores: int) -> float:
    name = f"turnover-{secrets.token_hex(3)}"
    request = ("--cpu", f"{millicores}m", "--mem", MEM, "--shm", "16M", "--count", str(jobs))
    node.run("submit", "--name", name, *request, "-c", "true", "--wait", timeout=900)
    stories = [node.show(f"{name}-{number}")["story"] for number in range(1, jobs + 1)]
    moments = [(line["to"], datetime.fromisoformat(line["at"])) for story in stories for line in story]
    began = min(at for state, at in moments if state == "PENDING")
    return (max(at for state, at in moments if state == "TERMINATED") - began).total_seconds()


def freed_slot(node: ControlNode) -> float:
    name = f"slot-{secrets.token_hex(3)}"
    request = ("--cpu", f"{millicores_for(node, RUNNING_SLOTS)}m", "--mem", MEM, "--shm", "16M")
    node.run("submit", "--name", name, *request, "--count", str(RUNNING_SLOTS + WAITING), "-c", "sleep infinity")
    try:
        runs = wait_for_running(node, RUNNING_SLOTS)
        # Killed through the engine, so that Muster notices it like any process that ends.
        label = f"muster.session={min(runs)}"
        (container,) = docker.from_env().containers.list(filters={"label": label})
        container.kill()
        ended = datetime.now().astimezone()
        (begun,) = set(wait_for_running(node, RUNNING_SLOTS, not_among=set(runs))) - set(runs)
        (at,) = [line["at"] for line in node.show(begun)["story"] if line["to"] == "RUNNING"]
        return (datetime.fromisoformat(at) - ended).total_seconds()
    finally:
        node.end_everything()


def wait_for_running(node: ControlNode, number: int, not_among: set[str] | None = None) -> list[str]:
    """Wait for `number` running sessions, at least one of them outside `not_among`; return their ids."""
    deadline = time.monotonic() + 120
    while True:
        found = [session["id"] for session in node.run("ls", "--json").json() if session["state"] == "RUNNING"]
        if len(found) == number and (not_among is None or set(found) - not_among):
            return found
        if time.monotonic() > deadline:
            sys.exit(f"{len(found)} sessions run, and {number} should")
        time.sleep(0.3)


def measure(runs: int, jobs: int, at_a_time: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        node = ControlNode(Path(directory) / "node", f"bench-{secrets.token_hex(4)}", {"observe_interval_s": 60})
        node.start_daemon()
        millicores = millicores_for(node, at_a_time)
        apart = {"com.docker.network.bridge.enable_icc": "false"}
        network = docker.from_env().networks.create(f"bench-{secrets.token_hex(4)}", driver="bridge", options=apart)
        ways: dict[str, Callable[[], float]] = {
            "docker": lambda: by_docker(jobs, at_a_time, "bridge", millicores),
            "network": lambda: by_docker(jobs, at_a_time, str(network.name), millicores),
            "muster": lambda: by_muster(node, jobs, millicores),
            "freed slot": lambda: freed_slot(node),
        }
        samples: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        try:
            for number in range(runs):
                for name, way in ways.items():
                    cpu = machine_cpu_s()
                    samples[name].append((way(), machine_cpu_s() - cpu))
                print(f"round {number + 1} of {runs}", file=sys.stderr)
        finally:
            node.end_everything()
            node.stop_daemon()
            node.remove_traces()
            try:
                network.remove()
            except docker.errors.APIError as error:
                # The engine now and then keeps an endpoint of a container that has gone: no reason to lose the figures.
                print(f"{network.name} is left: {error.explanation}", file=sys.stderr)
    return [medians(name, found) for name, found in samples.items()]


def medians(way: str, samples: "Sequence[tuple[float, float]]") -> dict[str, Any]:
    """Return the medians of a way's rounds, each with its seconds and its CPU seconds."""
    return {
        "way": way,
        "median_s": round(statistics.median(seconds for seconds, _ in samples), 2),
        "median_cpu_s": round(statistics.median(cpu for _, cpu in samples), 2),
        "runs_s": [round(seconds, 2) for seconds, _ in samples],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--at-a-time", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    done = provision()
    if done.code:
        sys.exit(done.out + done.err)
    rows = measure(arguments.runs, arguments.jobs, arguments.at_a_time)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{os.cpu_count()} cores, {platform.platform()}, medians of {arguments.runs} runs")
    for row in rows:
        print(f"{row['way']:>10}  {row['median_s']:>7.2f} s  {row['median_cpu_s']:>7.2f} s of CPU  {row['runs_s']}")
    by_way = {row["way"]: row["median_s"] for row in rows}
    for other in ("docker", "network"):
        print(f"muster / {other}: {by_way['muster'] / by_way[other]:.2f}")


if __name__ == "__main__":
    main()
