"""Numbers that only rise."""

import hashlib
import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from muster.store.database.tables import counters

# Made once: every write of the store increments a counter, and making a statement costs more than running it.
_VALUE = sa.select(counters.c.value).where(counters.c.name == sa.bindparam("counter"))
# SQLite lets one writer in at a time anyway.
_KEPT_VALUE = _VALUE.with_for_update(read=True)


def increment_counter(connection: sa.Connection, name: str, at_least: int = 1, *, step: int = 1) -> int:
    """Add `step` to the counter, or set it to `at_least` if that is more. Return its new value."""
    values = {"name": name, "value": at_least, "step": step, "at_least": at_least}
    connection.execute(_increment(connection.dialect.name), values)
    return value_of(connection, name)


def set_counter(connection: sa.Connection, name: str, value: int) -> None:
    """Set the counter, also to less than it is."""
    increment_counter(connection, name)
    connection.execute(sa.update(counters).where(counters.c.name == name).values(value=value))


def counted_alone(connection: sa.Connection, name: str, query: sa.Select[Any]) -> int:
    """Return what a query counts. Others who count by this counter wait until this transaction is over."""
    increment_counter(connection, name)
    return connection.execute(query).scalar() or 0


def increment_counters(connection: sa.Connection, amounts: Mapping[str, int]) -> None:
    """Increment each counter by its amount."""
    rows = [{"name": name, "value": n, "step": n, "at_least": n} for name, n in sorted(amounts.items())]
    if rows:
        connection.execute(_increment(connection.dialect.name), rows)


def value_of(connection: sa.Connection, name: str) -> int:
    return connection.execute(_VALUE, {"counter": name}).scalar() or 0


def kept_value_of(connection: sa.Connection, name: str) -> int:
    """Return the counter's value, which nobody changes before this transaction is over."""
    return connection.execute(_KEPT_VALUE, {"counter": name}).scalar() or 0


def number_of(text: str) -> int:
    """Return a number that fits a counter and differs between texts; 0 for an empty one."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1 if text else 0


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
    stepped = counters.c.value + sa.bindparam("step", type_=sa.BigInteger)
    at_least = sa.bindparam("at_least", type_=sa.BigInteger)
    higher = sa.case((stepped > at_least, stepped), else_=at_least)
    statement = importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(counters)
    inserted = statement.values(name=sa.bindparam("name"), value=sa.bindparam("value"))
    incremented_or_new: sa.Executable = inserted.on_conflict_do_update(
        index_elements=[counters.c.name], set_={"value": higher}
    )
    return incremented_or_new
