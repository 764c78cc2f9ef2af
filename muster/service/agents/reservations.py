"""Agents set aside for a time: made, listed, taken back."""

import time

from muster.core.model.reservation import Reservation
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.spec.session_spec import NAME_PATTERN
from muster.core.values.errors import BadInputError
from muster.core.values.units import local_time, parse_moment, timestamp
from muster.service.agents.agents import named_agents
from muster.service.wake import wake
from muster.settings import Settings
from muster.store.store import Store


def window(begin: str, end: str, now: float) -> tuple[float, float]:
    """Return both as seconds since the epoch, as `now` is. An `end` that is relative counts from the beginning.

    Raises BadInputError.
    """
    begins_at = _moment("--begin", begin, now)
    return begins_at, _moment("--end", end, begins_at)


def _moment(option: str, text: str, since: float) -> float:
    try:
        return parse_moment(text, local_time(since))
    except ValueError as error:
        raise BadInputError(f"{option}: {error}; write 2026-11-22T08:00, 08:00 or +2h") from None


class Reservations:
    """The reservations of the cluster: listed, made, taken back."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def all(self) -> list[Reservation]:
        """Return all of them, also those that are over."""
        return list(self._store.reservations.all())

    def create(self, reservation: Reservation) -> list[Session]:
        """Return the sessions that run now and may run into it. Raises BadInputError before anything is changed."""
        _check(reservation, self._store.snapshot(time.time()))
        self._store.reservations.add(reservation)
        wake(self._settings, self._store)
        # Only from now on is no session placed any more that may run into it.
        return _running_into(reservation, self._store.snapshot(time.time()))

    def remove(self, name: str) -> Reservation:
        """Take a reservation back and return it. Raises NotFoundError."""
        removed = self._store.reservations.remove(name)
        wake(self._settings, self._store)
        return removed


def _check(reservation: Reservation, snapshot: Snapshot) -> None:
    if not NAME_PATTERN.fullmatch(reservation.name):
        raise BadInputError(
            f"NAME: {reservation.name!r} is no name; write up to 63 letters, digits and _.-, a letter or digit first"
        )
    named_agents(snapshot, sorted(reservation.agents))
    groups = {agent.resource_group for agent in snapshot.agents}
    if reservation.resource_group is not None and reservation.resource_group not in groups:
        raise BadInputError(f"--group: there is no resource group {reservation.resource_group}; see `muster agents`")
    if reservation.ends_at <= max(reservation.begins_at, snapshot.now):
        wrong = "is over already" if reservation.begins_at < reservation.ends_at else "is not after its begin"
        raise BadInputError(f"--end: {timestamp(reservation.ends_at)} {wrong}; write a later time")


def _running_into(reservation: Reservation, snapshot: Snapshot) -> list[Session]:
    # Here, since importing the scheduler would be most of what listing reservations costs.
    from muster.core.scheduling.future import end_of  # noqa: PLC0415

    covered = {agent.id for agent in snapshot.agents if reservation.covers(agent.id, agent.resource_group)}
    return [
        session
        for session in snapshot.placed
        if covered.intersection(session.agents)
        and not reservation.admits(session.owner, session.spec.project)
        and end_of(session, snapshot.now) > reservation.begins_at
    ]
