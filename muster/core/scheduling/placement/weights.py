"""Turn a policy's weights and the typical requests into the arrays of `cost.Ground`."""

from collections.abc import Sequence

import numpy as np

from muster.core.model.policy import PlacementPolicy
from muster.core.scheduling.placement import columns
from muster.core.scheduling.placement.columns import NO_UNIT, UNIT
from muster.core.scheduling.placement.compiled import Floats
from muster.core.scheduling.placement.gang import Constraint, Typical
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import Slots


def typical_array(mix: Sequence[Typical], hardware: Hardware) -> Floats:
    """Return the typical requests as (typical requests, columns); weights sum up to 1.

    Those without a GPU can use none of what is free, and stand together as one that asks for nothing.
    """
    every = sum(request.weight for request in mix) or 1.0
    others = sum(request.weight for request in mix if not (request.slots.gpu or request.slots.fgpu))
    mix = [request for request in mix if request.slots.gpu or request.slots.fgpu]
    if others:
        mix.append(Typical(Slots(), weight=others))
    rows = [
        [
            request.slots.cpu,
            request.slots.mem,
            request.slots.fgpu,
            request.slots.gpu,
            request.weight / every,
            *[float(Constraint(request.gpu_models).takes_model(model)) for model in hardware.models],
        ]
        for request in mix
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns.FIRST_MODEL + len(hardware.models))


def weight_array(policy: PlacementPolicy, mix: Sequence[Typical], hardware: Hardware) -> Floats:
    terms = [
        policy.fragmentation,
        policy.starvation,
        policy.imbalance,
        policy.scarcity,
        policy.left_over,
        policy.turn,
        policy.steps,
    ]
    return np.array([*terms, *scarcity(mix, hardware)], dtype=np.float64)


def scarcity(mix: Sequence[Typical], hardware: Hardware) -> list[float]:
    """Return how scarce each GPU model is.

    It is the part of the model that named requests would fill, were all placed in proportion: what they ask of all
    GPUs' worth, over the model's part of the cluster.
    """
    gpus = hardware.gpus_of_model
    units = hardware.fixed[:, UNIT]
    unit = int(units[(units > 0) & (units < NO_UNIT)].min(initial=NO_UNIT))
    unit = unit if unit < NO_UNIT else 1
    requested = dict.fromkeys(gpus, 0.0)
    every = 0.0
    for request in mix:
        worth = request.weight * (request.slots.gpu or request.slots.fgpu / unit)
        every += worth
        named = [model for model in gpus if Constraint(request.gpu_models).takes_model(model)]
        room = sum(gpus[model] for model in named)
        if request.gpu_models and room:
            for model in named:
                requested[model] += worth * gpus[model] / room
    total = sum(gpus.values())
    return [requested[model] / every / (gpus[model] / total) if every and gpus[model] else 0.0 for model in gpus]
