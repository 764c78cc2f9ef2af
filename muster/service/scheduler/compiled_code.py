"""The scheduler's compiled code, made before somebody waits for it: docs/adr/0009."""

import time
from typing import Any

from muster.contract.report import Report, SwarmReport
from muster.core.model.agent import Agent, Gpu
from muster.core.model.policy import PACK
from muster.core.scheduling.placement import Gang, PlacementState, choose
from muster.core.values.slots import Slots

_KERNEL = Slots(cpu=1000, mem=1 << 30, gpu=1)


def compile_placement() -> float | None:
    """The seconds that it took; None where this user's code was there already."""
    before, began = _compilations(), time.monotonic()
    agents = [_agent(f"a{number}") for number in (1, 2)]
    state = PlacementState.of(agents, {}, PACK, (), {})
    state.place(Gang((_KERNEL,)))
    state.place(Gang((_KERNEL,) * 3, spread=True))
    return time.monotonic() - began if _compilations() > before else None


def _compilations() -> int:
    entry_points: list[Any] = [choose.on_one_agent, choose.over_agents]
    return sum(sum(entry_point.stats.cache_misses.values()) for entry_point in entry_points)


def _agent(name: str) -> Agent:
    gpus = tuple(Gpu(f"{name}-{index}", index, "any", 1 << 30) for index in range(2))
    report = Report(cpu_count=2, swarm=SwarmReport(state="active", manager=True))
    return Agent(name, "default", Slots(cpu=2000, mem=2 << 30, gpu=2), gpus, report=report)
