"""Turn a policy's weights and the typical requests into the arrays of `cost.Ground`."""

import heapq
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

import numpy as np

from muster.core.model.policy import PlacementPolicy
from muster.core.scheduling.placement import columns
from muster.core.scheduling.placement.columns import NO_UNIT, UNIT
from muster.core.scheduling.placement.compiled import Floats
from muster.core.scheduling.placement.gang import Constraint, Mix, Typical
from muster.core.scheduling.placement.hardware import Hardware, parts_that_serve
from muster.core.values.slots import Slots

# Requests that no more of the GPUs than this part could ever serve weigh more, and count even where they are rare.
_FEW: Final = 0.5
_MOST_RARE: Final = 16


def typical_array(policy: PlacementPolicy, mix: Mix, hardware: Hardware) -> Floats:
    """Return the requests that count as (requests, columns); weights sum up to 1.

    Those without a GPU can use none of what is free, and stand together as one that asks for nothing.
    """
    requests = list(filter(_asks_for_gpus, mix.typical))
    weights = [
        request.weight * times for request, times in zip(requests, _dearths(policy, requests, hardware), strict=True)
    ]
    others = list(filter(_asks_for_gpus, mix.others))
    dearths = zip(others, _dearths(policy, others, hardware), strict=True)
    rare = [(request.weight * times, request) for request, times in dearths if times > 1]
    for weight, request in heapq.nlargest(_MOST_RARE, rare, key=itemgetter(0)):
        requests.append(request)
        weights.append(weight)
    if without := sum(request.weight for request in mix.typical if not _asks_for_gpus(request)):
        requests.append(Typical(Slots()))
        weights.append(without)
    every = sum(weights) or 1.0
    rows = [
        [
            request.slots.cpu,
            request.slots.mem,
            request.slots.fgpu,
            request.slots.gpu,
            weight / every,
            *[float(Constraint(request.gpu_models).takes_model(model)) for model in hardware.models],
        ]
        for request, weight in zip(requests, weights, strict=True)
    ]
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns.FIRST_MODEL + len(hardware.models))


def _asks_for_gpus(request: Typical) -> bool:
    return bool(request.slots.gpu or request.slots.fgpu)


def _dearths(policy: PlacementPolicy, requests: Sequence[Typical], hardware: Hardware) -> list[float]:
    """Return for requests for GPUs how many times as much they weigh, since few GPUs could ever serve them; mostly 1.

    Soon none could, where others are laid on just these. Of requests that name GPU models it is `scarcity` that keeps
    these free.
    """
    if not policy.dearth:
        return [1.0] * len(requests)
    parts = parts_that_serve(hardware, [request.slots for request in requests])
    return [
        1 + policy.dearth * (1 / part - 1) if 0 < part <= _FEW and not request.gpu_models else 1.0
        for request, part in zip(requests, parts, strict=True)
    ]


def weight_array(policy: PlacementPolicy, mix: Mix, hardware: Hardware) -> Floats:
    terms = [
        policy.fragmentation,
        policy.starvation,
        policy.imbalance,
        policy.scarcity,
        policy.left_over,
        policy.turn,
        policy.steps,
    ]
    return np.array([*terms, *scarcity(mix.typical, hardware)], dtype=np.float64)


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
