"""SQL statements that are compiled once for all stores of a test process, not once for each.

SQLAlchemy keeps compiled statements with their engine. Nearly every test opens a store of its own, and compiling took a
third of the CPU of tests that use one.
"""

import pytest
import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.util import LRUCache

_compiled: LRUCache[object, object] = LRUCache(1000)


def share_compiled_statements() -> None:
    """From now on, let all engines of this process share what they compile."""
    # A compiled statement is found by its dialect, of which each engine has one.
    patch = pytest.MonkeyPatch()
    patch.setattr(DefaultDialect, "__hash__", lambda dialect: hash(_kind(dialect)))
    patch.setattr(DefaultDialect, "__eq__", lambda one, other: _kind(one) == _kind(other))
    sa.event.listen(sa.Engine, "engine_connect", _use_shared)


def _kind(dialect: object) -> object:
    """Return what statements depend on, and how their results are read."""
    return type(dialect), getattr(dialect, "_json_deserializer", None)


def _use_shared(connection: sa.Connection) -> None:
    connection.execution_options(compiled_cache=_compiled)
