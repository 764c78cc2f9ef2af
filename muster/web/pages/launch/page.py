"""`/launch`: a session's spec as a form, a preview while it is filled in, and its submit."""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from starlette.datastructures import UploadFile

from muster.core.spec.roles import MAX_IMAGE
from muster.core.values.errors import BadInputError, FieldError, NotFoundError, SpecError
from muster.service.questions.views import DryRunView
from muster.service.specs.launch_choices import Preset
from muster.web.api.requests import note_name, note_sessions
from muster.web.pages.launch import fields as launch_fields
from muster.web.pages.launch.answer import Preview, not_saved, preview_of, problems_of, refusal
from muster.web.pages.launch.form import MODES, LaunchForm, form_of, parse_form, values_of
from muster.web.pages.launch.newest_request import NewestRequest
from muster.web.pages.launch.session_file import fields_of
from muster.web.viewer import CurrentViewer, Viewer

router = APIRouter(include_in_schema=False)
_MAX_FILE = 1 << 20
_MAX_KEY = 64
_PREVIEWS = NewestRequest()


async def _posted_form(request: Request) -> tuple[LaunchForm, str]:
    """Return the form, and the key that it was rendered with."""
    form = await request.form()
    key = form.get("key")
    return parse_form(form), key[:_MAX_KEY] if isinstance(key, str) else ""


async def _posted_file(request: Request) -> str:
    """Return the text of the chosen file, or the pasted text. Raises SpecError."""
    form = await request.form()
    chosen, pasted = form.get("file"), form.get("text")
    if isinstance(chosen, UploadFile) and chosen.filename:
        content = await chosen.read(_MAX_FILE + 1)
        if len(content) > _MAX_FILE:
            raise SpecError([FieldError("file", "it is larger than 1 MiB", "choose a session file")])
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise SpecError([FieldError("file", "it is not UTF-8 text", "choose a session file")]) from None
    return pasted if isinstance(pasted, str) else ""


PresetName = Annotated[str, Form(alias="preset", max_length=255, pattern=r"^[^\x00]*$")]
PostedForm = Annotated[tuple[LaunchForm, str], Depends(_posted_form)]


@router.get("/launch")
def launch_page(
    viewer: CurrentViewer,
    *,
    earlier: Annotated[str | None, Query(alias="from", max_length=255)] = None,
    image: Annotated[str | None, Query(max_length=MAX_IMAGE)] = None,
    preset: Annotated[str | None, Query(max_length=60)] = None,
    own_preset: Annotated[str | None, Query(max_length=60)] = None,
) -> Response:
    """Show the form; filled in from an earlier session or a preset, and with an image, where they are named."""
    values = viewer.backend.spec_again(earlier) if earlier else {}
    if preset is not None:
        values = _preset(viewer.backend.launch_choices().presets, preset)
    if own_preset is not None:
        values = _preset(viewer.backend.launch_choices().own_presets, own_preset)
    return _page(viewer, form_of({**values, "image": image} if image else values))


@router.post("/launch/preview")
def preview(request: Request, viewer: CurrentViewer, posted: PostedForm) -> Response:
    request.state.changes_nothing = True
    form, key = posted
    with _PREVIEWS.turn(f"{viewer.user} {key}") as is_newest:
        if not is_newest:
            return Response(status_code=204)
        shown = _preview(viewer, form)
    return viewer.fragment("launch.html", "preview", preview=shown, fields=launch_fields, oob=True)


@router.post("/launch/load")
def load(viewer: CurrentViewer, text: Annotated[str, Depends(_posted_file)]) -> Response:
    """Show the form filled in from a session file."""
    fields = fields_of(text, "file")
    if not fields:
        raise SpecError([FieldError("file", "it has no fields", "choose a session file, or paste one")])
    return _page(viewer, form_of(fields))


@router.post("/launch/presets")
def save_preset(request: Request, viewer: CurrentViewer, posted: PostedForm, name: PresetName = "") -> Response:
    """Save the form as a preset of the user's own, and show it as it was filled in."""
    form, _ = posted
    name = name.strip()
    note_name(request, name)
    try:
        viewer.backend.presets.save(name, values_of(form))
    except BadInputError as error:
        refused = replace(_preview(viewer, form), verdict=not_saved(error), problems=problems_of(error))
        return _page(viewer, form, refused, preset_name=name)
    return _page(viewer, form, saved=name)


@router.get("/launch/presets")
def presets(viewer: CurrentViewer) -> Response:
    return viewer.fragment("launch.html", "presets", choices=viewer.backend.launch_choices())


@router.post("/launch/presets/remove")
def remove_preset(request: Request, viewer: CurrentViewer, name: PresetName = "") -> Response:
    note_name(request, name)
    viewer.backend.presets.remove(name)
    return viewer.announce(f"Preset {name} is removed")


@router.post("/launch")
def launch(request: Request, viewer: CurrentViewer, posted: PostedForm) -> Response:
    form, key = posted
    try:
        values, count = values_of(form), form.sessions
        submitted = viewer.backend.submit(values, None, count, _idempotency_key(key, values, count))
    except BadInputError as error:
        refused = replace(_preview(viewer, form), verdict=refusal(error), problems=problems_of(error))
        return _page(viewer, form, refused)
    sessions = submitted.items
    note_sessions(request, sessions)
    return viewer.go(f"/sessions/{sessions[0].id}" if len(sessions) == 1 else "/sessions")


def _preset(presets: Iterable[Preset], name: str) -> dict[str, Any]:
    """Raises NotFoundError."""
    for preset in presets:
        if preset.name == name:
            return dict(preset.values)
    raise NotFoundError(f"there is no preset {name!r}; choose one on the launch page")


def _page(
    viewer: Viewer, form: LaunchForm, refused: Preview | None = None, *, saved: str = "", preset_name: str = ""
) -> Response:
    return viewer.page(
        "launch.html",
        status=422 if refused else 200,
        form=form,
        choices=viewer.backend.launch_choices(),
        preview=refused or _preview(viewer, form),
        refused=refused is not None,
        saved=saved,
        preset_name=preset_name,
        fields=launch_fields,
        modes=MODES,
        key=str(uuid.uuid4()),
        oob=False,
    )


def _preview(viewer: Viewer, form: LaunchForm) -> Preview:
    def dry_run(values: Mapping[str, object], count: int) -> DryRunView:
        return viewer.backend.dry_run(values, None, count)

    return preview_of(form, viewer.backend.launch_choices(), dry_run)


def _idempotency_key(key: str, values: Mapping[str, object], count: int) -> str | None:
    """Return a key by which the same form sent twice is one submit, and a changed one is another."""
    content = json.dumps([values, count], sort_keys=True).encode()
    return f"launch-{key}-{hashlib.sha256(content).hexdigest()[:32]}" if key.isascii() and key else None
