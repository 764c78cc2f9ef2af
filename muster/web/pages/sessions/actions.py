"""What can be done with a session from its page: end it, hold it, restart it, rename it, make an image of it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError, MusterError, NotPossibleInStateError
from muster.service.local_backend import LocalBackend
from muster.web.api.requests import note_sessions
from muster.web.pages.sessions.page import Reference
from muster.web.pages.sessions.view import Action, offered
from muster.web.viewer import Visiting, Visitor, is_htmx

router = APIRouter(prefix="/sessions", include_in_schema=False)
Simple = Literal[Action.TERMINATE, Action.CANCEL, Action.RESTART, Action.HOLD, Action.RELEASE]
Text = Annotated[str, Form(max_length=1000)]
_DIALOGS = "session_dialogs.html"
_SAID: Mapping[str, str] = {
    Action.TERMINATE: "ends",
    Action.CANCEL: "is cancelled",
    Action.RESTART: "restarts",
    Action.HOLD: "is held",
    Action.RELEASE: "is released",
}


@router.get("/{reference}/rename")
def rename_dialog(visitor: Visiting, reference: Reference) -> Response:
    found = _allowed(visitor, reference, Action.RENAME, "renamed")
    return visitor.fragment(_DIALOGS, "rename", session=found, name=found.name, problem="")


@router.post("/{reference}/rename")
def rename(request: Request, visitor: Visiting, reference: Reference, name: Text = "") -> Response:
    found = visitor.backend.find(reference)
    try:
        renamed = visitor.backend.rename(found.id, name.strip())
    except (BadInputError, NotPossibleInStateError) as error:
        return _again(visitor, "rename", error, session=found, name=name)
    note_sessions(request, [renamed])
    return visitor.go(f"/sessions/{renamed.id}")


@router.get("/{reference}/commit")
def commit_dialog(
    visitor: Visiting, reference: Reference, kernel: Annotated[str, Query(max_length=64)] = ""
) -> Response:
    found = _allowed(visitor, reference, Action.COMMIT, "made an image of")
    return visitor.fragment(
        _DIALOGS,
        "commit",
        session=found,
        kernel=kernel or found.main.name,
        name="",
        message="",
        public=False,
        problem="",
    )


@router.post("/{reference}/commit")
def commit(
    request: Request,
    visitor: Visiting,
    reference: Reference,
    *,
    kernel: Text = "",
    name: Text = "",
    message: Text = "",
    public: Annotated[bool, Form()] = False,
) -> Response:
    """Begins it; the dialog then asks how far it has come."""
    found = visitor.backend.find(reference)
    try:
        state = visitor.backend.begin_commit(
            found.id, kernel or None, name.strip(), message=message.strip(), public=public
        )
    except (BadInputError, NotPossibleInStateError) as error:
        given = {"kernel": kernel, "name": name, "message": message, "public": public}
        return _again(visitor, "commit", error, session=found, **given)
    note_sessions(request, [found])
    if not is_htmx(request):
        return visitor.announce(f"{state.reference} is being made")
    return visitor.fragment(_DIALOGS, "commit_state", session=found, state=state)


@router.get("/{reference}/commit/state")
def commit_state(visitor: Visiting, reference: Reference, name: Annotated[str, Query(max_length=1000)]) -> Response:
    found = visitor.backend.find(reference)
    return visitor.fragment(_DIALOGS, "commit_state", session=found, state=visitor.backend.commit_state(name))


@router.post("/{reference}/{action}")
def change(request: Request, visitor: Visiting, reference: Reference, action: Simple) -> Response:
    """By its id, which means this session alone, where a name may be an array's."""
    changed = _ways(visitor.backend)[action]([visitor.backend.find(reference).id])
    note_sessions(request, changed)
    return visitor.announce(f"{changed[0].name} {_SAID[action]}")


def _ways(asked: LocalBackend) -> Mapping[str, Callable[[Iterable[str]], list[Session]]]:
    return {
        Action.TERMINATE: asked.terminate,
        Action.CANCEL: lambda references: asked.terminate(references, only_pending=True),
        Action.RESTART: asked.restart,
        Action.HOLD: asked.hold,
        Action.RELEASE: asked.release,
    }


def _allowed(visitor: Visitor, reference: str, action: Action, done: str) -> Session:
    """Raises NotFoundError, ScopeError, and NotPossibleInStateError where its state has changed since."""
    visitor.backend.check_may_change()
    found = visitor.backend.find(reference)
    if action not in offered(found):
        only = "only a RUNNING session" if action is Action.COMMIT else "only one that goes on, and is of no array,"
        raise NotPossibleInStateError(f"session {found.name} is {found.state}; {only} can be {done}")
    return found


def _again(visitor: Visitor, block: str, error: MusterError, **given: object) -> Response:
    """The dialog with what was given, and why that cannot be."""
    if not is_htmx(visitor.connection):
        raise error
    return visitor.fragment(_DIALOGS, block, problem=str(error), **given)
