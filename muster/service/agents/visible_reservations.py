"""Reservations as administrators make and take them back, in the pages and by the API."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.model.reservation import Reservation
from muster.core.model.token import Token
from muster.core.values.errors import BadInputError
from muster.service.agents.reservations import Reservations, window
from muster.service.agents.views import MadeReservationView, ReservationsView, ReservationView
from muster.service.identity.permissions import check_admin


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A reservation as it was written: times such as 2026-11-22T08:00, 08:00 or +2h."""

    name: str
    begin: str
    end: str
    agents: Sequence[str] = ()
    resource_group: str | None = None
    users: Sequence[str] = ()
    projects: Sequence[str] = ()
    reason: str = ""


class AdministratorsReservations:
    """The reservations of the cluster for a token. Methods raise ScopeError for all but administrators."""

    def __init__(self, reservations: Reservations, token: Token) -> None:
        self._reservations = reservations
        self._token = token

    def all(self) -> ReservationsView:
        """Return all reservations, also those that are over."""
        check_admin(self._token)
        return ReservationsView(items=[ReservationView.of(one) for one in self._reservations.all()])

    def create(self, request: ReservationRequest) -> MadeReservationView:
        """Return the reservation, with the sessions that may run into it. Raises BadInputError and NameTakenError."""
        check_admin(self._token)
        if request.agents and request.resource_group is not None:
            raise BadInputError("resource_group: agents are named already; give either agents or a group")
        begins_at, ends_at = window(request.begin, request.end, time.time())
        reservation = Reservation(
            name=request.name,
            begins_at=begins_at,
            ends_at=ends_at,
            resource_group=request.resource_group,
            agents=frozenset(request.agents),
            users=frozenset(request.users),
            projects=frozenset(request.projects),
            reason=request.reason.strip() or f"made by {self._token.user}",
        )
        running_into = self._reservations.create(reservation)
        return MadeReservationView(
            **dict(ReservationView.of(reservation)), running_into=[session.name for session in running_into]
        )

    def remove(self, name: str) -> ReservationView:
        """Take a reservation back and return it. Raises NotFoundError."""
        check_admin(self._token)
        return ReservationView.of(self._reservations.remove(name))
