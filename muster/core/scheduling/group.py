"""A resource group as a pass finds it: its agents, what is free on them, and why a gang does not fit."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.kinds import Kind
from muster.core.scheduling.memory.group_memory import GroupAgents, GroupMemory
from muster.core.scheduling.memory.placed_sessions import PlacedSessions
from muster.core.scheduling.placement import Gang, PlacementState, mix_of, on_one_agent
from muster.core.scheduling.reasons import busy, never_fits, sick_gpus
from muster.core.values.slots import Slots

if TYPE_CHECKING:
    from muster.core.agents.agent import Agent
    from muster.core.model.policy import GroupPolicy


class Group:
    """A group in one pass. What the pass before has worked out, and still holds, comes from its memory."""

    def __init__(self, name: str, snapshot: Snapshot, memory: GroupMemory, *, is_bounded: bool) -> None:
        """`is_bounded`: more than capacity may keep any of its sessions from starting."""
        self.name = name
        self.policy: GroupPolicy = snapshot.policy.of(name)
        self.agents: Mapping[str, Agent] = memory.members(snapshot)
        self._snapshot = snapshot
        self._memory = memory
        self._is_bounded = is_bounded

    @property
    def placed(self) -> PlacedSessions:
        """Return the placed sessions."""
        return self._memory.placed

    @property
    def moved_for(self) -> frozenset[str]:
        """Return the ids of the sessions for which others were moved that are not placed anew yet."""
        return self._memory.moved_for

    @property
    def capacity(self) -> Slots:
        """Return what the agents have in all."""
        return self._known_agents.capacity

    @cached_property
    def plain(self) -> Mapping[int, Gang | None]:
        """Return by identity of the pending sessions what those request that only capacity keeps waiting."""
        return {} if self._is_bounded else self._memory.plain

    @cached_property
    def state(self) -> PlacementState:
        """Return what is free; the pass places in it."""
        known, here = self._known_agents, self._snapshot.placed
        mix = mix_of(self._memory.requests(self.plain))
        return self._memory.state(known.agents, here, self.policy.placement, mix, known.closed)

    def impossible(self, request: Gang) -> Wait | None:
        """Return the wait of a session whose request the agents can never hold."""
        known = self._memory.impossible
        if request not in known:
            empty = self._empty_state
            known[request] = self._never_fits(request) if not empty.fits(request) and empty.excludes(request) else None
        wait = known[request]
        if wait is not None and any(slots.fgpu for slots in request.slots) and self._has_unknown_units:
            return None
        return wait

    def could_hold(self, gang: Gang, closed: frozenset[str]) -> bool:
        """Return whether the agents that are not closed to it could hold a gang if they were empty, and all back."""
        return self._empty_state.fits(gang, closed)

    def busy(self, kind: Kind, first: Session) -> Wait:
        """Return what is missing now for sessions of a kind, `first` among them."""
        misses = self.state.misses(kind.gang, kind.closed)
        reason = busy(self.name, kind.gang, misses, self.agents, self._sick, no_overlay=kind.gang != kind.request)
        avoided = sorted(kind.closed.intersection(first.failed_on))
        if not avoided:
            return reason
        return replace(reason, message=f"{reason.message}; it keeps off {', '.join(avoided)}, where its launch failed")

    @cached_property
    def _known_agents(self) -> GroupAgents:
        return self._memory.agents(list(self.agents.values()), self._snapshot)

    @cached_property
    def _sick(self) -> str:
        return sick_gpus(self.agents)

    @cached_property
    def _has_unknown_units(self) -> bool:
        """Return whether shares of GPUs are what the group lacks by a mistake in the inventory alone."""
        agents = self.agents.values()
        return not any(agent.capacity.fgpu for agent in agents) and any(agent.has_unknown_units for agent in agents)

    @cached_property
    def _empty_state(self) -> PlacementState:
        """Return the agents with nothing on them.

        By no policy of the site and no mix: what can never start does not depend on them, and is kept between passes.
        """
        return self.state.emptied()

    def _never_fits(self, request: Gang) -> Wait:
        joined = any(agent.on_overlay for agent in self.agents.values())
        measured = request if joined else on_one_agent(request)
        return never_fits(self.name, request, self._empty_state.misses(measured, beyond=True), self.agents)
