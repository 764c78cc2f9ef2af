"""What each agent would hold of a gang, and at which cost, kept until the agent changes. Compiled.

A row of `held` and `score` is kept for each gang that was recently looked up. `log` lists the agents that changed; a
row is brought up to date when its gang is looked up again. `best` holds the least cost of each block of agents, so that
the best is found without looking at all.
"""

from typing import Final, NamedTuple

import numpy as np

from muster.core.scheduling.placement.columns import (
    CPU,
    FIRST_GPU,
    FRAGMENTATION,
    MEM,
    NOWHERE,
    REQUEST_CPU,
    REQUEST_MEM,
)
from muster.core.scheduling.placement.compiled import Flags, Floats, Ints, borrowed, part
from muster.core.scheduling.placement.cost import Ground, stranded
from muster.core.scheduling.placement.fill import held_by

BLOCK: Final = 64

# Columns of `shapes`.
START: Final = 0
COUNT: Final = 1
ROW: Final = 2
SYNCED: Final = 3
UNIFORM: Final = 4
PICKY: Final = 5
FIRST_DOMAIN: Final = 6
END_DOMAIN: Final = 7

NEVER_SYNCED: Final = -1
RULED_OUT: Final = -1


class Cache(NamedTuple):
    """The arrays of a cache. `log[0]` counts the changes; the rest is a ring.

    `now` is what is stranded on each agent, NaN where not known. `stamps` marks the agents that an update has visited;
    its last entry is the mark of the current one.
    """

    shapes: Ints
    requests: Ints
    serves: Flags
    held: Ints
    score: Floats
    best: Floats
    log: Ints
    now: Floats
    stamps: Ints


@part
def cache_of(
    shapes: Ints,
    requests: Ints,
    serves: Flags,
    held: Ints,
    score: Floats,
    best: Floats,
    log: Ints,
    now: Floats,
    stamps: Ints,
) -> Cache:
    return Cache(
        borrowed(shapes),
        borrowed(requests),
        borrowed(serves),
        borrowed(held),
        borrowed(score),
        borrowed(best),
        borrowed(log),
        borrowed(now),
        borrowed(stamps),
    )


@part
def note_change(cache: Cache, agent: int) -> None:
    log = cache.log
    log[1 + log[0] % (log.shape[0] - 1)] = agent
    log[0] += 1
    cache.now[agent] = np.nan


@part
def stranded_now(ground: Ground, cache: Cache, agent: int) -> float:
    if ground.weights[FRAGMENTATION] == 0.0:
        return 0.0
    if np.isnan(cache.now[agent]):
        free = ground.free[agent]
        cache.now[agent] = stranded(ground, agent, free[CPU], free[MEM], free[FIRST_GPU:])
    return cache.now[agent]  # type: ignore[no-any-return]


@part
def update_block(cache: Cache, row: int, count: int, block: int) -> None:
    held, score = cache.held[row], cache.score[row]
    least = np.inf
    for agent in range(block * BLOCK, min((block + 1) * BLOCK, held.shape[0])):
        if held[agent] == count and score[agent] < least:
            least = score[agent]
    cache.best[row, block] = least


@part
def update_agent(cache: Cache, row: int, count: int, agent: int, held: int, score: float) -> None:
    """Note what the agent holds now. Its block is only searched when its best agent has become worse."""
    block = agent // BLOCK
    was_best = cache.held[row, agent] == count and cache.score[row, agent] == cache.best[row, block]
    cache.held[row, agent], cache.score[row, agent] = held, score
    if held == count and score <= cache.best[row, block]:
        cache.best[row, block] = score
    elif was_best:
        update_block(cache, row, count, block)


@part
def serving(cache: Cache, shape: int) -> Flags:
    """Return which GPU models serve the gang; nothing when all do."""
    return cache.serves[shape] if cache.shapes[shape, PICKY] else cache.serves[shape, :0]


@part
def requests_of(cache: Cache, shape: int) -> Ints:
    start = cache.shapes[shape, START]
    return cache.requests[start : start + cache.shapes[shape, COUNT]]


@part
def are_twins(ground: Ground, agent: int, other: int) -> bool:
    """Return whether both have the same hardware and the same free: what is found out for one holds for the other."""
    for array in (ground.free, ground.fixed):
        for column in range(array.shape[1]):
            if array[agent, column] != array[other, column]:
                return False
    return True


@part
def update_row(ground: Ground, cache: Cache, shape: int, places: Ints) -> None:
    """Bring the gang's row up to date."""
    free, shapes, held, score, log = ground.free, cache.shapes, cache.held, cache.score, cache.log
    agents = held.shape[1]
    row, count, synced, end = shapes[shape, ROW], shapes[shape, COUNT], shapes[shape, SYNCED], log[0]
    requests, serves = requests_of(cache, shape), serving(cache, shape)
    todo = np.ones(count, np.bool_)
    # Most agents of a full cluster have less than any kernel asks for: to see that here saves calls.
    least_cpu, least_mem = requests[:, REQUEST_CPU].min(), requests[:, REQUEST_MEM].min()
    shapes[shape, SYNCED] = end
    if synced == NEVER_SYNCED or end - synced >= log.shape[0] - 1:
        last = NOWHERE
        for agent in range(agents):
            if held[row, agent] == RULED_OUT:
                continue
            if free[agent, CPU] < least_cpu or free[agent, MEM] < least_mem:
                held[row, agent], score[row, agent] = 0, np.inf
                continue
            if last != NOWHERE and are_twins(ground, agent, last):
                held[row, agent], score[row, agent] = held[row, last], score[row, last]
                continue
            last = agent
            before = stranded_now(ground, cache, agent)
            held[row, agent], score[row, agent] = held_by(
                ground, agent, before, requests, serves, False, todo, places, count
            )
        for block in range(cache.best.shape[1]):
            update_block(cache, row, count, block)
        return
    stamps = cache.stamps
    stamps[agents] += 1
    for position in range(end - 1, synced - 1, -1):
        agent = log[1 + position % (log.shape[0] - 1)]
        if stamps[agent] == stamps[agents] or held[row, agent] == RULED_OUT:
            continue
        stamps[agent] = stamps[agents]
        holds, price = 0, np.inf
        if free[agent, CPU] >= least_cpu and free[agent, MEM] >= least_mem:
            before = stranded_now(ground, cache, agent)
            holds, price = held_by(ground, agent, before, requests, serves, False, todo, places, count)
        update_agent(cache, row, count, agent, holds, price)
