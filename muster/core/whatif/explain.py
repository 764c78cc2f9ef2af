"""A `Wait` in plain words: what `muster why` prints, line by line."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from muster.core.model.session import GpuShare
from muster.core.model.wait import NearestMiss, WaitCode, spell_causes
from muster.core.scheduling.limits import spell_counted
from muster.core.values.slots import SLOT_NAMES, SlotAmounts, spell_name, spell_slot, spell_slots
from muster.core.values.units import format_duration

HOPELESS = frozenset({WaitCode.NEVER_FITS, WaitCode.NO_AGENTS, WaitCode.NEVER_RUNS})
"""What does not end by waiting."""

NOT_WORKED = "unknown, since nobody works the queue"
_MOST_NAMES = 5


class WaitingSession(Protocol):
    """A protocol of sessions that wait, which the API's views follow."""

    @property
    def name(self) -> str: ...

    @property
    def resource_group(self) -> str: ...

    @property
    def priority(self) -> int: ...

    @property
    def cluster_size(self) -> int: ...

    @property
    def size(self) -> str: ...

    @property
    def slots(self) -> SlotAmounts: ...


class ExplainedLimit(Protocol):
    """A `LimitHit`, or its view."""

    @property
    def scope(self) -> str: ...

    @property
    def counts(self) -> str: ...

    @property
    def counted(self) -> str: ...

    @property
    def value(self) -> int: ...

    @property
    def used(self) -> int: ...

    @property
    def requested(self) -> int: ...


class ExplainedWait(Protocol):
    """A `Wait`, or its view."""

    @property
    def code(self) -> WaitCode: ...

    @property
    def agents_considered(self) -> int: ...

    @property
    def filtered(self) -> Mapping[str, int]: ...

    @property
    def exhausted(self) -> Mapping[str, int]: ...

    @property
    def nearest(self) -> NearestMiss | None: ...

    @property
    def limit(self) -> ExplainedLimit | None: ...

    @property
    def waits_for(self) -> tuple[str, ...]: ...

    @property
    def until(self) -> float | None: ...

    @property
    def estimated_start(self) -> float | None: ...

    @property
    def passes(self) -> int: ...

    @property
    def endless(self) -> int: ...


