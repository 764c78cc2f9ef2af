"""`/api/v1/secrets`: the names of the caller's secrets. Their values are never returned."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from muster.core.spec.startup import SECRET_PATTERN
from muster.service.secrets.views import NameView, SecretsView
from muster.web.api import models
from muster.web.api.requests import reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/secrets", tags=["secrets"])
_TEXT = r"^[^\x00]*$"
Name = Annotated[str, Path(description="a secret's name", max_length=255, pattern=_TEXT)]
NewName = Annotated[
    str, Path(description="a secret's name", max_length=255, json_schema_extra=models.matches(SECRET_PATTERN))
]


@router.get("", response_model=SecretsView, responses=answers(), summary="List secrets")
def list_secrets(backend: Backend) -> Response:
    """List the names of secrets, and when each was set."""
    return reply(backend.secrets.names())


@router.put("/{secret}", response_model=NameView, responses=answers(507), summary="Set a secret")
def set_secret(backend: Backend, secret: NewName, body: models.SecretRequest) -> Response:
    """Set a secret. Sessions get the value of the time when they are launched."""
    backend.secrets.set(secret, body.value.get_secret_value())
    return reply(NameView(name=secret))


@router.delete("/{secret}", response_model=NameView, responses=answers(404))
def remove(backend: Backend, secret: Name) -> Response:
    """Remove a secret. Running sessions keep their copy until they end."""
    backend.secrets.remove(secret)
    return reply(NameView(name=secret))
