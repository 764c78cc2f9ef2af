"""`/sessions/{session}`: a session's state and why, its containers' usage, its story and its spec."""

from typing import Annotated, Any

import yaml
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from muster.core.model.session import Session, SessionState
from muster.core.spec.command_line import submit_command
from muster.service.questions.views import DetailsView
from muster.service.usage.watched import UsageCache
from muster.web.pages.sessions import view as session_view
from muster.web.pages.sessions.failure import failed_containers
from muster.web.pages.usage.plots import history_plots
from muster.web.viewer import CurrentViewer, Viewer

router = APIRouter(prefix="/sessions", include_in_schema=False)
Reference = Annotated[str, Path(max_length=255)]
_TEMPLATE = "session.html"
# Lines of one plot that can be told apart.
_PLOTTED = 6


@router.get("/{reference}")
def session(request: Request, viewer: CurrentViewer, reference: Reference) -> Response:
    """Show the session; a name, or the start of an id, is redirected to its id."""
    found = viewer.backend.find(reference)
    if reference != found.id:
        return RedirectResponse(f"/sessions/{found.id}", 303)
    details = viewer.backend.details(found.id)
    context = {
        **_more(details),
        **_containers(request, viewer, found),
        **_usage(viewer, found),
        **_as_submitted(viewer, found.id),
        **_head(viewer, details),
    }
    return viewer.page(_TEMPLATE, **context)


@router.get("/{reference}/use")
def use(request: Request, viewer: CurrentViewer, reference: Reference) -> Response:
    """Return its containers with their usage now."""
    found = viewer.backend.find(reference)
    return viewer.fragment(_TEMPLATE, "containers", **_containers(request, viewer, found))


@router.get("/{reference}/more")
def more(viewer: CurrentViewer, reference: Reference) -> Response:
    """Return the part of the page below its containers."""
    details = viewer.backend.details(reference)
    return viewer.fragment(_TEMPLATE, "more", session=details, **_more(details))


@router.get("/{reference}/usage")
def usage(viewer: CurrentViewer, reference: Reference, *, begin: Annotated[int, Query(ge=0)] = 0) -> Response:
    """Return plots of some of its containers over its life."""
    found = viewer.backend.find(reference)
    return viewer.fragment(_TEMPLATE, "usage", session=found, **_usage(viewer, found, begin))


@router.get("/{reference}/what-if")
def what_if(viewer: CurrentViewer, reference: Reference) -> Response:
    """Return the smallest changes that would let the session start now; the scheduler is replayed for them."""
    why = viewer.backend.why(reference, what_if=True)
    return viewer.fragment("session_dialogs.html", "what_if", session=why, suggestions=why.suggestions)


def _head(viewer: Viewer, details: DetailsView) -> dict[str, Any]:
    waits = None
    if details.state is SessionState.PENDING:
        waits = session_view.waiting(viewer.backend.why(details.id, what_if=False))
    return {
        "session": details,
        "waiting": waits,
        "failed": failed_containers(viewer.backend, details),
        "offered": session_view.offered(details) if viewer.may_change else frozenset(),
        "dependencies": session_view.dependencies(details),
    }


def _more(details: DetailsView) -> dict[str, Any]:
    return {
        "apps": session_view.app_rows(details.apps),
        "story": details.story,
        "usages": details.use,
        "commands": session_view.command_lines(details),
        "editor_url": session_view.editor_url(details),
    }


def _usage(viewer: Viewer, found: Session, begin: int = 0) -> dict[str, Any]:
    runs = viewer.backend.usage_history(found.id).items
    return {
        "history": history_plots(runs[begin : begin + _PLOTTED], found.name, sorted({one.run for one in runs})),
        "history_begin": begin,
        "history_size": _PLOTTED,
        "history_runs": len(runs),
    }


def _containers(request: Request, viewer: Viewer, found: Session) -> dict[str, Any]:
    now = _watched(request).of(found, viewer.token)
    shown = viewer.backend.session_with_shares(found)
    return {
        "session": shown,
        "containers": session_view.rows(shown, now),
        "use_problem": now.problem,
        "refreshes_s": session_view.refreshes_s(shown),
    }


def _watched(request: Request) -> UsageCache:
    watched: UsageCache = request.app.state.watched
    return watched


def _as_submitted(viewer: Viewer, session_id: str) -> dict[str, Any]:
    values = viewer.backend.spec_again(session_id)
    command = submit_command(values)
    return {
        "spec_yaml": yaml.safe_dump(values, sort_keys=False, allow_unicode=True) if values else "{}\n",
        "submit_line": "" if command.unflagged else command.text,
    }
