"""`/api/v1/presets`: specs to begin from, the caller's own and the site's."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from muster.service.specs.preset_views import PresetsView, PresetView
from muster.service.specs.presets import MAX_PRESET_NAME
from muster.web.api.requests import SPEC_BODY, Body, reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/presets", tags=["presets"])
_TEXT = r"^[^\x00]*$"
# A name may hold a slash.
_ONE = "/{preset:path}"
Name = Annotated[str, Path(description="a preset's name", max_length=255, pattern=_TEXT)]
NewName = Annotated[
    str,
    Path(
        description="a name of characters that can be printed, without spaces around it",
        max_length=255,
        pattern=_TEXT,
        json_schema_extra={"minLength": 1, "maxLength": MAX_PRESET_NAME},
    ),
]


@router.get("", response_model=PresetsView, responses=answers(), summary="List presets")
def list_presets(backend: Backend) -> Response:
    """List the caller's own presets, then those that the site offers."""
    return reply(backend.presets.all())


@router.get(_ONE, response_model=PresetView, responses=answers(404), summary="Show a preset")
def preset(backend: Backend, preset: Name) -> Response:
    """Show the caller's own preset of that name, or else the site's."""
    return reply(backend.presets.named(preset))


@router.put(_ONE, response_model=PresetView, responses=answers(), summary="Save a preset", openapi_extra=SPEC_BODY)
def save(backend: Backend, preset: NewName, body: Body) -> Response:
    """Save a session spec as a preset of the caller's own, in place of their preset of that name."""
    return reply(backend.presets.save(preset, body))


@router.delete(_ONE, response_model=PresetView, responses=answers(404), summary="Remove a preset")
def remove(backend: Backend, preset: Name) -> Response:
    """Remove a preset of the caller's own."""
    return reply(backend.presets.remove(preset))
