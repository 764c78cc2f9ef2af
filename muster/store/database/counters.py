"""Numbers that only rise."""

import importlib
from collections.abc import Mapping
from functools import cache

import sqlalchemy as sa

from muster.store.database.tables import counters

# Made once: every write of the store increments a counter, and making a statement costs more than running it.
_VALUE = sa.select(counters.c.value).where(counters.c.name == sa.bindparam("counter"))


def increment_counter(connection: sa.Connection, name: str, at_least: int = 1, *, step: int = 1) -> int:
    """Add `step` to the counter, or set it to `at_least` if that is more. Return its new value."""
    values = {"name": name, "value": at_least, "step": step, "at_least": at_least}
    connection.execute(_increment(connection.dialect.name), values)
    return value_of(connection, name)


def increment_if_unchanged(connection: sa.Connection, name: str, last: int, at_least: int) -> int | None:
    """Add 1 to the counter, or set it to `at_least` if that is more. Return its new value; None if it is not `last`.

    One that was never incremented is begun, whatever `last` is.
    """
    values = {"name": name, "value": at_least, "step": 1, "at_least": at_least, "last": last}
    changed = connection.execute(_increment_if_unchanged(connection.dialect.name), values).rowcount
    return value_of(connection, name) if changed else None


def increment_counters(connection: sa.Connection, amounts: Mapping[str, int]) -> None:
    """Increment each counter by its amount."""
    rows = [{"name": name, "value": n, "step": n, "at_least": n} for name, n in sorted(amounts.items())]
    if rows:
        connection.execute(_increment(connection.dialect.name), rows)


def value_of(connection: sa.Connection, name: str) -> int:
    return connection.execute(_VALUE, {"counter": name}).scalar() or 0


def values_of(connection: sa.Connection, names: tuple[str, ...]) -> dict[str, int]:
    """Return counters by name; one that was never incremented is 0."""
    found = connection.execute(_values(names)).all()
    return dict.fromkeys(names, 0) | {row.name: row.value for row in found}


@cache
def _values(names: tuple[str, ...]) -> sa.Executable:
    """Return the statement that reads these counters."""
    # No list, since SQLAlchemy writes a statement with a list anew each time.
    statement: sa.Executable = sa.select(counters).where(sa.or_(*(counters.c.name == name for name in names)))
    return statement


@cache
def _increment(dialect: str) -> sa.Executable:
    """Return the statement that increments a counter in this dialect."""
    return _incremented_where(dialect, None)


@cache
def _increment_if_unchanged(dialect: str) -> sa.Executable:
    """Return the statement that increments a counter that is `last`, or new, in this dialect."""
    unchanged = _incremented_where(dialect, counters.c.value == sa.bindparam("last", type_=sa.BigInteger))
    # SQLAlchemy forgets the number of rows of an INSERT otherwise.
    return unchanged.execution_options(preserve_rowcount=True)


def _incremented_where(dialect: str, condition: sa.ColumnElement[bool] | None) -> sa.Executable:
    stepped = counters.c.value + sa.bindparam("step", type_=sa.BigInteger)
    at_least = sa.bindparam("at_least", type_=sa.BigInteger)
    higher = sa.case((stepped > at_least, stepped), else_=at_least)
    statement = importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(counters)
    inserted = statement.values(name=sa.bindparam("name"), value=sa.bindparam("value"))
    incremented_or_new: sa.Executable = inserted.on_conflict_do_update(
        index_elements=[counters.c.name], set_={"value": higher}, where=condition
    )
    return incremented_or_new
