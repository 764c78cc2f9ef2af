"""Ids by which agents tell databases apart that give them manifests for the same cluster.

A database that was put back has another id than before, and continues the one that it was: what goes on with the former
is not obeyed any more where something runs by the manifest of the latter.
"""

import secrets
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from muster.store.database.counters import increment_counter, set_counter, value_of, values_of

_OWN = "database"
_COUNT = "databases"
DATABASE_COUNTERS = (_OWN, _COUNT)
# Ids of any that fit a counter, and none is 0.
_MOST = (1 << 63) - 1


class DatabaseIds:
    """A reader of the ids, which seldom change."""

    def __init__(self) -> None:
        self._known: tuple[Mapping[str, int], tuple[str, ...]] = ({}, ())

    def read(self, connection: sa.Connection, counters: Mapping[str, int]) -> tuple[str, ...]:
        """Return the database's id, and then those of all that it continues; nothing before it has one.

        `counters` has the `DATABASE_COUNTERS`, read in the same transaction.
        """
        key = {name: counters[name] for name in DATABASE_COUNTERS}
        known, ids = self._known
        if known != key:
            ids = _ids(connection, key)
            self._known = (key, ids)
        return ids


def begin_database(connection: sa.Connection) -> None:
    """Give the database an id of its own; it continues those of before."""
    own = 1 + secrets.randbelow(_MOST)
    _add(connection, own)
    set_counter(connection, _OWN, own)


def continue_databases(connection: sa.Connection, ids: Collection[str]) -> None:
    """Record that the database continues those of these ids too."""
    known = _ids(connection, values_of(connection, DATABASE_COUNTERS))
    for id_ in sorted(set(ids) - set(known)):
        _add(connection, int(id_, 16))


def _add(connection: sa.Connection, number: int) -> None:
    set_counter(connection, _name(increment_counter(connection, _COUNT)), number)


def _ids(connection: sa.Connection, counters: Mapping[str, int]) -> tuple[str, ...]:
    own = counters[_OWN]
    if not own:
        return ()
    numbers = [value_of(connection, _name(place)) for place in range(counters[_COUNT], 0, -1)]
    return tuple(f"{number:016x}" for number in (own, *(number for number in numbers if number != own)))


def _name(place: int) -> str:
    return f"database {place}"
