"""A connection to SQLite that carries out the store's statements without most of SQLAlchemy's expense.

SQLAlchemy compiles each statement once, and converts parameters and columns. Its pools, events and cursors, which serve
any database, would cost a schedule more than all of its decisions. The store's tests hold that the statements do the
same on SQLAlchemy's own connections.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData

_Values = Mapping[str, Any]


class LeanConnection:
    """What the store needs of `sqlalchemy.Connection`, on one connection of an engine's driver."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.dialect = engine.dialect
        self.info: dict[str, str] = {}
        # The pool would close it with its wrapper.
        self._pooled = engine.raw_connection()
        self._driver: Any = self._pooled.driver_connection
        self._statements: dict[Any, _Statement] = {}

    @contextmanager
    def transaction(self, *, writes: bool) -> Iterator["LeanConnection"]:
        """Open a transaction that is committed whole or not at all."""
        self._driver.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            yield self
        except BaseException:
            # Also of a simulated kill, which is no Exception; raised again.
            self._driver.execute("ROLLBACK")
            raise
        self._driver.execute("COMMIT")

    def copied(self) -> sqlite3.Connection:
        """Return a copy of the database, as a backup has it."""
        copy = sqlite3.connect(":memory:")
        self._driver.backup(copy)
        return copy

    def replace_by(self, copy: sqlite3.Connection) -> None:
        """Put a copy in the place of the database."""
        copy.backup(self._driver)

    def execute(self, statement: Any, values: _Values | Sequence[_Values] | None = None) -> "_Result":
        """Carry out a statement, once for each of the values if there are several."""
        rows: Sequence[_Values] = [values] if isinstance(values, Mapping) else values or [{}]
        key = statement._generate_cache_key()
        names = tuple(rows[0])
        made = self._statements.get((key.key, names))
        if made is None:
            made = self._statements[key.key, names] = _Statement(statement, names, key, self.dialect)
        try:
            if len(rows) == 1:
                cursor = self._driver.execute(*made.bound(rows[0], key))
            else:
                cursor = self._driver.executemany(made.text, [made.bound(row, key)[1] for row in rows])
        except sqlite3.Error as error:
            raise sa.exc.DBAPIError.instance(made.text, None, error, sqlite3.Error) from error
        return _Result(made.columns, cursor)


class _Result(IteratorResult[Any]):
    def __init__(self, columns: SimpleResultMetaData, cursor: sqlite3.Cursor) -> None:
        super().__init__(columns, cursor)
        self.rowcount = cursor.rowcount


class _Statement:
    """A compiled statement, with what converts its parameters and its columns."""

    def __init__(self, statement: Any, names: Sequence[str], key: Any, dialect: sa.Dialect) -> None:
        self._compiled: Any = statement.compile(dialect=dialect, column_keys=list(names), cache_key=key)
        self.text: str = self._compiled.string
        self._has_lists = bool(self._compiled.post_compile_params)
        self._converts: Mapping[str, Callable[[Any], Any]] = self._compiled._bind_processors
        columns = self._compiled._result_columns
        converts = [column.type._cached_result_processor(dialect, None) for column in columns]
        self.columns = SimpleResultMetaData([column.keyname for column in columns], _processors=converts)

    def bound(self, values: _Values, key: Any) -> tuple[str, list[Any]]:
        """Return the text for these values, and its parameters in their order."""
        compiled, converts = self._compiled, self._converts
        given = compiled.construct_params(values, extracted_parameters=key.bindparams, _check=False)
        text, names = self.text, compiled.positiontup or ()
        if self._has_lists:
            # The text depends on how long the lists are.
            expanded = compiled._process_parameters_for_postcompile(given)
            text, names = expanded.statement, expanded.positiontup
            given, converts = given | expanded.additional_parameters, {**converts, **expanded.processors}
        return text, [converts[name](given[name]) if name in converts else given[name] for name in names]
