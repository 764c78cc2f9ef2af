"""`/api/v1/limits` and `/api/v1/share-weights`: what administrators set over the settings."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from muster.core.model.overrides import Limited
from muster.service.scheduler.overrides import NAME_PATTERN
from muster.service.scheduler.views import ChangedLimitView, ChangedWeightView, ShareWeightsView, SiteLimitsView
from muster.web.api import models
from muster.web.api.requests import note_changes, note_weight, reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(tags=["limits"])
Kind = Annotated[Limited, Path(description="what the limit is for")]
Name = Annotated[
    str,
    Path(
        description="a user, a project or a resource group; * for each that is not named",
        max_length=255,
        json_schema_extra=models.matches(NAME_PATTERN),
    ),
]
User = Annotated[str, Path(description="a user's name", max_length=255, json_schema_extra=models.matches(NAME_PATTERN))]


@router.get("/limits", response_model=SiteLimitsView, responses=answers(), summary="List limits")
def list_limits(backend: Backend) -> Response:
    """List the limits in force, and where each comes from."""
    return reply(backend.limits.all())


@router.put("/limits/{kind}/{name}", response_model=ChangedLimitView, responses=answers(), summary="Set a limit")
def set_limit(request: Request, backend: Backend, kind: Kind, name: Name, body: models.LimitRequest) -> Response:
    """Set a limit over the settings'; it replaces that of the same name as a whole, from the next decision on."""
    limit = body.limit()
    note_changes(request, limit)
    return reply(backend.limits.set(kind, name, limit))


@router.delete("/limits/{kind}/{name}", response_model=ChangedLimitView, responses=answers(404), summary="Unset it")
def unset_limit(backend: Backend, kind: Kind, name: Name) -> Response:
    """Let the settings apply again."""
    return reply(backend.limits.unset(kind, name))


@router.get("/share-weights", response_model=ShareWeightsView, responses=answers(), summary="List share weights")
def list_weights(backend: Backend) -> Response:
    """List the share weights in force, and where each comes from; users who are not named have 1."""
    return reply(backend.weights.all())


@router.put(
    "/share-weights/{user}", response_model=ChangedWeightView, responses=answers(), summary="Set a share weight"
)
def set_weight(request: Request, backend: Backend, user: User, body: models.WeightRequest) -> Response:
    """Set a user's share weight over the settings'."""
    note_weight(request, body.weight)
    return reply(backend.weights.set(user, body.weight))


@router.delete("/share-weights/{user}", response_model=ChangedWeightView, responses=answers(404), summary="Unset it")
def unset_weight(backend: Backend, user: User) -> Response:
    """Let the settings apply again."""
    return reply(backend.weights.unset(user))
