"""`/api/v1/sessions`: submit, list, show, explain, hold, end."""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response

from muster.core.model.session import SessionState
from muster.service.questions.views import DetailsView, DryRunView, WhyView
from muster.service.reach.views import AppAccessView, SshAccessView
from muster.service.sessions.list_pages import ListPageRequest, SessionFilter
from muster.service.sessions.lists import SessionListView
from muster.service.sessions.views import (
    SessionsView,
    SessionView,
    StoryView,
    SubmittedView,
    UpdatedView,
)
from muster.service.specs.new_sessions import MAX_COUNT
from muster.service.usage.views import SessionHistoryView
from muster.web.api import models
from muster.web.api.requests import CHANGES_BODY, SPEC_BODY, Body, json_reply, note_owner, note_sessions, reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/sessions", tags=["sessions"])
Reference = Annotated[
    str, Path(description="a session's name, its id, or the start of its id (4 characters or more)", max_length=255)
]
Filter = Annotated[str | None, Query(max_length=255, pattern=r"^[^\x00]*$")]
Count = Annotated[
    int,
    Query(
        description="number of sessions, with names such as train-1 and train-2",
        json_schema_extra={"minimum": 1, "maximum": MAX_COUNT},
    ),
]
Sort = Literal["submitted", "-submitted", "name", "-name", "owner", "-owner", "state", "-state",
               "resource_group", "-resource_group"]  # fmt: skip


@router.get("", response_model=SessionListView, responses=answers(), summary="List sessions")
def list_sessions(
    backend: Backend,
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
    return json_reply(backend.lists.json_text(filtered, page, cursor))


@router.post(
    "",
    status_code=201,
    response_model=SubmittedView,
    responses=answers(409) | {200: {"description": "It was done before", "model": SubmittedView}},
    openapi_extra=SPEC_BODY,
    summary="Submit sessions",
)
def submit(
    request: Request,
    backend: Backend,
    spec: Body,
    *,
    count: Count = 1,
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
    note_sessions(request, done.items)
    return reply(done, 200 if done.again else 201)


@router.post(
    "/dry-run",
    response_model=DryRunView,
    responses=answers(409),
    openapi_extra=SPEC_BODY,
    summary="Forecast a submit",
)
def dry_run(
    backend: Backend,
    spec: Body,
    *,
    count: Count = 1,
    owner: Annotated[str | None, Query(min_length=1, max_length=255, pattern=r"^[^\x00]*$")] = None,
) -> Response:
    """Forecast a submit, and change nothing: where it would start now, or why not and what would help."""
    return reply(backend.dry_run(spec, owner, count))


@router.get("/{session}", response_model=DetailsView, responses=answers(404, 409), summary="Show a session")
def show(backend: Backend, session: Reference) -> Response:
    return reply(backend.details(session))


@router.get("/{session}/why", response_model=WhyView, responses=answers(404, 409))
def why(
    backend: Backend,
    session: Reference,
    *,
    what_if: Annotated[bool, Query(description="also the smallest changes that would let it start now")] = False,
) -> Response:
    """Explain why the session waits, or why it ended."""
    return reply(backend.why(session, what_if=what_if))


@router.get("/{session}/ssh", response_model=SshAccessView, responses=answers(404, 409), summary="Show the ways by ssh")
def ssh(backend: Backend, session: Reference) -> Response:
    """Say how somebody logs in by ssh who has a key that the session knows."""
    return reply(backend.reach.ssh_access(session))


@router.get("/{session}/apps/{app}", response_model=AppAccessView, responses=answers(404, 409))
def app(
    backend: Backend,
    session: Reference,
    app: Annotated[str, Path(description="its name; a dash for the only one", max_length=64)],
) -> Response:
    """Show an app with its URL, which holds its token: who has it is let in."""
    return reply(backend.reach.app_access(session, None if app == "-" else app))


@router.get("/{session}/events", responses=answers(404, 409))
def events(backend: Backend, session: Reference) -> StoryView:
    """List the session's story, a line for each change."""
    return backend.story(session)


@router.get("/{session}/usage", responses=answers(404, 409), summary="Show a session's usage over its life")
def usage(backend: Backend, session: Reference) -> SessionHistoryView:
    """List for each kernel and launch the mean usage over even steps, at most 481: they grow with its age."""
    return backend.usage_history(session)


@router.delete("/{session}", response_model=SessionsView, responses=answers(404, 409))
def end(request: Request, backend: Backend, session: Reference) -> Response:
    """Terminate the session."""
    return _changed(request, backend.terminate([session]))


@router.patch(
    "/{session}",
    response_model=UpdatedView,
    responses=answers(404, 409),
    openapi_extra=CHANGES_BODY,
    summary="Update a session that waits",
)
def update(request: Request, backend: Backend, session: Reference, changes: Body) -> Response:
    """Change what a PENDING session asks for, or all of an array that are; they keep their place in the queue."""
    done = backend.update(session, changes)
    note_sessions(request, done.items)
    return reply(done)


@router.post("/terminate", response_model=SessionsView, responses=answers(404, 409))
def terminate(request: Request, backend: Backend, references: models.References) -> Response:
    """Terminate several sessions. As with all such changes, all are looked up before the first is changed."""
    return _changed(request, backend.terminate(references.sessions))


@router.post("/cancel", response_model=SessionsView, responses=answers(404, 409))
def cancel(request: Request, backend: Backend, references: models.References) -> Response:
    """Cancel several sessions that wait."""
    return _changed(request, backend.terminate(references.sessions, only_pending=True))


@router.post("/hold", response_model=SessionsView, responses=answers(404, 409))
def hold(request: Request, backend: Backend, references: models.References) -> Response:
    """Keep several sessions from starting."""
    return _changed(request, backend.hold(references.sessions))


@router.post("/release", response_model=SessionsView, responses=answers(404, 409))
def release(request: Request, backend: Backend, references: models.References) -> Response:
    """Let several held sessions start again."""
    return _changed(request, backend.release(references.sessions))


@router.post("/restart", response_model=SessionsView, responses=answers(404, 409))
def restart(request: Request, backend: Backend, references: models.References) -> Response:
    """Restart several running sessions where they are."""
    return _changed(request, backend.restart(references.sessions))


@router.post("/extend", response_model=SessionsView, responses=answers(404, 409))
def extend(request: Request, backend: Backend, body: models.ExtendRequest) -> Response:
    """Add time to the limits of several running sessions."""
    return _changed(request, backend.extend(body.sessions, body.seconds))


@router.post("/{session}/rename", response_model=SessionView, responses=answers(404, 409))
def rename(request: Request, backend: Backend, session: Reference, body: models.RenameRequest) -> Response:
    renamed = backend.rename(session, body.name)
    note_sessions(request, [renamed])
    return reply(renamed)


def _changed(request: Request, sessions: list[SessionView]) -> Response:
    note_sessions(request, sessions)
    return reply(SessionsView(items=sessions))
