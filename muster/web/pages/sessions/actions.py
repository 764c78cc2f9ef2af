"""Actions of a session's page: terminate, cancel, restart, hold, release, update, rename, extend, commit."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import Response

from muster.core.values.errors import BadInputError, MusterError, NotPossibleInStateError
from muster.core.values.units import parse_duration
from muster.service.local_backend import LocalBackend
from muster.service.sessions.views import SessionView
from muster.web.api.requests import note_sessions
from muster.web.pages.sessions.page import Reference
from muster.web.pages.sessions.updating import entered_changes, update_fields
from muster.web.pages.sessions.view import Action, offered
from muster.web.problems import problem
from muster.web.viewer import CurrentViewer, Viewer, is_htmx
from muster.web.words import plain_words

router = APIRouter(prefix="/sessions", include_in_schema=False)
Simple = Literal[Action.TERMINATE, Action.CANCEL, Action.RESTART, Action.HOLD, Action.RELEASE]
Text = Annotated[str, Form(max_length=1000)]
_DIALOGS = "session_dialogs.html"
_OUTCOMES: Mapping[str, str] = {
    Action.TERMINATE: "is ending",
    Action.CANCEL: "is cancelled",
    Action.RESTART: "is restarting",
    Action.HOLD: "is held",
    Action.RELEASE: "is released",
}

_ONLY = {
    Action.COMMIT: "only a RUNNING session",
    Action.EXTEND: "only a RUNNING session with a time limit",
    Action.UPDATE: "only a PENDING session",
}


@router.get("/{reference}/update")
def update_dialog(viewer: CurrentViewer, reference: Reference) -> Response:
    session = _allowed(viewer, reference, Action.UPDATE, "updated")
    fields = update_fields(viewer.backend.spec_again(session.id))
    return viewer.fragment(_DIALOGS, "update", session=session, fields=fields, problem="")


async def _entered(request: Request) -> dict[str, str]:
    """Return the texts of a form by the names of its fields, also those that are empty."""
    return {name: text for name, text in (await request.form()).items() if isinstance(text, str)}


@router.post("/{reference}/update")
def update(
    request: Request,
    viewer: CurrentViewer,
    reference: Reference,
    entered: Annotated[dict[str, str], Depends(_entered)],
) -> Response:
    """Change what was changed in the form. A field that it does not have stays as it is."""
    session = viewer.backend.session(reference)
    changes = entered_changes(viewer.backend.spec_again(session.id), entered)
    try:
        updated = viewer.backend.update(session.id, changes).items
    except (BadInputError, NotPossibleInStateError) as error:
        return _dialog_again(viewer, "update", error, session=session, fields=update_fields({}, entered))
    note_sessions(request, updated)
    return viewer.go(f"/sessions/{session.id}")


@router.get("/{reference}/rename")
def rename_dialog(viewer: CurrentViewer, reference: Reference) -> Response:
    session = _allowed(viewer, reference, Action.RENAME, "renamed")
    return viewer.fragment(_DIALOGS, "rename", session=session, name=session.name, problem="")


@router.post("/{reference}/rename")
def rename(request: Request, viewer: CurrentViewer, reference: Reference, name: Text = "") -> Response:
    session = viewer.backend.session(reference)
    try:
        renamed = viewer.backend.rename(session.id, name.strip())
    except (BadInputError, NotPossibleInStateError) as error:
        return _dialog_again(viewer, "rename", error, session=session, name=name)
    note_sessions(request, [renamed])
    return viewer.go(f"/sessions/{renamed.id}")


@router.get("/{reference}/extend")
def extend_dialog(viewer: CurrentViewer, reference: Reference) -> Response:
    session = _allowed(viewer, reference, Action.EXTEND, "extended")
    return viewer.fragment(_DIALOGS, "extend", session=session, time="1h", problem="")


@router.post("/{reference}/extend")
def extend(request: Request, viewer: CurrentViewer, reference: Reference, time: Text = "") -> Response:
    session = viewer.backend.session(reference)
    try:
        (extended,) = viewer.backend.extend([session.id], _seconds(time))
    except (BadInputError, NotPossibleInStateError) as error:
        return _dialog_again(viewer, "extend", error, session=session, time=time)
    note_sessions(request, [extended])
    return viewer.go(f"/sessions/{extended.id}")


def _seconds(time: str) -> int:
    """Return the seconds of a time such as 2h. Raises BadInputError."""
    try:
        return parse_duration(time.strip())
    except ValueError as error:
        raise BadInputError(f"TIME: {error}; write 30m or 2h, for example") from None


@router.get("/{reference}/commit")
def commit_dialog(
    viewer: CurrentViewer, reference: Reference, kernel: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    session = _allowed(viewer, reference, Action.COMMIT, "committed")
    return viewer.fragment(
        _DIALOGS,
        "commit",
        session=session,
        kernel=kernel or session.kernels[0].name,
        name="",
        message="",
        public=False,
        problem="",
    )


@router.post("/{reference}/commit")
def commit(
    request: Request,
    viewer: CurrentViewer,
    reference: Reference,
    *,
    kernel: Text = "",
    name: Text = "",
    message: Text = "",
    public: Annotated[bool, Form()] = False,
) -> Response:
    """Begin a commit; the dialog then requests its progress."""
    session = viewer.backend.session(reference)
    try:
        state = viewer.backend.images.begin_commit(
            session.id, kernel or None, name.strip(), message=message.strip(), public=public
        )
    except (BadInputError, NotPossibleInStateError) as error:
        entered = {"kernel": kernel, "name": name, "message": message, "public": public}
        return _dialog_again(viewer, "commit", error, session=session, **entered)
    note_sessions(request, [session])
    if not is_htmx(request):
        return viewer.announce(f"{state.reference} is being made")
    return viewer.fragment(_DIALOGS, "commit_state", session=session, state=state)


@router.get("/{reference}/commit/state")
def commit_state(viewer: CurrentViewer, reference: Reference, name: Annotated[str, Query(max_length=1000)]) -> Response:
    session = viewer.backend.session(reference)
    return viewer.fragment(_DIALOGS, "commit_state", session=session, state=viewer.backend.images.commit_state(name))


@router.post("/{reference}/{action}")
def change(request: Request, viewer: CurrentViewer, reference: Reference, action: Simple) -> Response:
    """Change the session by its id, since its name may be an array's as well."""
    changed = _actions(viewer.backend)[action]([viewer.backend.session(reference).id])
    note_sessions(request, changed)
    return viewer.announce(f"{changed[0].name} {_OUTCOMES[action]}")


def _actions(backend: LocalBackend) -> Mapping[str, Callable[[Iterable[str]], list[SessionView]]]:
    return {
        Action.TERMINATE: backend.terminate,
        Action.CANCEL: lambda references: backend.terminate(references, only_pending=True),
        Action.RESTART: backend.restart,
        Action.HOLD: backend.hold,
        Action.RELEASE: backend.release,
    }


def _allowed(viewer: Viewer, reference: str, action: Action, done: str) -> SessionView:
    """Return the session. Raises NotFoundError, ScopeError and NotPossibleInStateError."""
    viewer.backend.check_may_change()
    found = viewer.backend.session(reference)
    if action not in offered(found):
        only = _ONLY.get(action, "only an active one outside of an array")
        raise NotPossibleInStateError(f"session {found.name} is {found.state}; {only} can be {done}")
    return found


def _dialog_again(viewer: Viewer, block: str, error: MusterError, **entered: object) -> Response:
    """Return the dialog as it was filled in, with the problem, as a refused request: so the audit log has it."""
    if not is_htmx(viewer.connection):
        raise error
    status = problem(error).status
    return viewer.fragment(_DIALOGS, block, status=status, problem=plain_words(str(error)), **entered)
