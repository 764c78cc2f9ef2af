"""What a pass over one resource group may take over from the one before."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from muster.core.agents.agent import Agent
from muster.core.model.policy import PlacementPolicy
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.memory.difference import Changes, are_the_same, difference
from muster.core.scheduling.memory.placed_sessions import PlacedSessions
from muster.core.scheduling.memory.plain_sessions import PlainSessions
from muster.core.scheduling.memory.requests import Requests
from muster.core.scheduling.placement import Gang, Mix, PlacementState
from muster.core.scheduling.reasons import obstacle
from muster.core.values.slots import Slots, total

if TYPE_CHECKING:
    from muster.core.model.wait import Wait

_kernels = attrgetter("kernels")


@dataclass(slots=True)
class _Known:
    agents: Sequence[Agent]
    closed: Mapping[str, str]
    policy: PlacementPolicy
    mix: Mix
    state: PlacementState


@dataclass(frozen=True, slots=True)
class GroupAgents:
    """The agents of a group: what they have in all, and why which of them get no new sessions."""

    agents: Sequence[Agent]
    slow: frozenset[str]
    capacity: Slots
    closed: Mapping[str, str]


class GroupMemory:
    """A cache for one resource group. It changes only what decisions cost, not the decisions."""

    def __init__(self, group: str) -> None:
        self.placed = PlacedSessions()
        self._group = group
        self._pending: Sequence[Session] = ()
        self._everywhere: Changes[Session] = Changes()
        self._plain = PlainSessions()
        self._requests = Requests()
        self._moved_for: Counter[str] = Counter()
        self._members: tuple[Sequence[Agent], dict[str, Agent]] | None = None
        self._agents: GroupAgents | None = None
        self._known: _Known | None = None
        self.impossible: dict[Gang, Wait | None] = {}
        """What is known of gangs that could never start, or could, on the agents of the last `state` call."""

    def change_placed(self, gone: Sequence[Session], new: Sequence[Session]) -> None:
        """Learn which of the placed sessions are gone and which are new, of all groups.

        One of another group may hold an agent that was of that group when it was placed.
        """
        self._everywhere.add(gone, new)
        gone, new = self._of_group(gone), self._of_group(new)
        self.placed.change(gone, new)
        self._change(gone, new)

    def change_pending(self, pending: Sequence[Session]) -> None:
        """Learn which sessions of the group wait now."""
        gone, new = difference(self._pending, pending)
        self._pending = pending
        self._plain.change(gone, new)
        self._change(gone, new)

    @property
    def moved_for(self) -> frozenset[str]:
        """Return the ids of the sessions for which some of the group were moved."""
        return frozenset(self._moved_for)

    @property
    def plain(self) -> Mapping[int, Gang | None]:
        """Return by identity of the pending sessions what those request that only capacity keeps waiting."""
        return self._plain.gangs()

    def requests(self, plain: Mapping[int, Gang | None]) -> Mapping[Gang, int]:
        """Return how often the sessions request each gang; `plain` are gangs that are known, as `plain` returns."""
        return self._requests.of(self.placed.all, self._pending, plain)

    def members(self, snapshot: Snapshot) -> Mapping[str, Agent]:
        """Return the group's agents by their ids, and in the order of these."""
        known = self._members
        if known is None or not are_the_same(known[0], snapshot.agents):
            members = sorted((a for a in snapshot.agents if a.resource_group == self._group), key=attrgetter("id"))
            known = self._members = snapshot.agents, {agent.id: agent for agent in members}
        return known[1]

    def agents(self, agents: Sequence[Agent], snapshot: Snapshot) -> GroupAgents:
        """Return what the group's agents have, and which are closed."""
        known = self._agents
        if known is None or known.slow != snapshot.slow or not decide_alike(known.agents, agents):
            closed = {agent.id: cause for agent in agents if (cause := obstacle(agent, snapshot))}
            known = GroupAgents(agents, snapshot.slow, total(agent.capacity for agent in agents), closed)
        # Those of now, so that the next pass finds most of them by their identity.
        known = self._agents = replace(known, agents=agents)
        return known

    def state(
        self,
        agents: Sequence[Agent],
        placed: Sequence[Session],
        policy: PlacementPolicy,
        mix: Mix,
        closed: Mapping[str, str],
    ) -> PlacementState:
        """Return what `PlacementState.of` would make; the caller may change it.

        `placed` are the sessions of all groups, which all changes have led to.
        """
        known = self._known
        if known is None or not decide_alike(known.agents, agents):
            state = PlacementState.of(agents, {}, policy, mix, closed)
            self.impossible = {}
            self._everywhere.taken()
            gone: list[Session] = []
            new = list(placed)
        else:
            is_the_same = (known.closed, known.policy, known.mix) == (closed, policy, mix)
            state = known.state if is_the_same else known.state.by(policy, mix, closed)
            gone, new = self._everywhere.taken()
        # Most changes of a session leave its kernels as they are.
        left, came = difference(list(map(_kernels, gone)), list(map(_kernels, new)))
        if left:
            state.release(chain.from_iterable(left))
        if came:
            state.take(chain.from_iterable(came))
        self._known = _Known(agents, closed, policy, mix, state)
        return state.copy()

    def _change(self, gone: Sequence[Session], new: Sequence[Session]) -> None:
        self._requests.change(gone, new)
        self._moved_for.update([session.moved_for for session in new if session.moved_for is not None])
        left = [session.moved_for for session in gone if session.moved_for is not None]
        if left:
            self._moved_for -= Counter(left)

    def _of_group(self, sessions: Sequence[Session]) -> list[Session]:
        return [session for session in sessions if session.spec.resource_group == self._group]


def decide_alike(some: Sequence[Agent], others: Sequence[Agent]) -> bool:
    """Return whether no decision can tell the agents apart."""
    if some is others:
        return True
    return len(some) == len(others) and all(
        one is other or one.decides_like(other) for one, other in zip(some, others, strict=True)
    )
