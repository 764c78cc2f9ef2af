"""Choose the agents that hold a gang. Compiled."""

from collections.abc import Callable

import numpy as np

from muster.core.scheduling.placement.columns import AGENT, KERNELS, NOWHERE, OVERLAY, RANK
from muster.core.scheduling.placement.compiled import Flags, Floats, Ints, borrowed, entry_point, part, revision
from muster.core.scheduling.placement.cost import Ground, ground_of
from muster.core.scheduling.placement.fill import held_by, take
from muster.core.scheduling.placement.gang_cache import (
    BLOCK,
    COUNT,
    END_DOMAIN,
    FIRST_DOMAIN,
    ROW,
    RULED_OUT,
    UNIFORM,
    Cache,
    cache_of,
    note_change,
    requests_of,
    serving,
    stranded_now,
    update_row,
)

Domains = tuple[Ints, Ints, Ints, Ints, Ints, Ints]
"""Members and starts of the racks, of the zones, and of all agents as one domain: `hardware.Domain`."""


@part
def best_whole(cache: Cache, shape: int, closed: Flags) -> int:
    """Return the agent that holds the whole gang at the least cost, the first of equals; NOWHERE where none does."""
    row, count = cache.shapes[shape, ROW], cache.shapes[shape, COUNT]
    held, score = cache.held[row], cache.score[row]
    first, last = 0, held.shape[0]
    if not closed.shape[0]:
        block, least = 0, np.inf
        for other in range(cache.best.shape[1]):
            if cache.best[row, other] < least:
                block, least = other, cache.best[row, other]
        first, last = block * BLOCK, min((block + 1) * BLOCK, last)
    found, least = NOWHERE, np.inf
    for agent in range(first, last):
        if held[agent] == count and score[agent] < least and not (closed.shape[0] and closed[agent]):
            found, least = agent, score[agent]
    return found


@part
def commit(ground: Ground, cache: Cache, requests: Ints, places: Ints) -> None:
    last = NOWHERE
    for number in range(requests.shape[0]):
        place = places[requests[number, RANK]]
        take(ground, requests[number], place)
        if place[AGENT] != last:
            last = place[AGENT]
            note_change(cache, last)


@part
def limit(ground: Ground, cache: Cache, now: Ints, then: Ints, places: Ints) -> None:
    """Leave free, of each agent in `places`, the lesser of what is free in the other two."""
    free, last = ground.free, NOWHERE
    for number in range(places.shape[0]):
        agent = places[number, AGENT]
        if agent != last:
            last = agent
            for column in range(free.shape[1]):
                free[agent, column] = min(now[agent, column], then[agent, column])
            free[agent, KERNELS] = max(now[agent, KERNELS], then[agent, KERNELS])
            note_change(cache, agent)


@part
def take_whole(ground: Ground, cache: Cache, shape: int, agent: int, places: Ints) -> None:
    """Take the gang's places on an agent that holds all of it."""
    kernels = requests_of(cache, shape)
    count = kernels.shape[0]
    todo = np.ones(count, np.bool_)
    before = stranded_now(ground, cache, agent)
    held_by(ground, agent, before, kernels, serving(cache, shape), True, todo, places, count)
    commit(ground, cache, kernels, places)


@part
def best_next(
    ground: Ground,
    cache: Cache,
    shape: int,
    members: Ints,
    closed: Flags,
    used: Flags,
    todo: Flags,
    rest: int,
    places: Ints,
) -> tuple[int, int]:
    """Return the agent that holds most of the kernels that are left, and how many.

    Of those that hold all of them, it is the one with the least capacity for more. Then cost decides, then the order.
    """
    row = cache.shapes[shape, ROW]
    kernels, serves, uniform = requests_of(cache, shape), serving(cache, shape), cache.shapes[shape, UNIFORM] != 0
    found, most, spare, least = NOWHERE, 0, 0, np.inf
    for agent in members:
        room = cache.held[row, agent]
        if (uniform and room < 1) or used[agent] or room == RULED_OUT or not ground.fixed[agent, OVERLAY]:
            continue
        if closed.shape[0] and closed[agent]:
            continue
        price = cache.score[row, agent]
        if not uniform:
            before = stranded_now(ground, cache, agent)
            room, price = held_by(ground, agent, before, kernels, serves, False, todo, places, rest)
        holds = min(room, rest)
        if holds > most or (holds == most > 0 and (room - holds < spare or (room - holds == spare and price < least))):
            found, most, spare, least = agent, holds, room - holds, price
    return found, most


