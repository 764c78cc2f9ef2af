"""Measure submit → RUNNING on one machine, against the same containers by the Docker SDK and by a simple playbook.

    .venv/bin/python -m bench.launch [--runs 5] [--kernels 1,3,8] [--cpu 0.05] [--json]

Run as root on a machine that `playbooks/site.yml` has provisioned. In each round the three ways take turns, so that
the machine's noise falls on all of them; medians are printed. `muster` is the time from the store's submit to its
RUNNING event with the daemon running; `muster_command` is the time of a whole `muster submit --wait`. Each container
gets `--cpu` cores. Muster waits for the sshd in each, which takes some 10 ms of CPU, and the others have none.
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
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import docker
import yaml

from tests.control_node import SCRIPTS, ControlNode, provision

IMAGE = "muster/default:latest"
MEM = 128 << 20


def by_muster(node: ControlNode, kernels: int, cpu: float) -> dict[str, float]:
    name = f"bench-{secrets.token_hex(4)}"
    request = ["-N", str(kernels), "--cpu", str(cpu), "--mem", str(MEM)]
    began = time.monotonic()
    subprocess.run(
        [SCRIPTS / "muster", "submit", "--name", name, *request, "--wait"],
        env=node.environment,
        check=True,
        capture_output=True,
    )
    command = time.monotonic() - began
    session = node.show(name)
    times = {line["to"]: datetime.fromisoformat(line["at"]) for line in session["story"]}
    node.run("terminate", name, "--wait")
    return {"muster": (times["RUNNING"] - times["PENDING"]).total_seconds(), "muster_command": command}


def by_sdk(kernels: int, cpu: float) -> float:
    """Create a network, start the containers in parallel, and return the seconds: the engine's own time."""
    client = docker.from_env()
    name = f"bench-sdk-{secrets.token_hex(4)}"
    began = time.monotonic()
    network = client.networks.create(name, driver="bridge")

    def start(number: int) -> Any:  # noqa: ANN401 - a docker-py model
        return client.containers.run(
            IMAGE,
            ["sleep", "infinity"],
            detach=True,
            init=True,
            name=f"{name}-{number}",
            hostname=f"main{number}",
            network=name,
            user="1000:1000",
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            nano_cpus=int(cpu * 1e9),
            mem_limit=MEM,
            memswap_limit=MEM,
            pids_limit=4096,
            shm_size=64 << 20,
        )

    with ThreadPoolExecutor(kernels) as pool:
        containers = list(pool.map(start, range(kernels)))
    took = time.monotonic() - began
    for container in containers:
        container.remove(force=True)
    network.remove()
    return took


def by_playbook(collections: Path, kernels: int, cpu: float) -> float:
    """Start a network and one container after the other, by community.docker; return the seconds."""
    name = f"bench-pb-{secrets.token_hex(4)}"
    container = {
        "name": f"{name}-{{{{ item }}}}",
        "image": IMAGE,
        "command": ["sleep", "infinity"],
        "init": True,
        "hostname": "main{{ item }}",
        "networks": [{"name": name}],
        "user": "1000:1000",
        "cap_drop": ["ALL"],
        "security_opts": ["no-new-privileges"],
        "cpus": cpu,
        "memory": str(MEM),
        "memory_swap": str(MEM),
        "pids_limit": 4096,
        "shm_size": "64M",
        "pull": "never",
    }
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable},
        "tasks": [
            {"community.docker.docker_network": {"name": name}},
            {"community.docker.docker_container": container, "loop": list(range(kernels))},
        ],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "launch.yml"
        path.write_text(yaml.safe_dump([play]))
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_PIPELINING": "1"}
        began = time.monotonic()
        subprocess.run(
            [SCRIPTS / "ansible-playbook", "-i", "localhost,", path],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        took = time.monotonic() - began
    client = docker.from_env()
    for number in range(kernels):
        client.containers.get(f"{name}-{number}").remove(force=True)
    client.networks.get(name).remove()
    return took


def community_docker(directory: Path) -> Path:
    """Unpack the collection from the PyPI package `ansible` and return its path."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, "ansible>=12,<13"],
        check=True,
    )
    (wheel,) = directory.glob("ansible-*.whl")
    prefixes = (
        "ansible_collections/community/docker/",
        "ansible_collections/community/library_inventory_filtering_v1/",
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [name for name in archive.namelist() if name.startswith(prefixes)])
    return directory


def measure(runs: int, sizes: list[int], cpu: float) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        collections = community_docker(Path(directory))
        node = ControlNode(Path(directory) / "node", f"bench-{secrets.token_hex(4)}", {"observe_interval_s": 60})
        node.start_daemon()
        try:
            rows = [row for size in sizes for row in rounds(node, collections, size, runs, cpu)]
        finally:
            node.end_everything()
            node.stop_daemon()
            node.remove_traces()
    return rows


def rounds(node: ControlNode, collections: Path, kernels: int, runs: int, cpu: float) -> list[dict[str, Any]]:
    ways = [
        lambda: by_muster(node, kernels, cpu),
        lambda: {"docker_sdk": by_sdk(kernels, cpu)},
        lambda: {"playbook": by_playbook(collections, kernels, cpu)},
    ]
    samples: dict[str, list[float]] = {}
    for number in range(runs + 1):
        for way in ways:
            for name, seconds in way().items():
                if number:  # the first round warms caches
                    samples.setdefault(name, []).append(seconds)
        print(f"{kernels} kernels, round {number} of {runs}", file=sys.stderr)
    return [
        {
            "kernels": kernels,
            "way": name,
            "median_s": round(statistics.median(times), 3),
            "runs_s": [round(t, 3) for t in times],
        }
        for name, times in samples.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kernels", default="1,3,8")
    parser.add_argument("--cpu", type=float, default=0.05)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    done = provision()
    if done.code:
        sys.exit(done.out + done.err)
    rows = measure(arguments.runs, [int(size) for size in arguments.kernels.split(",")], arguments.cpu)
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{os.cpu_count()} cores, {platform.platform()}, medians of {arguments.runs} runs, seconds")
    medians = {(row["kernels"], row["way"]): row["median_s"] for row in rows}
    ways = list(dict.fromkeys(row["way"] for row in rows))
    print("kernels  " + "  ".join(f"{way:>14}" for way in ways) + "  muster - sdk  playbook / muster")
    for kernels in dict.fromkeys(row["kernels"] for row in rows):
        cells = [medians[kernels, way] for way in ways]
        above, ratio = (
            medians[kernels, "muster"] - medians[kernels, "docker_sdk"],
            medians[kernels, "playbook"] / medians[kernels, "muster"],
        )
        print(f"{kernels:>7}  " + "  ".join(f"{cell:>14.2f}" for cell in cells) + f"  {above:>12.2f}  {ratio:>17.2f}")


if __name__ == "__main__":
    main()
