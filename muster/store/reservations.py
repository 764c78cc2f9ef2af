"""Reservations and maintenance windows in the database."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from muster.core.model.reservation import Reservation
from muster.core.values.errors import NameTakenError, NotFoundError
from muster.store.database.connection import reading, writing
from muster.store.database.counters import increment_counter
from muster.store.database.tables import reservations

# A counter that each new one raises.
_NUMBER = "reservations"
_AFTER = sa.select(reservations).where(reservations.c.ends_at > sa.bindparam("now"))


class Reservations:
    """A table of reservations, keyed by name."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, reservation: Reservation) -> None:
        """Raises NameTakenError."""
        with writing(self._engine) as connection:
            increment_counter(connection, _NUMBER)
            try:
                connection.execute(sa.insert(reservations).values(_row(reservation)))
            except sa.exc.IntegrityError:
                raise NameTakenError(
                    f"there is a reservation {reservation.name!r} already;"
                    f" choose another name, or `muster reservation rm {reservation.name}`"
                ) from None

    def remove(self, name: str) -> Reservation:
        """Remove a reservation and return it. Raises NotFoundError."""
        this = reservations.c.name == name
        with writing(self._engine) as connection:
            row = connection.execute(sa.select(reservations).where(this)).mappings().first()
            if row is None:
                raise NotFoundError(f"there is no reservation {name!r}; see `muster reservation ls --all`")
            connection.execute(sa.delete(reservations).where(this))
        return _reservation(row)

    def all(self) -> tuple[Reservation, ...]:
        """Return all reservations, also those that are over."""
        with reading(self._engine) as connection:
            return _selected(connection, sa.select(reservations))


def kept_reservations_after(connection: sa.Connection, now: float) -> tuple[Reservation, ...]:
    """Return the reservations that are not over yet. Nobody adds another one before this transaction is over."""
    increment_counter(connection, _NUMBER, 0, step=0)
    return reservations_after(connection, now)


def reservations_after(connection: sa.Connection, now: float) -> tuple[Reservation, ...]:
    """Return the reservations that are not over yet."""
    return _selected(connection, _AFTER, {"now": now})


def _selected(
    connection: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any] | None = None
) -> tuple[Reservation, ...]:
    rows = connection.execute(query, values).mappings()
    return tuple(sorted(map(_reservation, rows), key=lambda reservation: (reservation.begins_at, reservation.name)))


def _row(reservation: Reservation) -> dict[str, Any]:
    return {
        "name": reservation.name,
        "begins_at": reservation.begins_at,
        "ends_at": reservation.ends_at,
        "resource_group": reservation.resource_group,
        "agents": sorted(reservation.agents),
        "users": sorted(reservation.users),
        "projects": sorted(reservation.projects),
        "reason": reservation.reason,
    }


def _reservation(row: sa.RowMapping) -> Reservation:
    sets = {name: frozenset(row[name]) for name in ("agents", "users", "projects")}
    return Reservation(**{**row, **sets})
