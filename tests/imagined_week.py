"""A simulated week of a cluster: simulated agents, and users that submit sessions."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.core.model.session import FINAL, Session, SessionState
from tests.simulated.agents import SimulatedAgent
from tests.simulated.control_node import ControlNode
from tests.simulated.hosts import host_of

WEEK_S = 7 * 86400
STEP_S = 590
LAST_STEP_S = 60
GIB = 1 << 30
_PEOPLE = (("ada", "vision"), ("bob", "speech"), ("carol", "vision"), ("dan", "genomics"), ("eve", "speech"))
_WORK: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("train", {"cluster_size": 4, "cluster_mode": "multi-node", "cpu": 8, "mem": "64G", "gpu": 2}, 5.0),
    ("finetune", {"cluster_size": 2, "cpu": 8, "mem": "48G", "gpu": 1}, 5.0),
    ("notebook", {"cpu": 2, "mem": "16G", "fgpu": 0.5}, 6.0),
    ("explore", {"cpu": 4, "mem": "16G", "fgpu": 1}, 4.0),
    ("align", {"cluster_size": 8, "cluster_mode": "multi-node", "cpu": 4, "mem": "16G"}, 2.0),
    ("eval", {"cpu": 4, "mem": "24G", "gpu": 1}, 1.5),
)


@dataclass
class BusyAgent(SimulatedAgent):
    """An agent whose containers use nearly all of their GPUs, and less than they requested of the rest, as most do."""

    now: float = 0.0
    began: dict[str, float] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        report = super().report()
        held: dict[str, int] = {}
        for entry in report["kernels"]:
            container = self.containers[entry["kernel_id"]]
            share = random.Random(entry["kernel_id"]).uniform(0.35, 0.95)
            runs_s = self.now - self.began.setdefault(entry["kernel_id"], self.now)
            entry["use"] = {
                "at": self.now,
                "cpu_seconds": runs_s * share * container.resources["cpu_milli"] / 1000,
                "mem_bytes": int(container.resources["mem_bytes"] * share),
                "mem_peak_bytes": int(container.resources["mem_bytes"] * share),
                "net_rx_bytes": int(runs_s * 1e6 * share),
                "net_tx_bytes": int(runs_s * 1e6 * share),
                "gpu_percent": 100 * share * sum(gpu["compute"] or 1000 for gpu in entry["gpus"]) / 1000,
            }
            for gpu in entry["gpus"]:
                gpu["enforced_bytes"] = None
                gpu["used_bytes"] = int((gpu["mem_bytes"] or 80 * GIB) * share)
                held[gpu["uuid"]] = held.get(gpu["uuid"], 0) + gpu["used_bytes"]
        report["gpus"] = [{**gpu, "mem_used_bytes": held.get(gpu["uuid"], 0)} for gpu in report["gpus"]]
        return report


def _agent(name: str, gpus: int, rack: str, cpus: int, mem_gib: int) -> BusyAgent:
    report, inventory = host_of(
        name,
        cpus=cpus,
        mem_bytes=mem_gib * GIB,
        gpus=gpus,
        units_per_gpu=4 if gpus else 0,
        swarm="worker",
        resource_group="gpu" if gpus else "default",
        gpu_models=("NVIDIA H100 80GB HBM3",),
        rack=rack,
    )
    report["disk"] |= {"total_bytes": 4 << 40, "free_bytes": 3 << 40}
    for image in report["images"]:
        image["size_bytes"] = 126_000_000
    for gpu in report["gpus"]:
        gpu["mem_bytes"] = 80 * GIB
    return BusyAgent(name, report, inventory)


def live_through(directory: Path) -> None:
    """Leaves the database of such a cluster's control node in that directory, as of now."""
    agents = [_agent(f"gpu-{number}", 8, f"r{(number + 1) // 2}", 96, 768) for number in (1, 2, 3, 4)]
    agents += [_agent(f"cpu-{number}", 0, "r3", 64, 256) for number in (1, 2)]
    agents[0].hardware["swarm"]["manager"] = True
    node = ControlNode(directory, *agents)
    chance = random.Random(7)
    end = time.time()
    node.now = end - WEEK_S
    ends: dict[str, float] = {}
    running: dict[str, Session] = {}
    while node.now < end - 2 * LAST_STEP_S:
        _come(node, chance, ends, running)
        for session_id in [key for key, at in ends.items() if at <= node.now]:
            _finish(agents, session_id, chance)
            del ends[session_id]
        node.now += LAST_STEP_S if node.now > end - 3600 else STEP_S
        for agent in agents:
            agent.now = node.now
        node.run()
        for session_id, session in list(running.items()):
            state = node.state(session)
            if state is SessionState.RUNNING:
                ends[session_id] = node.now + chance.expovariate(1 / (_hours(session.name) * 3600))
            if state is SessionState.RUNNING or state in FINAL:
                del running[session_id]
    node.store.agents.drain("cpu-2", "new disks on Thursday")
    node.store.close()


def _hours(name: str) -> float:
    return next(hours for stem, _, hours in _WORK if name.startswith(stem))


def _come(node: ControlNode, chance: random.Random, ends: dict[str, float], running: dict[str, Session]) -> None:
    """Submit a session now and then, more often by day than by night."""
    hour = time.gmtime(node.now).tm_hour
    step_s = LAST_STEP_S if len(ends) and node.now > time.time() - 3600 else STEP_S
    if chance.random() > (0.6 if 8 <= hour < 19 else 0.2) * step_s / STEP_S:
        return
    stem, requested, _ = chance.choice(_WORK)
    user, project = chance.choice(_PEOPLE)
    number = next(node.numbers)
    group = "gpu" if "gpu" in requested or "fgpu" in requested else "default"
    session = node.submit(
        name=f"{stem}-{number}",
        owner=user,
        project=project,
        resource_group=group,
        command="python train.py",
        time_limit="12h",
        image="muster/default:latest",
        **requested,
    )
    running[session.id] = session


def _finish(agents: list[BusyAgent], session_id: str, chance: random.Random) -> None:
    code = 0 if chance.random() < 0.9 else 1
    for agent in agents:
        for container in agent.of_session(session_id):
            container.end(code)
