"""Agents as the scheduler sees them, and what a host's report says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from muster.core.slots import Slots, parse_bytes, parse_milli

UNIT = 1000


class AgentState(StrEnum):
    ALIVE = "ALIVE"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU. `units` says into how many fGPU units it is cut; 0: whole devices only."""

    uuid: str
    index: int
    model: str
    mem: int
    units: int = 0

    @property
    def capacity(self) -> int:
        """In thousandths of a unit; a GPU that is not cut counts as one unit."""
        return max(self.units, 1) * UNIT


@dataclass(frozen=True, slots=True)
class Agent:
    """A Docker host that runs kernels."""

    id: str
    resource_group: str
    capacity: Slots
    gpus: tuple[Gpu, ...] = ()
    state: AgentState = AgentState.ALIVE
    report: Mapping[str, Any] = field(default_factory=dict, compare=False)
    observed_at: float = 0.0
    problem: str = ""


def agent_from_report(agent_id: str, report: Mapping[str, Any], now: float) -> Agent:
    """The agent that a report describes; what the inventory reserves for the system is taken off its capacity."""
    attributes = report["attributes"]
    units = int(attributes.get("units_per_gpu", 0))
    gpus = tuple(
        Gpu(uuid=gpu["uuid"], index=gpu["index"], model=gpu["model"], mem=gpu["mem_bytes"], units=units)
        for gpu in report["gpus"]
    )
    cpu = int(report["cpu_count"] * UNIT * float(attributes.get("cpu_overcommit", 1)))
    return Agent(
        id=agent_id,
        resource_group=str(attributes.get("resource_group", "default")),
        capacity=Slots(
            cpu=max(0, cpu - parse_milli(attributes.get("reserved_cpu", 0))),
            mem=max(0, report["mem_bytes"] - parse_bytes(attributes.get("reserved_mem", 0))),
            gpu=len(gpus),
            fgpu=units * UNIT * len(gpus),
        ),
        gpus=gpus,
        report=report,
        observed_at=now,
    )
