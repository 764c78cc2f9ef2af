"""SQL statements that are compiled once for all stores of a test process, not once for each.

SQLAlchemy keeps compiled statements with their engine. Nearly every test opens a store of its own, and compiling took a
third of the CPU of tests that use one.
"""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_compiled: LRUCache[object, object] = LRUCache(1000)
_make = sa.Engine.__init__


def share_compiled_statements() -> None:
    """From now on, let all engines of this process share what they compile."""
    # A compiled statement is found by its dialect, of which each engine has one.
    patch = pytest.MonkeyPatch()
    patch.setattr(DefaultDialect, "__hash__", lambda dialect: hash(type(dialect)))
    patch.setattr(DefaultDialect, "__eq__", lambda one, other: one is other or _kind(one) == _kind(other))
    patch.setattr(sa.Engine, "__init__", _make_sharing)


def _kind(dialect: object) -> object:
    """Return what statements depend on, and how their results are read."""
    return type(dialect), getattr(dialect, "_json_deserializer", None)


def _make_sharing(engine: sa.Engine, *given: Any, **named: Any) -> None:
    _make(engine, *given, **named)
    # Not by an option of each connection, which costs as much as a small statement.
    engine._compiled_cache = _compiled  # type: ignore[assignment]
