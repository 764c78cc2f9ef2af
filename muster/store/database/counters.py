"""Numbers that only rise."""

import sqlalchemy as sa

from muster.store.database.connection import upsert
from muster.store.database.tables import counters


def raised(connection: sa.Connection, name: str, at_least: int = 1, *, step: int = 1) -> int:
    """The counter's new value: `step` more than before, or `at_least`."""
    stepped = counters.c.value + step
    higher = sa.case((stepped > at_least, stepped), else_=at_least)
    upsert(connection, counters, [{"name": name, "value": at_least}], {"value": higher})
    return value_of(connection, name)


def value_of(connection: sa.Connection, name: str) -> int:
    return connection.execute(sa.select(counters.c.value).where(counters.c.name == name)).scalar() or 0
