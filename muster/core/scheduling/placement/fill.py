"""Lay kernels on one agent, GPU by GPU. Compiled; only `take` changes what is free."""

import numpy as np

from muster.core.scheduling.placement.columns import (
    AGENT,
    ALIKE,
    CAPACITY,
    CHOICE,
    CPU,
    CUT,
    EXCLUSIVE,
    FILL,
    FIRST_GPU,
    FIRST_WHOLE,
    GPUS,
    HEAD,
    KERNELS,
    LEAST_FRAGMENTING,
    LEFT_OVER,
    LIKE_LAST,
    MEM,
    MODEL,
    MOST_CPU,
    NO_GPU,
    NO_ROOM,
    NOWHERE,
    NUMA,
    PART,
    PART_OF,
    POLICY,
    RANK,
    REQUEST_CPU,
    REQUEST_FGPU,
    REQUEST_GPU,
    REQUEST_MEM,
    SHARED,
    SPREAD,
    UNIT,
    WHOLES,
)
from muster.core.scheduling.placement.compiled import Flags, Ints, part
from muster.core.scheduling.placement.cost import Ground, cost, stranded


@part
def on_node_of(fixed: Ints, agent: int, gpu: int, width: int, empty: Flags) -> int:
    """Return how many of the GPUs that are `empty` lie on this GPU's NUMA node."""
    count = 0
    for other in range(width):
        count += empty[other] and fixed[agent, HEAD + NUMA * width + other] == fixed[agent, HEAD + NUMA * width + gpu]
    return count


@part
def empty_gpus(ground: Ground, agent: int, cut: bool, gpu_free: Ints, serves: Flags) -> int:
    """Note which GPUs are wholly free (with `cut`, of those that are cut into units); return how many."""
    fixed, empty = ground.fixed, ground.empty
    width = gpu_free.shape[0]
    count = 0
    for gpu in range(width):
        empty[gpu] = (
            gpu < fixed[agent, GPUS]
            and gpu_free[gpu] == fixed[agent, HEAD + CAPACITY * width + gpu]
            and fixed[agent, HEAD + CUT * width + gpu] != EXCLUSIVE
            and (not cut or fixed[agent, HEAD + CUT * width + gpu] == SHARED)
            and (serves.shape[0] == 0 or serves[fixed[agent, HEAD + MODEL * width + gpu]])
        )
        count += empty[gpu]
    return count


@part
def near_gpus(fixed: Ints, agent: int, count: int, empty: Flags, place: Ints) -> None:
    """Write `count` of the empty GPUs to a kernel's place.

    They are of the NUMA node that has the fewest that are enough, otherwise of the largest one after the other.
    """
    width = empty.shape[0]
    chosen = 0
    while chosen < count:
        best, best_size = 0, 0
        for gpu in range(width):
            if empty[gpu]:
                size = on_node_of(fixed, agent, gpu, width, empty)
                enough, best_enough = size >= count - chosen, best_size >= count - chosen
                if (enough and (size < best_size or not best_enough)) or (not best_enough and size > best_size):
                    best, best_size = gpu, size
        for gpu in range(best, width):
            same = fixed[agent, HEAD + NUMA * width + gpu] == fixed[agent, HEAD + NUMA * width + best]
            if empty[gpu] and same and chosen < count:
                empty[gpu] = False
                place[FIRST_WHOLE + chosen] = gpu
                chosen += 1


@part
def whole_gpus(
    ground: Ground, agent: int, count: int, cut: bool, gpu_free: Ints, serves: Flags, near: bool, place: Ints
) -> bool:
    """Write `count` wholly free GPUs to a kernel's place; return False if too few.

    With `near` they are near to each other, otherwise the first.
    """
    if empty_gpus(ground, agent, cut, gpu_free, serves) < count:
        return False
    place[WHOLES] = count
    if near:
        near_gpus(ground.fixed, agent, count, ground.empty, place)
        return True
    chosen = 0
    for gpu in range(gpu_free.shape[0]):
        if ground.empty[gpu] and chosen < count:
            place[FIRST_WHOLE + chosen] = gpu
            chosen += 1
    return True


