"""`/limits`, `/share-weights`: the limits and share weights in force; administrators set others over the settings."""

import re
from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request, Response
from pydantic import BaseModel, Field

from muster.core.model.overrides import Limited
from muster.core.scheduling.limits import COUNTED
from muster.core.values.errors import BadInputError
from muster.service.scheduler.overrides import limit_as_written
from muster.service.scheduler.views import SiteLimitView
from muster.web.api.requests import note_changes, note_weight
from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)
Typed = Annotated[str, Field(default="", max_length=255, pattern=r"^[^\x00]*$")]
Named = Annotated[str, Path(max_length=255, pattern=r"^[^\x00]*$")]
Queried = Annotated[str, Query(max_length=255, pattern=r"^[^\x00]*$")]
_HEADINGS = {
    "sessions": "Sessions",
    "kernels": "Containers",
    "cpu": "CPU",
    "mem": "Memory",
    "fgpu": "fGPU",
    "gpu": "GPU",
}
_WHEN = {"running": "Running at a time", "pending": "Waiting at a time"}
_AMOUNT = re.compile(rf"^({'|'.join(_WHEN)})\.({'|'.join(_HEADINGS)}): ", re.MULTILINE)


class LimitForm(BaseModel):
    """The fields of the form, as they were typed; an empty one limits nothing."""

    kind: Typed
    name: Typed
    running_sessions: Typed
    running_kernels: Typed
    running_cpu: Typed
    running_mem: Typed
    running_fgpu: Typed
    running_gpu: Typed
    pending_sessions: Typed
    pending_kernels: Typed
    pending_cpu: Typed
    pending_mem: Typed
    pending_fgpu: Typed
    pending_gpu: Typed

    def amounts(self, when: str) -> dict[str, object]:
        typed = {counted: getattr(self, f"{when}_{counted}").strip() for counted in COUNTED}
        return {counted: text for counted, text in typed.items() if text}


@router.get("/limits")
def limits(viewer: CurrentViewer, *, kind: Queried = "", name: Queried = "", user: Queried = "") -> Response:
    """List both. The forms begin with the limit of `kind` and `name`, and with the share weight of `user`."""
    found = viewer.backend.limits.all().items
    weights = viewer.backend.weights.all().items
    words = viewer.backend.lists.recent_words()
    return viewer.page(
        "limits.html",
        limits=found,
        weights=weights,
        kinds=list(Limited),
        headings=_HEADINGS,
        whens=_WHEN,
        begun=next((one for one in found if (one.kind, one.name) == (kind, name)), None),
        begun_weight=next((one for one in weights if one.owner == user), None),
        users=words["owner"],
        names=sorted({*words["owner"], *words["project"], *viewer.backend.resources.group_names(), "*"}),
    )


@router.post("/limits")
def set_limit(request: Request, viewer: CurrentViewer, form: Annotated[LimitForm, Form()]) -> Response:
    kind, name = _kind(form.kind), form.name.strip()
    try:
        limit = limit_as_written(form.amounts("running"), form.amounts("pending"))
        note_changes(request, limit, kind=kind, name=name)
        changed = viewer.backend.limits.set(kind, name, limit).limit
    except BadInputError as error:
        raise BadInputError(_AMOUNT.sub(_label_of_amount, str(error))) from None
    return viewer.announce(f"{_whose(kind, name)}: {_said(changed)}")


@router.post("/limits/{kind}/{name}/unset")
def unset_limit(viewer: CurrentViewer, kind: Named, name: Named) -> Response:
    now = viewer.backend.limits.unset(_kind(kind), name).limit
    return viewer.announce(f"{_whose(_kind(kind), name)}: {_said(now)}")


@router.post("/share-weights")
def set_weight(
    request: Request,
    viewer: CurrentViewer,
    *,
    user: Annotated[str, Form(max_length=255, pattern=r"^[^\x00]*$")] = "",
    weight: Annotated[str, Form(max_length=32, pattern=r"^[^\x00]*$")] = "",
) -> Response:
    try:
        number = float(weight)
    except ValueError:
        raise BadInputError(f"weight: {weight!r} is no number; write a number above 0, such as 2 or 0.5") from None
    note_weight(request, number, user=user.strip())
    viewer.backend.weights.set(user.strip(), number)
    return viewer.announce(f"{user.strip()} has share weight {number:g}")


@router.post("/share-weights/{user}/unset")
def unset_weight(viewer: CurrentViewer, user: Named) -> Response:
    now = viewer.backend.weights.unset(user).share_weight
    return viewer.announce(f"{user} has share weight {1 if now is None else now.weight:g}")


def _label_of_amount(found: re.Match[str]) -> str:
    """Return what the form calls the field of an amount."""
    return f"{_WHEN[found[1]]}, {_HEADINGS[found[2]]}: "


def _kind(text: str) -> Limited:
    try:
        return Limited(text)
    except ValueError:
        raise BadInputError(f"kind: {text!r} has no limits; use one of {', '.join(Limited)}") from None


def _whose(kind: Limited, name: str) -> str:
    return f"Each other {kind.spelled}" if name == "*" else f"{kind.spelled.capitalize()} {name}"


def _said(limit: SiteLimitView | None) -> str:
    return "no limit of its own" if limit is None else limit.sentence
