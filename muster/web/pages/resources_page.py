"""`/resources`: the agents' capacity, their GPU shares, and usage over time; drain and resume."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Response

from muster.core.values.errors import NotFoundError, SettingsError
from muster.service.agents.views import AgentResourcesView, GroupResourcesView
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

    agent: AgentResourcesView
    sessions: Sequence[tuple[str, str, int]]
    gpus: Sequence[GpuCard]


@dataclass(frozen=True, slots=True)
class GroupPart:
    """A resource group with a page of its agents; `states` counts all of them."""

    group: GroupResourcesView
    rows: Sequence[AgentRow]
    states: str
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
    shown = [name for name in uses if group in {None, name}]
    begin, size = (0, _FIRST_AGENTS) if group is None else ((page - 1) * _PAGE, _PAGE)
    found = viewer.backend.resources.groups(shown, begin, size)
    pages = 1 if group is None else max(1, -(-found[0].agent_count // _PAGE))
    if group is not None and page > pages:
        # The group has fewer agents than when somebody came to the page.
        page, found = pages, viewer.backend.resources.groups(shown, (pages - 1) * _PAGE, _PAGE)
    return viewer.page(
        "resources.html",
        groups=[_group(one, use_plots(uses[one.name], f"group {one.name}")) for one in found],
        group=group,
        page=page,
        pages=pages,
        span=span,
        spans=SPAN_NAMES,
    )


@router.get("/resources/{agent}")
def agent_page(viewer: CurrentViewer, agent: AgentId, span: Span = "hour") -> Response:
    return viewer.page(
        "resource.html",
        row=_row(viewer.backend.resources.agent(agent)),
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
        images = viewer.backend.images.all().items
    except SettingsError:
        return None
    return [image.reference for image in images if agent in image.agents]


def _group(group: GroupResourcesView, plots: UsePlots) -> GroupPart:
    return GroupPart(group, [_row(agent) for agent in group.agents], _states(group), plots)


def _states(group: GroupResourcesView) -> str:
    """Return a line such as `3 ALIVE, 1 LOST; 1 drained`."""
    text = ", ".join(f"{count} {state}" for state, count in group.states.items())
    out = [f"{count} {word}" for count, word in ((group.drained, "drained"), (group.suspect, "suspect")) if count]
    return "; ".join([text, ", ".join(out)]) if out else text


def _row(agent: AgentResourcesView) -> AgentRow:
    names = {kernel.session_id: kernel.session for kernel in agent.visible_kernels}
    counts = Counter(kernel.session_id for kernel in agent.visible_kernels)
    sessions = [(key, name, counts[key]) for key, name in names.items()]
    return AgentRow(agent, sessions, gpu_cards(agent.devices))