@part
def cover(
    ground: Ground, cache: Cache, shape: int, partly: bool, members: Ints, closed: Flags, used: Flags, places: Ints
) -> int:
    """Return on how many members the gang lies if each time the one that holds most is taken; 0 where it does not fit.

    Writes the places; where it does not fit, and with `partly`, NOWHERE for the kernels that are left over.
    """
    kernels, serves = requests_of(cache, shape), serving(cache, shape)
    count = kernels.shape[0]
    if cache.shapes[shape, UNIFORM] and not partly:
        room = 0
        for agent in members:
            room += max(0, cache.held[cache.shapes[shape, ROW], agent])
        if room < count:
            return 0
    todo = np.ones(count, np.bool_)
    used[members] = False
    rest, agents = count, 0
    while rest:
        agent, holds = best_next(ground, cache, shape, members, closed, used, todo, rest, places)
        if agent == NOWHERE:
            for number in range(count):
                if todo[number]:
                    places[kernels[number, RANK], AGENT] = NOWHERE
            return 0
        before = stranded_now(ground, cache, agent)
        held_by(ground, agent, before, kernels, serves, True, todo, places, rest)
        for number in range(count):
            todo[number] &= places[kernels[number, RANK], AGENT] != agent
        used[agent] = True
        rest -= holds
        agents += 1
    return agents


@part
def nearest(
    ground: Ground,
    cache: Cache,
    shape: int,
    partly: bool,
    members: Ints,
    starts: Ints,
    closed: Flags,
    used: Flags,
    places: Ints,
) -> int:
    """Cover the gang by the rack (or zone) that needs the fewest agents; return their number, 0 where none holds it."""
    fewest, best, last = 0, 0, 0
    for domain in range(starts.shape[0] - 1):
        agents = cover(ground, cache, shape, partly, members[starts[domain] : starts[domain + 1]], closed, used, places)
        last = domain
        if agents and (not fewest or agents < fewest):
            fewest, best = agents, domain
    if fewest and best != last:
        cover(ground, cache, shape, partly, members[starts[best] : starts[best + 1]], closed, used, places)
    return fewest


@part
def cover_nearest(
    ground: Ground, cache: Cache, shape: int, domains: Domains, closed: Flags, used: Flags, places: Ints
) -> bool:
    """Return whether the gang's kinds of domains cover it, the first of them that does: then it has its `places`."""
    for kind in range(cache.shapes[shape, FIRST_DOMAIN], cache.shapes[shape, END_DOMAIN]):
        members, starts = domains[2 * kind], domains[2 * kind + 1]
        if nearest(ground, cache, shape, False, members, starts, closed, used, places):
            return True
    return False


@part
def take_one(
    ground: Ground, cache: Cache, shape: int, domains: Domains, closed: Flags, used: Flags, places: Ints
) -> bool:
    """Return whether places were found for the gang, on one agent or over several; if so, they are taken."""
    update_row(ground, cache, shape, places)
    agent = best_whole(cache, shape, closed)
    if agent != NOWHERE:
        take_whole(ground, cache, shape, agent, places)
        return True
    if cover_nearest(ground, cache, shape, domains, closed, used, places):
        commit(ground, cache, requests_of(cache, shape), places)
        return True
    return False


