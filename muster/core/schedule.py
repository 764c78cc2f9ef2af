"""`schedule(snapshot, policy) -> Plan`: the whole decision, as a pure function."""

from collections.abc import Sequence

from muster.core.agent import AgentState
from muster.core.duration import format_duration
from muster.core.placement import Policy, place_gang
from muster.core.plan import NearestMiss, Placement, Plan, Wait, WaitCode
from muster.core.room import Room
from muster.core.session import Session
from muster.core.slots import SLOT_NAMES, format_slot
from muster.core.snapshot import Snapshot


def schedule(snapshot: Snapshot, policy: Policy) -> Plan:
    """Places what fits, in queue order; says of every other pending session why it waits.

    In a resource group a session that is merely busy holds back those behind it (first in, first out: no session
    starves); one that can never fit, or that waits for a retry, holds back nobody.
    """
    rooms = {room.agent.id: room for room in snapshot.rooms}
    placements: list[Placement] = []
    waits: dict[str, Wait] = {}
    heads: dict[str, Session] = {}
    positions: dict[str, int] = {}
    for session in queue_order(snapshot.pending):
        group = session.spec.resource_group
        position = positions[group] = positions.get(group, 0) + 1
        members = [room for room in rooms.values() if room.agent.resource_group == group]
        alive = [room for room in members if room.agent.state is AgentState.ALIVE]
        never = _never(session, members, policy, position)
        if never:
            waits[session.id] = never
        elif session.retry_at is not None and session.retry_at > snapshot.now:
            delay = format_duration(session.retry_at - snapshot.now + 1)
            message = f"the last launch failed ({session.reason}); it is tried again in {delay}"
            waits[session.id] = Wait(WaitCode.RETRY, message, position)
        elif group in heads:
            message = f"waits behind {heads[group].name}, which is ahead of it in the queue"
            waits[session.id] = Wait(WaitCode.BEHIND, message, position, len(alive))
        elif placed := place_gang(session.kernels, alive, spread=_may_spread(session, policy)):
            allocations, changed = placed
            rooms.update(changed)
            positions[group] -= 1
            placements.append(Placement(session.id, "single-node" if len(changed) == 1 else "multi-node", allocations))
        else:
            heads[group] = session
            waits[session.id] = _busy(session, members, alive, position, policy)
    return Plan(tuple(placements), waits)


def queue_order(pending: Sequence[Session]) -> list[Session]:
    """Higher priority first, then first in, first out."""
    return sorted(pending, key=lambda session: (-session.spec.priority, session.submitted_at, session.id))


def _may_spread(session: Session, policy: Policy) -> bool:
    return policy.spans_agents and session.spec.cluster_mode == "multi-node"


def _never(session: Session, members: Sequence[Room], policy: Policy, position: int) -> Wait | None:
    group = session.spec.resource_group
    if not members:
        message = f"resource group {group} has no agents; see `muster agents`"
        return Wait(WaitCode.NO_AGENTS, message, position)
    empty = [Room.of(room.agent) for room in members]
    spread = _may_spread(session, policy)
    if place_gang(session.kernels, empty, spread=spread):
        return None
    nearest, exhausted = _misses(session, empty, spread=spread)
    what = "the agents together" if spread else "any single agent"
    lacks = _lacks(nearest)
    message = f"never fits: it asks for more than {what} of group {group} could ever give ({lacks})"
    return Wait(WaitCode.NEVER_FITS, message, position, len(members), exhausted=exhausted, nearest=nearest)


def _busy(session: Session, members: Sequence[Room], alive: Sequence[Room], position: int, policy: Policy) -> Wait:
    filtered = {"lost": len(members) - len(alive)} if len(members) > len(alive) else {}
    if not alive:
        message = f"no agent of group {session.spec.resource_group} can be reached; see `muster agents`"
        return Wait(WaitCode.BUSY, message, position, 0, filtered)
    nearest, exhausted = _misses(session, alive, spread=_may_spread(session, policy))
    message = f"busy: {_lacks(nearest)}; it starts when room appears"
    return Wait(WaitCode.BUSY, message, position, len(alive), filtered, exhausted, nearest)


def _misses(session: Session, rooms: Sequence[Room], *, spread: bool) -> tuple[NearestMiss, dict[str, int]]:
    """The nearest miss and, for each slot, how many agents have too little of it.

    Asked for is the gang as a whole, or one kernel where it may spread.
    """
    wanted = session.main.slots if spread else session.slots
    misses = [NearestMiss(room.agent.id, wanted.beyond(room.free)) for room in rooms]
    exhausted = {name: count for name in SLOT_NAMES if (count := sum(name in miss.missing for miss in misses))}
    capacity = {room.agent.id: room.agent.capacity for room in rooms}

    def distance(miss: NearestMiss) -> tuple[float, str]:
        shares = [amount / max(1, getattr(capacity[miss.agent_id], name)) for name, amount in miss.missing.items()]
        return sum(shares), miss.agent_id

    return min(misses, key=distance), exhausted


def _lacks(miss: NearestMiss) -> str:
    if not miss.missing:
        return f"its kernels do not fit side by side on agent {miss.agent_id}, although the total would"
    parts = [f"{format_slot(name, amount)} {name}" for name, amount in miss.missing.items()]
    return f"needs {' and '.join(parts)} more on agent {miss.agent_id}"