@part
def part_of_a_gpu(
    ground: Ground,
    agent: int,
    before: float,
    cpu: int,
    mem: int,
    kernels: int,
    part: int,
    gpu_free: Ints,
    serves: Flags,
    tightest: bool,
) -> int:
    """Return the GPU that gives `part` of itself.

    It is the agent's choice, the one of the policy's least cost, or with `tightest` the fullest that can; of exclusive
    ones the smallest.
    """
    fixed = ground.fixed
    width = gpu_free.shape[0]
    choice = fixed[agent, CHOICE]
    best, least = NO_GPU, np.inf
    for gpu in range(fixed[agent, GPUS]):
        cut = fixed[agent, HEAD + CUT * width + gpu]
        if gpu_free[gpu] < part or not cut:
            continue
        if serves.shape[0] and not serves[fixed[agent, HEAD + MODEL * width + gpu]]:
            continue
        duplicate = False
        for other in range(gpu):
            duplicate |= (
                gpu_free[other] == gpu_free[gpu]
                and fixed[agent, HEAD + MODEL * width + other] == fixed[agent, HEAD + MODEL * width + gpu]
                and fixed[agent, HEAD + CUT * width + other] == fixed[agent, HEAD + CUT * width + gpu]
            )
        if duplicate:
            continue
        if tightest or cut == EXCLUSIVE or choice == FILL:
            price = float(gpu_free[gpu])
        elif choice == SPREAD:
            price = -float(gpu_free[gpu])
        else:
            gpu_free[gpu] -= part
            if choice == LEAST_FRAGMENTING:
                price = stranded(ground, agent, cpu, mem, gpu_free)
            else:
                beside = gpu_free[gpu] / fixed[agent, HEAD + CAPACITY * width + gpu]
                price = cost(ground, agent, before, cpu, mem, kernels, gpu_free, beside)
            gpu_free[gpu] += part
        if price < least:
            best, least = gpu, price
    return best


@part
def gpus_for(
    ground: Ground,
    agent: int,
    before: float,
    cpu: int,
    mem: int,
    kernels: int,
    request: Ints,
    gpu_free: Ints,
    serves: Flags,
    tightest: bool,
    near: bool,
    place: Ints,
) -> float:
    """Take the request's GPUs from `gpu_free` and write them to the kernel's place.

    Returns what stays free on the GPU that it shares, in GPUs' worth; less than nothing where they do not fit.
    """
    fixed = ground.fixed
    width = gpu_free.shape[0]
    unit = fixed[agent, UNIT]
    place[PART_OF] = NO_GPU
    place[PART] = 0
    place[WHOLES] = 0
    requested_gpu, requested_fgpu = request[REQUEST_GPU], request[REQUEST_FGPU]
    if not requested_gpu and not requested_fgpu:
        return 0.0
    if not requested_gpu and not unit:
        return NO_ROOM
    count = requested_gpu or requested_fgpu // unit
    part = 0 if requested_gpu else requested_fgpu % unit
    if count and not whole_gpus(ground, agent, count, not requested_gpu, gpu_free, serves, near, place):
        return NO_ROOM
    for whole in range(place[WHOLES]):
        gpu_free[place[FIRST_WHOLE + whole]] = 0
    if not part:
        return 0.0
    gpu = part_of_a_gpu(ground, agent, before, cpu, mem, kernels, part, gpu_free, serves, tightest)
    if gpu == NO_GPU:
        for whole in range(place[WHOLES]):
            gpu = place[FIRST_WHOLE + whole]
            gpu_free[gpu] = fixed[agent, HEAD + CAPACITY * width + gpu]
        return NO_ROOM
    if fixed[agent, HEAD + CUT * width + gpu] == EXCLUSIVE:
        part = gpu_free[gpu]
    gpu_free[gpu] -= part
    place[PART_OF] = gpu
    place[PART] = part
    return float(gpu_free[gpu] / fixed[agent, HEAD + CAPACITY * width + gpu])