@part
def take_each(
    ground: Ground,
    cache: Cache,
    numbers: Ints,
    other_ground: Ground,
    other_cache: Cache,
    other_numbers: Ints,
    then: Ground,
    there: Flags,
    domains: Domains,
    closed: Flags,
    places: Ints,
) -> int:
    """Take places for one gang after the other, up to one that none are found for; return how many were taken.

    `places` says where the kernels lie, gang by gang, by rank. Where there are `other_numbers`, the first state has the
    least of the other and of `then`. Each gang takes places of all three; or it takes those that are found `there`, in
    the other, and none of `then`. A gang whose row is not kept ends it as well.
    """
    used = np.zeros(cache.held.shape[1], np.bool_)
    first = 0
    for taken in range(numbers.shape[0]):
        shape = numbers[taken]
        count = cache.shapes[shape, COUNT]
        its_places = places[first : first + count]
        if not other_numbers.shape[0]:
            if cache.shapes[shape, ROW] < 0:
                return taken
            found = take_one(ground, cache, shape, domains, closed, used, its_places)
        else:
            twin = other_numbers[taken]
            if cache.shapes[shape, ROW] < 0 or other_cache.shapes[twin, ROW] < 0:
                return taken
            if there[taken]:
                found = take_one(other_ground, other_cache, twin, domains, closed, used, its_places)
                if found:
                    limit(ground, cache, other_ground.free, then.free, its_places)
            else:
                found = take_one(ground, cache, shape, domains, closed, used, its_places)
                if found:
                    requests = requests_of(other_cache, twin)
                    commit(other_ground, other_cache, requests, its_places)
                    for number in range(count):
                        take(then, requests[number], its_places[requests[number, RANK]])
        if not found:
            return taken
        first += count
    return len(numbers)


Arrays = tuple[Ints, Ints, Floats, Floats, Ints, Ints, Flags, Ints, Floats, Floats, Ints, Floats, Ints]
"""A `Ground` and a `Cache`, as plain tuples: named ones take numba longer to unpack."""


def _entry_points(
    made_of: str,
) -> tuple[Callable[..., bool], Callable[..., int], Callable[..., bool], Callable[..., None]]:
    @entry_point
    def on_one_agent(shape: int, takes: bool, arrays: Arrays, closed: Flags, places: Ints) -> bool:
        """Return whether one agent holds the gang; if it does and `takes`, take it and write `places`, by rank."""
        _ = made_of
        ground, cache = ground_of(*arrays[:4]), cache_of(*arrays[4:])
        closed, places = borrowed(closed), borrowed(places)
        update_row(ground, cache, shape, places)
        agent = best_whole(cache, shape, closed)
        if agent == NOWHERE:
            return False
        if takes:
            take_whole(ground, cache, shape, agent, places)
        return True

    @entry_point
    def each_in_turn(
        numbers: Ints,
        arrays: Arrays,
        other_numbers: Ints,
        others: Arrays,
        then: Ints,
        there: Flags,
        closed: Flags,
        places: Ints,
        domains: Domains,
    ) -> int:
        """Return how many of the gangs were taken: `take_each`."""
        _ = made_of
        ground, cache = ground_of(*arrays[:4]), cache_of(*arrays[4:])
        other_ground, other_cache = ground_of(*others[:4]), cache_of(*others[4:])
        closed, places = borrowed(closed), borrowed(places)
        later = ground_of(then, arrays[1], arrays[2], arrays[3])
        return take_each(
            ground, cache, numbers, other_ground, other_cache, other_numbers, later, there, domains, closed, places
        )

    @entry_point
    def over_agents(
        shape: int,
        takes: bool,
        partly: bool,
        arrays: Arrays,
        closed: Flags,
        places: Ints,
        members: Ints,
        starts: Ints,
    ) -> bool:
        """Return whether agents of one domain together hold the gang; as `on_one_agent`.

        The gang's row must be up to date. With `partly` and one domain, `places` says what it holds of the gang.
        """
        _ = made_of
        ground, cache = ground_of(*arrays[:4]), cache_of(*arrays[4:])
        closed, places = borrowed(closed), borrowed(places)
        used = np.zeros(cache.held.shape[1], np.bool_)
        if not nearest(ground, cache, shape, partly, members, starts, closed, used, places):
            return False
        if takes:
            commit(ground, cache, requests_of(cache, shape), places)
        return True

    @entry_point
    def take_places(shape: int, arrays: Arrays, places: Ints) -> None:
        """Take places that were found in another way."""
        _ = made_of
        ground, cache = ground_of(*arrays[:4]), cache_of(*arrays[4:])
        places = borrowed(places)
        commit(ground, cache, requests_of(cache, shape), places)

    return on_one_agent, each_in_turn, over_agents, take_places


on_one_agent, each_in_turn, over_agents, take_places = _entry_points(revision())
