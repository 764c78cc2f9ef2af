"""`/api/v1/reservations`: agents set aside for a time, for administrators."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from muster.service.agents.views import MadeReservationView, ReservationsView, ReservationView
from muster.service.agents.visible_reservations import ReservationRequest
from muster.web.api import models
from muster.web.api.requests import note_content, reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/reservations", tags=["agents"])
Name = Annotated[str, Path(description="a reservation's name", max_length=255, pattern=r"^[^\x00]*$")]


@router.get("", response_model=ReservationsView, responses=answers(), summary="List reservations")
def list_reservations(backend: Backend) -> Response:
    """List reservations and maintenance windows, also those that are over."""
    return reply(backend.reservations.all())


@router.post("/{reservation}", status_code=201, response_model=MadeReservationView, responses=answers(404, 409))
def reserve(request: Request, backend: Backend, reservation: Name, body: models.ReserveRequest) -> Response:
    """Set agents aside for users and projects; for nobody, it is a maintenance window."""
    made = backend.reservations.create(ReservationRequest(reservation, **body.model_dump()))
    note_content(request, after=made)
    return reply(made, 201)


@router.delete("/{reservation}", response_model=ReservationView, responses=answers(404), summary="Take it back")
def remove(request: Request, backend: Backend, reservation: Name) -> Response:
    """Take a reservation back."""
    removed = backend.reservations.remove(reservation)
    note_content(request, before=removed)
    return reply(removed)
