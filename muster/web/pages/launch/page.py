"""`/launch`: a session's spec as a form, what would become of it while it is filled in, and its submit."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.datastructures import UploadFile

from muster.core.spec.session_spec import MAX_IMAGE
from muster.core.values.errors import BadInputError, FieldError, SpecError
from muster.service.questions.dry_run import DryRun
from muster.web.api.requests import note_sessions
from muster.web.pages.launch import fields as launch_fields
from muster.web.pages.launch.answer import Preview, preview_of, problems_of, refusal
from muster.web.pages.launch.form import MODES, LaunchForm, filled, sent, values_of
from muster.web.pages.launch.newest_request import Turns
from muster.web.pages.launch.session_file import fields_of
from muster.web.viewer import Visiting, Visitor

router = APIRouter(include_in_schema=False)
_MAX_FILE = 1 << 20
_MAX_KEY = 64
_TURNS = Turns()


async def _sent(request: Request) -> tuple[LaunchForm, str]:
    """The form with the key that it was rendered with."""
    form = await request.form()
    key = form.get("key")
    return sent(form), key[:_MAX_KEY] if isinstance(key, str) else ""


async def _file(request: Request) -> str:
    """The text of the file that was chosen, else what was pasted. Raises SpecError."""
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


Sent = Annotated[tuple[LaunchForm, str], Depends(_sent)]


@router.get("/launch")
def launch_page(
    visitor: Visiting,
    *,
    earlier: Annotated[str | None, Query(alias="from", max_length=255)] = None,
    image: Annotated[str | None, Query(max_length=MAX_IMAGE)] = None,
) -> Response:
    """Filled in as an earlier session was, where one is named, and with that image."""
    values = visitor.backend.spec_again(earlier) if earlier else {}
    return _page(visitor, filled({**values, "image": image} if image else values))


@router.post("/launch/preview")
def preview(request: Request, visitor: Visiting, given: Sent) -> Response:
    request.state.changes_nothing = True
    form, key = given
    with _TURNS.turn(f"{visitor.user} {key}") as is_newest:
        if not is_newest:
            return Response(status_code=204)
        found = _preview(visitor, form)
    return visitor.fragment("launch.html", "preview", preview=found, fields=launch_fields, oob=True)


@router.post("/launch/load")
def load(visitor: Visiting, text: Annotated[str, Depends(_file)]) -> Response:
    """The form filled in from a session file."""
    fields = fields_of(text, "file")
    if not fields:
        raise SpecError([FieldError("file", "it holds no fields", "choose a session file, or paste one")])
    return _page(visitor, filled(fields))


@router.post("/launch")
def launch(request: Request, visitor: Visiting, given: Sent) -> Response:
    form, key = given
    try:
        values, count = values_of(form), form.sessions
        done = visitor.backend.submit(values, None, count, _once(key, values, count))
    except BadInputError as error:
        wrong = replace(_preview(visitor, form), verdict=refusal(error), problems=problems_of(error))
        return _page(visitor, form, wrong)
    note_sessions(request, list(done.sessions))
    return visitor.go(f"/sessions/{done.sessions[0].id}" if len(done.sessions) == 1 else "/sessions")


def _page(visitor: Visitor, form: LaunchForm, wrong: Preview | None = None) -> Response:
    return visitor.page(
        "launch.html",
        status=422 if wrong else 200,
        form=form,
        choices=visitor.backend.launch_choices(),
        preview=wrong or _preview(visitor, form),
        refused=wrong is not None,
        fields=launch_fields,
        modes=MODES,
        key=str(uuid.uuid4()),
        oob=False,
    )


def _preview(visitor: Visitor, form: LaunchForm) -> Preview:
    def ask(values: Mapping[str, object], count: int) -> DryRun:
        return visitor.backend.dry_run(values, None, count)

    return preview_of(form, visitor.backend.launch_choices(), ask)


def _once(key: str, values: Mapping[str, object], count: int) -> str | None:
    """The same form sent twice is one submit; one that was changed since is another."""
    content = json.dumps([values, count], sort_keys=True).encode()
    return f"launch-{key}-{hashlib.sha256(content).hexdigest()[:32]}" if key.isascii() and key else None