@part
def lie_down(
    ground: Ground,
    agent: int,
    before: float,
    requests: Ints,
    serves: Flags,
    tightest: bool,
    near: bool,
    todo: Flags,
    places: Ints,
) -> tuple[int, float]:
    """Lay as many of the kernels that are `todo` on the agent as it holds, the demanding ones first.

    Requests come in that order, those that are alike together. Writes the places by rank; returns how many there are,
    and the cost.
    """
    free, fixed = ground.free, ground.fixed
    cpu, mem, kernels = free[agent, CPU], free[agent, MEM], free[agent, KERNELS]
    gpu_free = ground.gpu_free
    gpu_free[:] = free[agent, FIRST_GPU:]
    held = 0
    beside = 0.0
    failed = False
    for number in range(requests.shape[0]):
        if not todo[number]:
            continue
        request = requests[number]
        place = places[request[RANK]]
        place[AGENT] = NOWHERE
        if failed and request[LIKE_LAST]:
            continue
        failed = True
        cpu_left, mem_left = cpu - request[REQUEST_CPU], mem - request[REQUEST_MEM]
        if cpu_left < 0 or mem_left < 0 or request[REQUEST_CPU] > fixed[agent, MOST_CPU]:
            continue
        stays = gpus_for(
            ground, agent, before, cpu_left, mem_left, kernels + 1, request, gpu_free, serves, tightest, near, place
        )
        if stays < 0.0:
            continue
        failed = False
        place[AGENT] = agent
        cpu, mem = cpu_left, mem_left
        beside += stays
        kernels += 1
        held += 1
    if not held:
        return 0, np.inf
    return held, cost(ground, agent, before, cpu, mem, kernels, gpu_free, beside)


@part
def may_corner(ground: Ground, agent: int, requests: Ints) -> bool:
    """Return whether it may matter on which GPUs kernels have their shares.

    Equal shares of one GPU each fit in any order or not at all.
    """
    unit = ground.fixed[agent, UNIT]
    shares = 0
    for number in range(requests.shape[0]):
        part = requests[number, REQUEST_FGPU]
        if part and (part >= unit or not requests[number, LIKE_LAST]):
            shares += 1
    return shares > 1 or (shares == 1 and bool(requests[:, REQUEST_GPU].any()))


@part
def held_by(
    ground: Ground,
    agent: int,
    before: float,
    requests: Ints,
    serves: Flags,
    final: bool,
    todo: Flags,
    places: Ints,
    gang_size: int,
) -> tuple[int, float]:
    """Return `lie_down` with shares on the GPUs of the policy's choice.

    Where that leaves a kernel over, they go on the tightest GPUs. A policy that does not spread gets the shares of a
    gang of several kernels on the tightest at once: that is good enough, and much quicker. Which of equal GPUs serve
    has no bearing on count and cost: only a `final` answer has them near to each other.
    """
    near = final or not ground.fixed[agent, ALIKE]
    choice = ground.fixed[agent, CHOICE]
    tightest = gang_size > 1 and choice in (POLICY, FILL) and ground.weights[LEFT_OVER] >= 0.0
    held, price = lie_down(ground, agent, before, requests, serves, tightest, near, todo, places)
    if 0 < held < gang_size and not tightest and may_corner(ground, agent, requests):
        tight, tight_price = lie_down(ground, agent, before, requests, serves, True, near, todo, places)
        if tight > held:
            return tight, tight_price
        held, price = lie_down(ground, agent, before, requests, serves, False, near, todo, places)
    return held, price


@part
def take(ground: Ground, request: Ints, place: Ints) -> None:
    """Take the kernel's place from what is free."""
    free, fixed = ground.free, ground.fixed
    width = free.shape[1] - FIRST_GPU
    agent = place[AGENT]
    free[agent, CPU] -= request[REQUEST_CPU]
    free[agent, MEM] -= request[REQUEST_MEM]
    free[agent, KERNELS] += 1
    if place[PART_OF] != NO_GPU:
        free[agent, FIRST_GPU + place[PART_OF]] -= place[PART]
    for whole in range(place[WHOLES]):
        gpu = place[FIRST_WHOLE + whole]
        free[agent, FIRST_GPU + gpu] -= fixed[agent, HEAD + CAPACITY * width + gpu]
