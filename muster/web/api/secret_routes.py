"""`/api/v1/secrets`: the caller's own, by their names. What one holds is never told."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse

from muster.service.secrets.owned import SecretName, secret_json
from muster.web.api import models
from muster.web.api.requests import Replying
from muster.web.caller import Asked
from muster.web.problems import answers

router = APIRouter(prefix="/secrets", tags=["secrets"])
Name = Annotated[str, Path(description="a secret's name", max_length=255, pattern=r"^[^\x00]*$")]


@router.get("", response_model=models.SecretsView, responses=answers(), summary="List secrets")
def list_secrets(asked: Asked, reply: Replying) -> Response:
    """Names, and when each was set."""
    return reply(
        Sequence[SecretName], asked.secrets.names(), lambda names: {"items": [secret_json(name) for name in names]}
    )


@router.put("/{secret}", response_model=models.NameView, responses=answers(422), summary="Set a secret")
def set_secret(asked: Asked, secret: Name, wanted: models.SecretRequest) -> Response:
    """Set it, or change it: sessions get what it is when they are launched."""
    asked.secrets.set(secret, wanted.value.get_secret_value())
    return JSONResponse({"name": secret})


@router.delete("/{secret}", response_model=models.NameView, responses=answers(404, 422))
def remove(asked: Asked, secret: Name) -> Response:
    """Sessions that run keep their copy until they end."""
    asked.secrets.remove(secret)
    return JSONResponse({"name": secret})
