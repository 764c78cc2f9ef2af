"""`/api/v1/sessions`: submit, list, show, explain, hold, end."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response

from muster.core.model.session import Session, SessionState
from muster.core.spec.session_spec import SessionSpec
from muster.service.local_backend import LocalBackend
from muster.service.questions.details import Details
from muster.service.questions.dry_run import DryRun
from muster.service.questions.views import DetailsView, DryRunView, WhyView
from muster.service.questions.why import Why
from muster.service.sessions.commands import Submitted
from muster.service.sessions.list_pages import ListPageRequest, SessionFilter, SessionListPage
from muster.service.sessions.views import (
    SessionListView,
    SessionsView,
    SessionView,
    StoryLineView,
    StoryView,
    SubmittedView,
    WaitView,
)
from muster.web.api import models
from muster.web.api.requests import Body, Replying, note_owner, note_sessions
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/sessions", tags=["sessions"])
Reference = Annotated[
    str, Path(description="a session's name, its id, or the start of its id (4 characters or more)", max_length=255)
]
Filter = Annotated[str | None, Query(max_length=255, pattern=r"^[^\x00]*$")]
_SPEC = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{SessionSpec.__name__}"}}},
    }
}
Sort = Literal["submitted", "-submitted", "name", "-name", "owner", "-owner", "state", "-state",
               "resource_group", "-resource_group"]  # fmt: skip


@router.get("", response_model=SessionListView, responses=answers(422), summary="List sessions")
def list_sessions(
    backend: Backend,
    reply: Replying,
    *,
    state: Annotated[list[SessionState], Query(description="any of these; by default all active states")] = [],  # noqa: B006
    ended: Annotated[bool, Query(description="also sessions that have ended")] = False,
    mine: Annotated[bool, Query(description="only sessions of the token's user")] = False,
    owner: Filter = None,
    project: Filter = None,
    resource_group: Filter = None,
    name_contains: Filter = None,
    sort: Annotated[Sort, Query(description="the column, a minus before it for descending order")] = "-submitted",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(max_length=2000)] = None,
) -> Response:
    filtered = SessionFilter(
        owner=backend.user if mine else owner,
        states=tuple(state),
        ended=ended,
        project=project,
        resource_group=resource_group,
        name_contains=name_contains,
    )
    page = ListPageRequest(limit, sort.removeprefix("-"), descending=sort.startswith("-"))
    return reply(SessionListPage, backend.page(filtered, page, cursor), _page_view)


@router.post(
    "",
    status_code=201,
    response_model=SubmittedView,
    responses=answers(409, 422) | {200: {"description": "It was done before", "model": SubmittedView}},
    openapi_extra=_SPEC,
    summary="Submit sessions",
)
def submit(
    request: Request,
    backend: Backend,
    reply: Replying,
    spec: Body,
    *,
    count: Annotated[int, Query(description="number of sessions: NAME-1, NAME-2, …")] = 1,
    owner: Annotated[
        str | None,
        Query(
            description="owner of the sessions; only administrators may name another user",
            min_length=1,
            max_length=255,
            pattern=r"^[^\x00]*$",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            description="the same submit with the same key is carried out once within a day",
            min_length=1,
            max_length=255,
            pattern=r"^[!-~]+$",
        ),
    ] = None,
) -> Response:
    note_owner(request, owner)
    done = backend.submit(spec, owner, count, idempotency_key)
    note_sessions(request, list(done.sessions))
    return reply(Submitted, done, _submitted_view, 200 if done.again else 201)


@router.post(
    "/dry-run",
    response_model=DryRunView,
    responses=answers(409, 422),
    openapi_extra=_SPEC,
    summary="Forecast a submit",
)
def dry_run(
    backend: Backend,
    reply: Replying,
    spec: Body,
    *,
    count: Annotated[int, Query()] = 1,
    owner: Annotated[str | None, Query(min_length=1, max_length=255, pattern=r"^[^\x00]*$")] = None,
) -> Response:
    """Forecast a submit, and change nothing: where it would start now, or why not and what would help."""
    forecast = backend.dry_run(spec, owner, count)
    return reply(DryRun, forecast, DryRunView.of)


@router.get("/{session}", response_model=DetailsView, responses=answers(404, 409), summary="Show a session")
def show(backend: Backend, reply: Replying, session: Reference) -> Response:
    return reply(Details, backend.details(session), DetailsView.of_details)


@router.get("/{session}/why", response_model=WhyView, responses=answers(404, 409, 422))
def why(
    backend: Backend,
    reply: Replying,
    session: Reference,
    *,
    what_if: Annotated[bool, Query(description="also the smallest changes that would let it start now")] = False,
) -> Response:
    """Explain why the session waits, or why it ended."""
    return reply(Why, backend.why(session, what_if=what_if), WhyView.of)


@router.get("/{session}/events", responses=answers(404, 409))
def events(backend: Backend, session: Reference) -> StoryView:
    """List the session's story, a line for each change."""
    found = backend.find(session)
    return StoryView(items=[StoryLineView.of(line) for line in backend.story(found.id)])


@router.delete("/{session}", response_model=SessionsView, responses=answers(404, 409))
def end(request: Request, backend: Backend, reply: Replying, session: Reference) -> Response:
    """Terminate the session."""
    return _changed(request, reply, backend.terminate([session]))


@router.post("/{action}", response_model=SessionsView, responses=answers(404, 409, 422))
def change(
    request: Request,
    backend: Backend,
    reply: Replying,
    action: Annotated[Literal["terminate", "cancel", "hold", "release", "restart"], Path()],
    references: models.References,
) -> Response:
    """Change several sessions at once. All of them are looked up before the first is changed."""
    return _changed(request, reply, _change(backend, action, references.sessions))


@router.post("/{session}/rename", response_model=SessionView, responses=answers(404, 409, 422))
def rename(
    request: Request, backend: Backend, reply: Replying, session: Reference, body: models.RenameRequest
) -> Response:
    renamed = backend.rename(session, body.name)
    note_sessions(request, [renamed])
    return reply(Session, renamed, SessionView.of)


def _change(backend: LocalBackend, action: str, references: list[str]) -> list[Session]:
    match action:
        case "terminate":
            return backend.terminate(references)
        case "cancel":
            return backend.terminate(references, only_pending=True)
        case "hold":
            return backend.hold(references)
        case "release":
            return backend.release(references)
        case _:
            return backend.restart(references)


def _changed(request: Request, reply: Replying, sessions: list[Session]) -> Response:
    note_sessions(request, sessions)
    return reply(list[Session], sessions, SessionsView.of)


def _page_view(page: SessionListPage) -> SessionListView:
    items = [SessionView.of(session) for session in page.sessions]
    return SessionListView(items=items, next_cursor=page.cursor, total=page.total)


def _submitted_view(done: Submitted) -> SubmittedView:
    return SubmittedView(
        items=[SessionView.of(session) for session in done.sessions],
        impossible={key: WaitView.of(wait, wait.position) for key, wait in done.impossible.items()},
        again=done.again,
    )
