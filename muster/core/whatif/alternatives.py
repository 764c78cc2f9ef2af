"""Ways to let a session start, each tried by replay: less of something, somewhere else, or others out of the way.

Each function yields the suggestions of its kind that hold; none of them knows how sessions are placed.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from muster.core.agents.agent import Agent
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.defragment import lost_s, may_move
from muster.core.scheduling.preemption import loss
from muster.core.values.slots import format_slot, spell_slot, total
from muster.core.values.units import exact_bytes, exact_duration, format_duration
from muster.core.whatif.hypothesis import AgentsBack, Change, Later, Moved, SpecChange, Suggestion
from muster.core.whatif.replay import Replays

_MOST_GROUPS = 3
_MOST_TRIED_ALONE = 6
_MOST_MOVED = 8
_TIME_LIMITS_S = tuple(
    60 * minutes
    for minutes in (1, 5, 10, 15, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720, 1440, 2880, 4320, 7200, 10080)
)
_LEAST_MEM = 32 << 20
_LEAST_CPU = 10
_T = TypeVar("_T")


def _with(name: str, value: object) -> SpecChange:
    return SpecChange({name: value})


def share(new: float, old: float) -> float:
    """Return the part of `old` that is given up."""
    return 1 - new / old if old else 0.0


def _last(replays: Replays, candidates: Sequence[_T], change: Callable[[_T], Change]) -> _T | None:
    """Return the last candidate with which the session starts; candidates give up ever less.

    The first is tried first, since mostly that fails already; then a bisection finds the last.
    """
    if not candidates or not replays.starts(change(candidates[0])):
        return None
    low, high = 0, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if replays.starts(change(candidates[middle])) else (low, middle)
    return candidates[low]


def another_mode(replays: Replays) -> Iterator[Suggestion]:
    if replays.session.spec.cluster_mode == "single-node" and len(replays.session.kernels) > 1:
        change = SpecChange({"cluster_mode": "multi-node"})
        if replays.starts(change):
            flags = ("--cluster-mode", "multi-node")
            yield Suggestion("containers over several agents instead of on one", (change,), 0.02, flags)


def another_group(replays: Replays) -> Iterator[Suggestion]:
    sizes: dict[str, int] = {}
    for agent in replays.snapshot.agents:
        if agent.takes_sessions:
            sizes[agent.resource_group] = sizes.get(agent.resource_group, 0) + 1
    own = replays.session.spec.resource_group
    sizes.pop(own, None)
    for group in sorted(sizes, key=lambda group: (-sizes[group], group))[:_MOST_GROUPS]:
        change = SpecChange({"resource_group": group})
        if replays.starts(change, in_full=True):
            text = f"resource group {group} instead of {own}"
            yield Suggestion(text, (change,), 0.04, ("--resource-group", group))


def fewer_conditions(replays: Replays) -> Iterator[Suggestion]:
    spec = replays.session.spec
    empty: dict[str, Any] = {"gpu_models": (), "labels": {}, "agents": (), "exclude_agents": ()}
    texts = {
        "gpu_models": "any GPU model",
        "labels": "agents of any labels",
        "agents": "any agent",
        "exclude_agents": "no excluded agents",
    }
    for name, nothing in empty.items():
        if getattr(spec, name):
            change = SpecChange({name: nothing})
            if replays.starts(change):
                yield Suggestion(texts[name], (change,), 0.15)
    if spec.topology == "one-rack":
        change = SpecChange({"topology": "prefer-rack"})
        if replays.starts(change):
            text = "one rack preferred instead of required"
            yield Suggestion(text, (change,), 0.1, ("--topology", "prefer-rack"))


def less_of_one_slot(replays: Replays) -> Iterator[Suggestion]:
    spec = replays.session.spec
    for name in ("gpu", "fgpu", "mem", "cpu"):
        old = getattr(spec, name)
        value = _last(replays, _smaller(replays.session, name), partial(_with, name))
        if value is not None:
            flag, text = f"--{name}", flag_value(name, value)
            yield Suggestion(
                f"{spell_slot(name, value)} for each container instead of {spell_slot(name, old)}",
                (SpecChange({name: value}),),
                share(value, old),
                (flag, text),
            )
    if spec.gpu == 1 and _inherit(replays.session, "gpu"):
        yield from _a_part_of_a_gpu(replays)


def _a_part_of_a_gpu(replays: Replays) -> Iterator[Suggestion]:
    """Yield the largest share of one GPU with which it starts, in quarters."""
    group = replays.session.spec.resource_group
    units = max((gpu.units for a in replays.snapshot.agents if a.resource_group == group for gpu in a.gpus), default=0)
    shares = [units * 1000 * quarters // 4 for quarters in (1, 2, 3)] if units else []
    part = _last(replays, shares, lambda amount: SpecChange({"gpu": 0, "fgpu": amount}))
    if part is not None:
        text = flag_value("fgpu", part)
        yield Suggestion(
            f"{text} fGPU for each container instead of 1 GPU",
            (SpecChange({"gpu": 0, "fgpu": part}),),
            share(part, units * 1000),
            ("--gpu", "0", "--fgpu", text),
        )


def less_of_all_slots(replays: Replays) -> Iterator[Suggestion]:
    """Yield the largest of some fractions of the whole request; for when less of one slot does not do."""
    spec = replays.session.spec
    names = [name for name in ("cpu", "mem", "fgpu", "gpu") if _smaller(replays.session, name)]

    def fields(part: float) -> dict[str, int]:
        return {name: _at_most(_smaller(replays.session, name), getattr(spec, name) * part) for name in names}

    part = _last(replays, (0.1, 0.25, 0.5, 0.75), lambda part: SpecChange(fields(part))) if names else None
    if part is not None:
        flags = tuple(word for name in names for word in (f"--{name}", flag_value(name, fields(part)[name])))
        amounts = ", ".join(spell_slot(name, amount) for name, amount in fields(part).items())
        text = f"{amounts} for each container: {part:.0%} of what it asks for"
        yield Suggestion(text, (SpecChange(fields(part)),), 1 - part, flags)


def _at_most(candidates: Sequence[int], amount: float) -> int:
    return max((candidate for candidate in candidates if candidate <= amount), default=candidates[0])


def _smaller(session: Session, name: str) -> list[int]:
    """Return round amounts below the requested one of each kernel, rising."""
    amount = getattr(session.spec, name)
    if not amount or not _inherit(session, name):
        return []
    match name:
        case "gpu":
            return list(range(1, amount))
        case "cpu":
            step = 1000 * math.ceil(amount / 64_000)
            amounts = [_LEAST_CPU, 100, 250, 500, *range(step, amount, step)]
            return [cpu for cpu in amounts if cpu < amount]
        case "mem":
            fixed = [shm for shm in (session.spec.shm, *(role.shm for role in session.spec.roles)) if shm is not None]
            least = max(_LEAST_MEM, *fixed, 0)
            step = 1 << max(20, amount.bit_length() - 6)
            return [mem for mem in dict.fromkeys((least, *range(step, amount, step))) if least <= mem < amount]
        case _:
            step = max(10, amount // 200 * 10)
            return list(range(step, amount, step))


def _inherit(session: Session, name: str) -> bool:
    """Return whether a kernel has its amount from the session's own field, and not from its role's."""
    own = {role.name for role in session.spec.roles if getattr(role, name) is not None}
    return any(kernel.role not in own for kernel in session.kernels)


def flag_value(name: str, amount: int) -> str:
    return exact_bytes(amount) if name == "mem" else format_slot(name, amount)


def fewer_kernels(replays: Replays) -> Iterator[Suggestion]:
    spec, size = replays.session.spec, len(replays.session.kernels)
    most = f"-{spec.sizes[1]}" if spec.is_elastic else ""
    least = 1 + sum(role.replicas for role in spec.roles if role.name != "main")
    fewer = _last(replays, range(least, size), lambda count: SpecChange({"cluster_size": _size(count, most)}))
    if fewer is not None:
        text = f"{'at least ' if most else ''}{fewer} {'container' if fewer == 1 else 'containers'} instead of {size}"
        change = SpecChange({"cluster_size": _size(fewer, most)})
        yield Suggestion(text, (change,), share(fewer, size), ("--cluster-size", f"{fewer}{most}"))


def _size(count: int, most: str) -> int | str:
    return f"{count}{most}" if most else count


def a_shorter_time_limit(replays: Replays) -> Iterator[Suggestion]:
    limit, least = replays.session.spec.time_limit, replays.session.spec.signal_s
    shorter = [seconds for seconds in _TIME_LIMITS_S if least <= seconds and (limit is None or seconds < limit)]
    found = _last(replays, shorter, partial(_with, "time_limit"))
    if found is not None:
        old = "none" if limit is None else exact_duration(limit)
        text = f"a time limit of {exact_duration(found)} instead of {old}"
        effort = 0.1 + 0.4 * share(found, limit or _TIME_LIMITS_S[-1])
        yield Suggestion(text, (SpecChange({"time_limit": found}),), effort, ("--time-limit", f"{found}s"))


def agents_back(replays: Replays) -> Iterator[Suggestion]:
    """Yield the one agent that would do, or as few of the largest as do together."""
    group = replays.session.spec.resource_group
    away = [a for a in replays.snapshot.agents if a.resource_group == group and _is_away(a, replays.snapshot)]
    away.sort(key=lambda a: (-a.capacity.gpu, -a.capacity.cpu, -a.capacity.mem, a.id))
    if not away or not replays.starts(AgentsBack(frozenset(agent.id for agent in away))):
        return
    alone = (
        [a for a in away[:_MOST_TRIED_ALONE] if replays.starts(AgentsBack(frozenset({a.id})))]
        if len(away) > 1
        else away
    )
    for agent in alone:
        verb = "is resumed" if _is_out_of_service(agent) else "answers again"
        yield Suggestion(f"agent {agent.id} {verb}", (AgentsBack(frozenset({agent.id})),), 1.0)
    if not alone:
        # More agents are tried from the end: the fewer are left out, the more is given.
        counts = range(len(away), 0, -1)
        count = _last(replays, counts, lambda count: AgentsBack(frozenset(a.id for a in away[:count])))
        if count is not None:
            names = ", ".join(agent.id for agent in away[:count])
            change = AgentsBack(frozenset(agent.id for agent in away[:count]))
            yield Suggestion(f"agents {names} take sessions again", (change,), 1.0 + 0.01 * count)


def _is_out_of_service(agent: Agent) -> bool:
    return agent.drain_reason is not None or agent.is_suspect


def _is_away(agent: Agent, snapshot: Snapshot) -> bool:
    return not agent.takes_sessions or agent.id in snapshot.slow


def a_higher_priority(replays: Replays) -> Iterator[Suggestion]:
    spec = replays.session.spec
    others = {s.spec.priority for s in replays.ahead.pending if s.spec.resource_group == spec.resource_group}
    # Ahead of those of priority P is P + 1; the highest is tried first.
    higher = sorted({min(100, p + 1) for p in others if p >= spec.priority} - {spec.priority}, reverse=True)
    found = _last(replays, higher, partial(_with, "priority"))
    if found is not None:
        text = f"priority {found} instead of {spec.priority}"
        effort = 1.2 + (found - spec.priority) / 1000
        yield Suggestion(text, (SpecChange({"priority": found}),), effort, ("--priority", str(found)))


def others_move(replays: Replays) -> Iterator[Suggestion]:
    """Yield the restartable sessions that would start elsewhere at once if it had their place.

    The one whose end loses least; where none does alone, as few of the cheapest as do together.
    """
    session, now = replays.session, replays.snapshot.now
    group = session.spec.resource_group
    capacity = total(agent.capacity for agent in replays.snapshot.agents if agent.resource_group == group)
    movable = sorted(
        (
            other
            for other in replays.snapshot.placed
            if other.spec.resource_group == group and may_move(other, session, now)
        ),
        key=lambda other: (loss(other, capacity, now), other.id),
    )[:_MOST_MOVED]
    alone = next((s for s in movable[:_MOST_TRIED_ALONE] if replays.starts_if_moved((s.id,))), None)
    moved = _needed(replays, movable) if alone is None else [alone]
    if moved:
        lost = format_duration(sum(lost_s(other, now) for other in moved))
        names = ", ".join(other.name for other in moved)
        verb = "starts" if len(moved) == 1 else "start"
        text = f"{names} {verb} anew elsewhere, which loses {lost} of work"
        change = Moved(tuple(other.id for other in moved))
        yield Suggestion(text, (change,), 1.7, nameless="other users' sessions start anew elsewhere")


def _needed(replays: Replays, movable: Sequence[Session]) -> list[Session]:
    """Return sessions that make room together, without those that need not move; none where all would not do."""

    def suffices(chosen: Sequence[Session]) -> bool:
        return replays.starts_if_moved(tuple(session.id for session in chosen))

    count = next((n for n in (2, 4, _MOST_MOVED) if suffices(movable[:n])), 0) if len(movable) > 1 else 0
    needed = list(movable[:count])
    # The dearest first: they are spared where they can be.
    for session in needed[::-1]:
        rest = [other for other in needed if other is not session]
        if rest and suffices(rest):
            needed = rest
    return needed


def others_end(replays: Replays) -> Iterator[Suggestion]:
    """Yield the end that lets it start if sessions end by their time limits, one by one; otherwise an end alone."""
    group = replays.session.spec.resource_group
    running = [s for s in replays.snapshot.placed if s.spec.resource_group == group]
    found = replays.start_by_time_limits()
    if found is not None:
        change, last = found
        at = change.at or replays.snapshot.now
        effort = 2 + (at - replays.snapshot.now) / 86400
        text = f"wait until {last.name} ends by its time limit"
        nameless = "wait until other users' sessions end by their time limits"
        yield Suggestion(text, (change,), effort, starts_at=at, nameless=nameless)
        return
    sizes = {s.id: (s.slots.gpu, s.slots.fgpu, s.slots.cpu) for s in running}
    for session in sorted(running, key=lambda s: (sizes[s.id], s.id))[-_MOST_TRIED_ALONE:]:
        if replays.starts(Later((session.id,))):
            text = f"session {session.name} of {session.owner} ends"
            yield Suggestion(text, (Later((session.id,)),), 1.8, nameless="another user's session ends")
