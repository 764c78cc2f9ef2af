"""`/resources`: what agents have, who has which part of which GPU, and use over time; drain and resume."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Response

from muster.core.model.agent import AgentState
from muster.core.values.errors import NotFoundError
from muster.core.values.slots import Slots, total
from muster.service.agents.resources import AgentResources
from muster.web.drawing.gpu_picture import GpuCard, gpu_cards
from muster.web.pages.usage.plots import SPAN_NAMES, UsePlots, use_plots
from muster.web.viewer import Visiting

router = APIRouter(include_in_schema=False)
_MOST_OF_A_GROUP = 20
_PAGE = 100
AgentId = Annotated[str, Path(max_length=255)]
Span = Annotated[str, Query(max_length=20)]


@dataclass(frozen=True, slots=True)
class AgentRow:
    """`sessions` are those that the visitor sees, by id and name, with how many of their kernels are on the agent."""

    seen: AgentResources
    sessions: Sequence[tuple[str, str, int]]
    gpus: Sequence[GpuCard]


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A resource group with the first of its agents; `states` counts all of them."""

    name: str
    rows: Sequence[AgentRow]
    agents: int
    states: str
    capacity: Slots
    used: Slots
    plots: UsePlots


@router.get("/resources")
def resources(
    visitor: Visiting,
    span: Span = "hour",
    group: Annotated[str | None, Query(max_length=255)] = None,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """All groups with the first agents of each, or one group with its agents page by page."""
    uses = visitor.backend.resources.use_by_group(span)
    if group is not None and group not in uses:
        raise NotFoundError(f"group: there is no agent in {group!r}; choose one of those at /resources")
    by_group: dict[str, list[AgentResources]] = {name: [] for name in uses if group in {None, name}}
    for seen in visitor.backend.resources.agents():
        if seen.agent.resource_group in by_group:
            by_group[seen.agent.resource_group].append(seen)
    begin, size = (0, _MOST_OF_A_GROUP) if group is None else ((page - 1) * _PAGE, _PAGE)
    return visitor.page(
        "resources.html",
        groups=[
            _group(name, agents, use_plots(uses[name], f"group {name}"), begin, size)
            for name, agents in by_group.items()
        ],
        group=group,
        page=page,
        pages=1 if group is None else max(1, -(-len(by_group[group]) // _PAGE)),
        span=span,
        spans=SPAN_NAMES,
    )


@router.get("/resources/{agent}")
def resource(visitor: Visiting, agent: AgentId, span: Span = "hour") -> Response:
    seen = visitor.backend.resources.agent(agent)
    known = visitor.backend.known_images().images
    return visitor.page(
        "resource.html",
        row=_row(seen),
        plots=use_plots(visitor.backend.resources.use(span, agent=agent), f"agent {agent}"),
        images=[image.version.reference for image in known if agent in image.held_by],
        span=span,
        spans=SPAN_NAMES,
    )


@router.post("/resources/{agent}/drain")
def drain(visitor: Visiting, agent: AgentId, reason: Annotated[str, Form(max_length=1000)] = "") -> Response:
    changed = visitor.backend.drain(agent, reason.strip())
    return visitor.announce(
        f"{agent} is drained: no session starts there" if changed else f"{agent} was drained already"
    )


@router.post("/resources/{agent}/resume")
def resume(visitor: Visiting, agent: AgentId) -> Response:
    changed = visitor.backend.resume(agent)
    return visitor.announce(f"{agent} takes sessions again" if changed else f"{agent} was not drained")


def _group(name: str, agents: Sequence[AgentResources], plots: UsePlots, begin: int, size: int) -> GroupPart:
    """Those that are in trouble come first."""
    ordered = sorted(agents, key=lambda seen: (seen.agent.takes_sessions, seen.agent.id))
    return GroupPart(
        name=name,
        rows=[_row(seen) for seen in ordered[begin : begin + size]],
        agents=len(agents),
        states=_states(agents),
        capacity=total(seen.agent.capacity for seen in agents),
        used=total(seen.used for seen in agents),
        plots=plots,
    )


def _states(agents: Iterable[AgentResources]) -> str:
    """Such as `3 ALIVE, 1 LOST; 1 drained`."""
    agents = list(agents)
    counts = {state: sum(seen.agent.state is state for seen in agents) for state in AgentState}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    drained = sum(bool(seen.drain) for seen in agents)
    return f"{told}; {drained} drained" if drained else told


def _row(seen: AgentResources) -> AgentRow:
    sessions: dict[str, tuple[str, int]] = {}
    for session, _ in seen.kernels:
        sessions[session.id] = (session.name, sessions.get(session.id, ("", 0))[1] + 1)
    return AgentRow(seen, [(key, name, count) for key, (name, count) in sessions.items()], gpu_cards(seen.gpus))