class PlacedKernel(Protocol):
    """A kernel with the agent and the GPU shares that it would get."""

    @property
    def name(self) -> str: ...

    @property
    def agent(self) -> str: ...

    @property
    def gpus(self) -> Sequence[GpuShare]: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts for a reader beside the wait: the time, how they write times, and other sessions' names by id.

    `is_worked`: something works the queue. Otherwise nothing starts, whatever the queue says. `left_out` are lines on
    the agents that the wait counts as left out.
    """

    now: float
    clock_text: Callable[[float], str]
    names: Mapping[str, str] = field(default_factory=dict)
    is_worked: bool = True
    left_out: Sequence[str] = ()


def explain(
    session: WaitingSession,
    wait: ExplainedWait,
    position: int,
    around: Surroundings,
    *,
    advice: bool = True,
    suggested: bool = False,
) -> list[str]:
    """Return a line for each thing that is known beside the wait's message, then what can be done.

    Where it is `suggested` below what would let the session start, no advice says how to ask for that.
    """
    lines = [
        *_place_in_the_queue(session, position),
        *_agents(wait),
        *around.left_out,
        *_limit(wait),
        *_other_sessions(wait, around),
        *_times(wait, around),
    ]
    advised = _ADVICE if suggested else {**_ADVICE, **_WHERE_TO_ASK}
    if advice and wait.code in advised:
        lines.append(advised[wait.code].format(name=session.name))
    return lines


def moment_text(at: float, around: Surroundings) -> str:
    """Return the moment such as `2026-11-21 14:20 (in 20m)`."""
    away = at - around.now
    return f"{around.clock_text(at)} ({'in ' + format_duration(away) if away >= 1 else 'now'})"


def code_text(wait: ExplainedWait | None) -> str:
    """Return the wait in a word, for a column; without a wait it starts in the next pass."""
    return wait.code if wait else "starting"


def start_text(wait: ExplainedWait | None, around: Surroundings) -> str:
    """Return when it starts, as far as that is known, for a column."""
    if not around.is_worked and (wait is None or wait.code not in HOPELESS):
        return NOT_WORKED
    at = wait and (wait.estimated_start or wait.until)
    return "-" if not at else moment_text(at, around)


def _place_in_the_queue(session: WaitingSession, position: int) -> list[str]:
    count = session.cluster_size
    lines = [f"place in the queue of group {session.resource_group}: {position}"] if position else []
    containers = "1 container" if count == 1 else f"{count} containers"
    if session.size != str(count):
        containers += f" at least (of {session.size})"
    return [*lines, f"it asks for {spell_slots(session.slots)} in {containers}, priority {session.priority}"]


def _agents(wait: ExplainedWait) -> list[str]:
    lines = []
    if wait.exhausted:
        agents = _agents_text(wait.agents_considered)
        counts = ", ".join(f"{spell_name(name)} on {count} of {agents}" for name, count in wait.exhausted.items())
        when = "even when empty" if wait.code is WaitCode.NEVER_FITS else "is free now"
        lines.append(f"too little {when}: {counts}")
    if wait.nearest and wait.nearest.missing:
        missing = " and ".join(spell_slot(name, wait.nearest.missing[name]) for name in SLOT_NAMES
                               if name in wait.nearest.missing)  # fmt: skip
        lines.append(f"closest: agent {wait.nearest.agent_id}, which lacks {missing}")
    if wait.filtered:
        lines.append(f"agents left out: {spell_causes(wait.filtered)}")
    return lines


def _agents_text(count: int) -> str:
    return "1 agent" if count == 1 else f"{count} agents"


def _limit(wait: ExplainedWait) -> list[str]:
    hit = wait.limit
    if hit is None:
        return []
    value, used, requested = (spell_counted(hit.counted, amount) for amount in (hit.value, hit.used, hit.requested))
    return [f"limit of {hit.scope}: {value} at a time; {used} now, and it asks for {requested}"]


def _other_sessions(wait: ExplainedWait, around: Surroundings) -> list[str]:
    if not wait.waits_for:
        return []
    names = [around.names.get(session_id, session_id) for session_id in wait.waits_for[:_MOST_NAMES]]
    rest = len(wait.waits_for) - len(names)
    return [f"waits for: {', '.join(names)}{f' and {rest} more' if rest else ''}"]


def _times(wait: ExplainedWait, around: Surroundings) -> list[str]:
    lines = []
    if wait.passes:
        times = "once" if wait.passes == 1 else f"{wait.passes} times"
        lines.append(f"it was the first in the queue that did not fit {times}")
    if wait.endless:
        run = "1 session runs" if wait.endless == 1 else f"{wait.endless} sessions run"
        lines.append(f"nobody knows when capacity is free: {run} without a time limit")
    if wait.until is not None:
        lines.append(f"not before: {moment_text(wait.until, around)}")
    if wait.estimated_start is not None:
        start = moment_text(wait.estimated_start, around) if around.is_worked else NOT_WORKED
        lines.append(f"estimated start: {start}")
    return lines


_ADVICE: Mapping[WaitCode, str] = {
    WaitCode.NO_AGENTS: "waiting does not help; submit it to another group; to list them: muster agents",
    WaitCode.NEVER_RUNS: "waiting does not help; end it: muster cancel {name}",
    WaitCode.HELD: "to release it: muster release {name}",
}
_WHERE_TO_ASK: Mapping[WaitCode, str] = {
    WaitCode.NEVER_FITS: "waiting does not help; for what would, see: muster why {name} --what-if",
    WaitCode.BUSY: "to see what would let it start: muster why {name} --what-if",
    WaitCode.BEHIND: "to see what would let it start: muster why {name} --what-if",
    WaitCode.LIMIT: "to see what would let it start: muster why {name} --what-if",
    WaitCode.WINDOW: "to see what would let it start: muster why {name} --what-if",
}


def placed_where(kernels: Iterable[PlacedKernel], gpu_indexes: Mapping[str, int]) -> Sequence[str]:
    """Return one line for each agent: its kernels, and which of its GPUs they get."""
    by_agent: dict[str, list[str]] = {}
    for kernel in kernels:
        shares = [
            f"GPU {gpu_indexes.get(share.uuid, share.uuid)}"
            + ("" if share.whole else f" ({share.amount / 1000:g} fGPU)")
            for share in kernel.gpus
        ]
        by_agent.setdefault(kernel.agent, []).append(kernel.name + (f" on {', '.join(shares)}" if shares else ""))
    return [f"agent {agent_id}: {'; '.join(kernels)}" for agent_id, kernels in by_agent.items()]
