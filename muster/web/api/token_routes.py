"""`/api/v1/tokens`: the caller's tokens. A secret is in the answer that makes its token, and nowhere else."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from muster.core.spec.session_spec import NAME_PATTERN
from muster.service.identity.views import NewTokenView, TokensView, TokenView
from muster.web.api import models
from muster.web.api.requests import note_owner, reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/tokens", tags=["tokens"])
Name = Annotated[str, Path(description="a token's name", max_length=255, pattern=r"^[^\x00]*$")]
NewName = Annotated[
    str, Path(description="a token's name", max_length=255, json_schema_extra=models.matches(NAME_PATTERN))
]


@router.get("", response_model=TokensView, responses=answers(), summary="List tokens")
def list_tokens(backend: Backend) -> Response:
    """List the caller's tokens; those of all users for an administrator."""
    return reply(backend.tokens.all())


@router.post("/{token}", status_code=201, response_model=NewTokenView, responses=answers(409), summary="Make a token")
def create(
    request: Request,
    backend: Backend,
    token: NewName,
    body: models.TokenRequest,
    *,
    owner: Annotated[
        str | None,
        Query(description="the token's user; for administrators", min_length=1, max_length=255, pattern=r"^[^\x00]*$"),
    ] = None,
) -> Response:
    """Make a token that may do no more than the caller's own, nor for longer. Its secret is shown this once."""
    note_owner(request, owner)
    return reply(backend.tokens.create(token, owner, body.scope, body.expires, body.projects), 201)


@router.delete("/{token}", response_model=TokenView, responses=answers(404), summary="Revoke a token")
def revoke(backend: Backend, token: Name) -> Response:
    """Make a token worthless at once, and sign out the browsers that signed in with it."""
    return reply(backend.tokens.revoke(token))
