"""`/resources`: the agents' capacity, their GPU shares, and usage over time; drain and resume."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Response

from muster.core.agents.agent import AgentState
from muster.core.values.errors import NotFoundError, SettingsError
from muster.core.values.slots import Slots, total
from muster.service.agents.resources import AgentResources
from muster.web.drawing.gpu_picture import GpuCard, gpu_cards
from muster.web.pages.usage.plots import SPAN_NAMES, UsePlots, use_plots
from muster.web.viewer import CurrentViewer, Viewer

router = APIRouter(include_in_schema=False)
_FIRST_AGENTS = 20
_PAGE = 100
AgentId = Annotated[str, Path(max_length=255)]
Span = Annotated[str, Query(max_length=20)]


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent. `sessions` are the visible ones by id and name, with the number of their kernels on the agent."""

    resources: AgentResources
    sessions: Sequence[tuple[str, str, int]]
    gpus: Sequence[GpuCard]


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A resource group with a page of its agents; `states` counts all of them."""

    name: str
    rows: Sequence[AgentRow]
    agents: int
    states: str
    capacity: Slots
    used: Slots
    plots: UsePlots


@router.get("/resources")
def resources_page(
    viewer: CurrentViewer,
    span: Span = "hour",
    group: Annotated[str | None, Query(max_length=255)] = None,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    """Show all groups with the first agents of each, or one group with its agents page by page."""
    uses = viewer.backend.resources.use_by_group(span)
    if group is not None and group not in uses:
        raise NotFoundError(f"group: there is no agent in {group!r}; choose one of those at /resources")
    by_group: dict[str, list[AgentResources]] = {name: [] for name in uses if group in {None, name}}
    for resources in viewer.backend.resources.agents():
        if resources.agent.resource_group in by_group:
            by_group[resources.agent.resource_group].append(resources)
    begin, size = (0, _FIRST_AGENTS) if group is None else ((page - 1) * _PAGE, _PAGE)
    return viewer.page(
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
def agent_page(viewer: CurrentViewer, agent: AgentId, span: Span = "hour") -> Response:
    resources = viewer.backend.resources.agent(agent)
    return viewer.page(
        "resource.html",
        row=_row(resources),
        plots=use_plots(viewer.backend.resources.use(span, agent=agent), f"agent {agent}"),
        images=_catalog_images(viewer, agent),
        span=span,
        spans=SPAN_NAMES,
    )


@router.post("/resources/{agent}/drain")
def drain(viewer: CurrentViewer, agent: AgentId, reason: Annotated[str, Form(max_length=1000)] = "") -> Response:
    changed = viewer.backend.drain(agent, reason.strip())
    return viewer.announce(
        f"{agent} is drained: no session starts there" if changed else f"{agent} was drained already"
    )


@router.post("/resources/{agent}/resume")
def resume(viewer: CurrentViewer, agent: AgentId) -> Response:
    changed = viewer.backend.resume(agent)
    return viewer.announce(f"{agent} takes sessions again" if changed else f"{agent} was neither drained nor suspect")


def _catalog_images(viewer: Viewer, agent: str) -> Sequence[str] | None:
    """Return the catalog's images that the agent has; None if the site's catalog cannot be read."""
    try:
        images = viewer.backend.images().items
    except SettingsError:
        return None
    return [image.reference for image in images if agent in image.agents]


def _group(name: str, agents: Sequence[AgentResources], plots: UsePlots, begin: int, size: int) -> GroupPart:
    """Return a page of the group's agents; those that take no sessions come first."""
    ordered = sorted(agents, key=lambda one: (one.agent.takes_sessions, one.agent.id))
    return GroupPart(
        name=name,
        rows=[_row(one) for one in ordered[begin : begin + size]],
        agents=len(agents),
        states=_states(agents),
        capacity=total(one.agent.capacity for one in agents),
        used=total(one.used for one in agents),
        plots=plots,
    )


def _states(agents: Iterable[AgentResources]) -> str:
    """Return a line such as `3 ALIVE, 1 LOST; 1 drained`."""
    agents = list(agents)
    counts = {state: sum(one.agent.state is state for one in agents) for state in AgentState}
    text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    drained = sum(bool(one.drain) for one in agents)
    suspect = sum(one.agent.is_suspect for one in agents)
    out = [f"{count} {word}" for count, word in ((drained, "drained"), (suspect, "suspect")) if count]
    return "; ".join([text, ", ".join(out)]) if out else text


def _row(resources: AgentResources) -> AgentRow:
    sessions: dict[str, tuple[str, int]] = {}
    for session, _ in resources.kernels:
        sessions[session.id] = (session.name, sessions.get(session.id, ("", 0))[1] + 1)
    counted = [(key, name, count) for key, (name, count) in sessions.items()]
    return AgentRow(resources, counted, gpu_cards(resources.gpus))
