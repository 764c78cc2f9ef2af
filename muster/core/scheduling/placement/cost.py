"""The cost of a place by a policy. Compiled.

The cost is a function of the agent before and after. It is kept for each gang and agent until the agent changes.
Fragmentation is that of Weng et al., USENIX ATC 2023; docs/placement.md says what the terms are for.
"""

from typing import Final, NamedTuple

import numpy as np

from muster.core.scheduling.placement.columns import (
    CAPACITY,
    CPU,
    CPU_CAPACITY,
    FIRST_GPU,
    FIRST_MODEL,
    FIRST_SCARCITY,
    FRAGMENTATION,
    GPUS,
    HEAD,
    IMBALANCE,
    LEFT_OVER,
    MEM_CAPACITY,
    MODEL,
    REQUEST_CPU,
    REQUEST_FGPU,
    REQUEST_GPU,
    REQUEST_MEM,
    SCARCITY,
    STARVATION,
    STEPS,
    TURN,
    UNIT,
    WEIGHT,
)
from muster.core.scheduling.placement.compiled import Flags, Floats, Ints, borrowed, part

MILLIONTHS: Final = 1e6


class Ground(NamedTuple):
    """The agents and a policy's weights; see the columns above for the shapes. The rest is scratch space."""

    free: Ints
    fixed: Ints
    weights: Floats
    mix: Floats
    gpu_free: Ints
    empty: Flags
    kinds: Ints
    worth: Floats


@part
def ground_of(free: Ints, fixed: Ints, weights: Floats, mix: Floats) -> Ground:
    width = free.shape[1] - FIRST_GPU
    return Ground(
        borrowed(free),
        borrowed(fixed),
        borrowed(weights),
        borrowed(mix),
        np.empty(width, np.int64),
        np.empty(width, np.bool_),
        np.empty((width, 4), np.int64),
        np.empty(width, np.float64),
    )


@part
def kinds_of_gpus(ground: Ground, agent: int, gpu_free: Ints) -> int:
    """Note the GPUs with free capacity as (amount, capacity, model, number of such); return the number of kinds."""
    fixed, kinds = ground.fixed, ground.kinds
    width = gpu_free.shape[0]
    known = 0
    for gpu in range(fixed[agent, GPUS]):
        amount = gpu_free[gpu]
        if amount <= 0:
            continue
        capacity = fixed[agent, HEAD + CAPACITY * width + gpu]
        model = fixed[agent, HEAD + MODEL * width + gpu]
        kind = 0
        while kind < known and (kinds[kind, 0] != amount or kinds[kind, 1] != capacity or kinds[kind, 2] != model):
            kind += 1
        if kind == known:
            known += 1
            kinds[kind, 0], kinds[kind, 1], kinds[kind, 2], kinds[kind, 3] = amount, capacity, model, 0
        kinds[kind, 3] += 1
    return known


@part
def stranded(ground: Ground, agent: int, cpu: int, mem: int, gpu_free: Ints) -> float:
    """Return the GPUs' worth that a typical request could not use, on average over the mix: F of Weng et al."""
    mix, kinds, worth = ground.mix, ground.kinds, ground.worth
    unit = ground.fixed[agent, UNIT]
    known = kinds_of_gpus(ground, agent, gpu_free)
    if not known:
        return 0.0
    free = 0.0
    for kind in range(known):
        worth[kind] = kinds[kind, 3] * (kinds[kind, 0] / kinds[kind, 1])
        free += worth[kind]
    total = 0.0
    for request in range(mix.shape[0]):
        usable = 0.0
        if mix[request, REQUEST_CPU] <= cpu and mix[request, REQUEST_MEM] <= mem:
            wholes, part = int(mix[request, REQUEST_GPU]), int(mix[request, REQUEST_FGPU])
            if not wholes and part >= unit > 0:
                wholes, part = part // unit, part % unit
            fitting = 0
            for kind in range(known if wholes or unit else 0):
                if kinds[kind, 0] >= (part or kinds[kind, 1]) and mix[request, FIRST_MODEL + kinds[kind, 2]]:
                    fitting += kinds[kind, 3]
                    usable += worth[kind]
            if fitting < wholes + (part > 0) or not (wholes or part):
                usable = 0.0
        total += mix[request, WEIGHT] * (free - usable)
    return total


@part
def cost(
    ground: Ground, agent: int, before: float, cpu: int, mem: int, kernels: int, gpu_free: Ints, beside: float
) -> float:
    """Return the policy's cost of the agent as it would be.

    `before` is what was stranded; `beside` what would stay free on the GPUs that are shared anew.
    """
    free, fixed, weights = ground.free, ground.fixed, ground.weights
    width = gpu_free.shape[0]
    gpus = fixed[agent, GPUS]
    left = 0.0
    had = 0.0
    scarce = 0.0
    for gpu in range(gpus):
        capacity = fixed[agent, HEAD + CAPACITY * width + gpu]
        left += gpu_free[gpu] / capacity
        had += free[agent, FIRST_GPU + gpu] / capacity
        taken = (free[agent, FIRST_GPU + gpu] - gpu_free[gpu]) / capacity
        scarce += taken * weights[FIRST_SCARCITY + fixed[agent, HEAD + MODEL * width + gpu]]
    all_cpu = max(1, fixed[agent, CPU_CAPACITY])
    cpu_left = cpu / all_cpu
    mem_left = mem / max(1, fixed[agent, MEM_CAPACITY])
    total = weights[LEFT_OVER] * (left + beside / 8 + (cpu_left + mem_left) / 16)
    total += weights[SCARCITY] * scarce + weights[TURN] * kernels
    if gpus:
        # Growth of both: by its level, an agent out of balance would be avoided, and an empty one opened instead.
        strays, strayed = cpu_left - left / gpus, free[agent, CPU] / all_cpu - had / gpus
        total += weights[STARVATION] * (max(0.0, -strays) - max(0.0, -strayed))
        total += weights[IMBALANCE] * (abs(strays) - abs(strayed))
    if weights[FRAGMENTATION] != 0.0:
        growth = stranded(ground, agent, cpu, mem, gpu_free) - before
        if weights[STEPS] != 0.0:
            growth = 0.5 - np.floor(weights[STEPS] / (1.0 + np.exp(growth)) + 1e-9) / weights[STEPS]
        total += weights[FRAGMENTATION] * growth
    # Equal costs must be equal numbers: rounding errors would order them by chance.
    return float(np.floor(total * MILLIONTHS + 0.5))
