"""`/reservations`: agents set aside for a time; administrators make reservations, and take them back."""

import time
from typing import Annotated

from fastapi import APIRouter, Form, Path, Request, Response

from muster.service.agents.visible_reservations import ReservationRequest
from muster.web.api.requests import note_content, note_name
from muster.web.viewer import CurrentViewer

router = APIRouter(prefix="/reservations", include_in_schema=False)
Typed = Annotated[str, Form(max_length=1000, pattern=r"^[^\x00]*$")]


@router.get("")
def reservations(viewer: CurrentViewer) -> Response:
    return viewer.page(
        "reservations.html",
        reservations=viewer.backend.reservations.all().items,
        groups=viewer.backend.resources.group_names(),
        now=time.time(),
    )


@router.post("")
def reserve(
    request: Request,
    viewer: CurrentViewer,
    *,
    name: Typed = "",
    begin: Typed = "",
    end: Typed = "",
    agents: Typed = "",
    group: Typed = "",
    users: Typed = "",
    projects: Typed = "",
    reason: Typed = "",
) -> Response:
    note_name(request, name)
    made = viewer.backend.reservations.create(
        ReservationRequest(
            name.strip(),
            begin.strip() or "now",
            end.strip(),
            _names(agents),
            group.strip() or None,
            _names(users),
            _names(projects),
            reason,
        )
    )
    note_content(request, after=made)
    names = ", ".join(made.running_into)
    return viewer.announce(f"{made.name} is reserved{f'; it may still be in use by {names}' if names else ''}")


@router.post("/{name}/remove")
def remove(
    request: Request, viewer: CurrentViewer, name: Annotated[str, Path(max_length=255, pattern=r"^[^\x00]*$")]
) -> Response:
    note_content(request, before=viewer.backend.reservations.remove(name))
    return viewer.announce(f"{name} is taken back")


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
