"""`/account`: the signed-in user, what they may do and for how long, their tokens, and signing out."""

import time
from typing import Annotated

from fastapi import APIRouter, Form, Path, Request, Response

from muster.core.model.token import Scope
from muster.core.values.errors import BadInputError
from muster.service.identity.views import NewTokenView
from muster.web.api.requests import note_name
from muster.web.viewer import CurrentViewer, Viewer

router = APIRouter(include_in_schema=False)
Typed = Annotated[str, Form(max_length=255, pattern=r"^[^\x00]*$")]
_SCOPE_TEXTS = {
    Scope.ADMIN: "sees and changes everything, and submits for others",
    Scope.USER: "sees and changes your own sessions and folders",
    Scope.READ: "sees your own sessions and folders, and changes nothing",
}


@router.get("/account")
def account(viewer: CurrentViewer) -> Response:
    return _page(viewer)


@router.post("/account/tokens")
def create_token(
    request: Request,
    viewer: CurrentViewer,
    *,
    name: Typed = "",
    scope: Typed = Scope.USER.value,
    expires: Typed = "",
    project: Typed = "",
) -> Response:
    """Make a token, and show its secret this once."""
    note_name(request, name)
    if scope not in set(Scope):
        raise BadInputError(f"scope: there is no {scope!r}; use {', '.join(Scope)}")
    projects = [part.strip() for part in project.split(",") if part.strip()]
    made = viewer.backend.tokens.create(name.strip(), None, Scope(scope), expires.strip() or None, projects)
    return _page(viewer, made)


@router.post("/account/tokens/{name}/revoke")
def revoke_token(viewer: CurrentViewer, name: Annotated[str, Path(max_length=255, pattern=r"^[^\x00]*$")]) -> Response:
    viewer.backend.tokens.revoke(name)
    return viewer.announce(f"{name} is revoked")


def _page(viewer: Viewer, made: NewTokenView | None = None) -> Response:
    widest = list(Scope).index(viewer.token.scope)
    return viewer.page(
        "account.html",
        scope_text=_SCOPE_TEXTS[viewer.token.scope],
        scopes={scope: _SCOPE_TEXTS[scope] for scope in list(Scope)[widest:]},
        tokens=viewer.backend.tokens.all().items,
        made=made,
        now=time.time(),
    )
