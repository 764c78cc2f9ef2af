"""The engine behind the store, with its tables at the newest migration, and the transactions on it."""

import importlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from muster.core.values.errors import (
    BadInputError,
    DatabaseAwayError,
    OutcomeUnknownError,
    SettingsError,
    StoreUnavailableError,
)
from muster.store.database import postgresql
from muster.store.database.fence import check_fence

HEAD = "0032"
# Many statements of one reader see the database as of one moment; SQLite's readers always do.
_READING: Mapping[str, Mapping[str, Any]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}
_WRITING: Mapping[str, Mapping[str, Any]] = {
    "sqlite": {"writing": True},
    "postgresql": {"isolation_level": "READ COMMITTED"},
}
_REVISION = sa.text("SELECT version_num FROM alembic_version")
_MIGRATION_LOCK = 0x6D75_7374_6D69_6772
_UNOPENED = "unable to open database file"
_WRITABLE = "see the permissions {where}, and whether its disk is mounted read-only"
_PASSING = (
    ("disk is full", "free space on the disk {where}"),
    ("No space left on device", "free space on the disk {where}"),
    ("disk I/O error", "see the disk {where}: it may be full or broken"),
    ("readonly database", _WRITABLE),
    (_UNOPENED, _WRITABLE),
    ("database is locked", "another program holds it open for writing: end that"),
)
# How long a connection to SQLite waits for another one's lock, and how often it polls if SQLite does not wait.
_BUSY_S = 30
_BUSY_LOOK_S = 0.05
# Of a database in memory, nothing is logged.
_NEED_NO_CHANGE = {"wal", "memory"}
_FAULTS_OF_OURS = (sa.exc.IntegrityError, sa.exc.ProgrammingError, sa.exc.NotSupportedError)


def open_engine(url: str) -> sa.Engine:
    """Raises SettingsError if the database cannot be opened or is a newer Muster's, DatabaseAwayError if it is away."""
    engine = new_engine(url)
    try:
        if engine.dialect.name == "sqlite":
            _prepare_sqlite(engine)
        if _revision(engine) != HEAD:
            _migrate(engine)
    except (sa.exc.DatabaseError, OSError) as error:
        engine.dispose()
        raise cannot_be_opened(engine, error) from None
    return engine


def new_engine(url: str) -> sa.Engine:
    """Return an engine that has not connected yet. Raises SettingsError if the URL names no usable database."""
    parsed = parsed_url(url)
    if parsed.drivername == "sqlite":
        return sa.create_engine(parsed, json_deserializer=_from_json, json_serializer=_to_json)
    try:
        engine = sa.create_engine(postgresql.with_defaults(parsed), pool_pre_ping=True, json_serializer=_to_json)
    except ImportError as error:
        raise SettingsError(
            f"database {shown(parsed)} cannot be opened: its driver cannot be loaded ({one_line(error)});"
            " pip install 'psycopg[binary]' into Muster's environment"
        ) from None
    sa.event.listen(engine, "connect", postgresql.note_history)
    return engine


def parsed_url(url: str) -> sa.URL:
    """Return the parts of a URL. Raises SettingsError if it is none, or no SQLite's or PostgreSQL's."""
    examples = "write sqlite:////PATH or postgresql://USER:PASSWORD@HOST/NAME"
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise SettingsError(f"database: the URL cannot be opened: {error}; {examples}") from None
    if parsed.drivername not in {"sqlite", "postgresql", postgresql.DRIVER}:
        raise SettingsError(f"database: a URL of {parsed.drivername} cannot be opened; {examples}")
    return parsed


class JsonText(str):
    """A text that is JSON already: a column of JSON takes it as it is."""

    __slots__ = ()


def _to_json(value: Any) -> str:  # noqa: ANN401 - whatever a column is to hold
    return value if isinstance(value, JsonText) else json.dumps(value)


def _from_json(text: str) -> Any:  # noqa: ANN401 - whatever the column holds
    """Return a column's value. Most are empty, which costs less to see than to parse."""
    match text:
        case "[]":
            return []
        case "{}":
            return {}
    return json.loads(text)


def cannot_be_opened(engine: sa.Engine, error: Exception) -> SettingsError | DatabaseAwayError:
    """Return the error as one line; a DatabaseAwayError for what may be over without a change of the settings."""
    cause, code = _cause_and_code(error)
    is_sqlite = engine.dialect.name == "sqlite"
    passing = _passing_remedy(engine, cause)
    remedy = passing or ("mend `database` or `state_dir`" if is_sqlite else postgresql.remedy(cause, code))
    kind = DatabaseAwayError if passing or not (is_sqlite or postgresql.is_wrong(cause, code)) else SettingsError
    return kind(f"database {shown(engine.url)} cannot be opened: {cause}; {remedy}")


def unavailable(engine: sa.Engine, error: Exception) -> StoreUnavailableError:
    cause, code = _cause_and_code(error)
    remedy = _passing_remedy(engine, cause) or postgresql.remedy(cause, code, "see to it, then try again")
    return StoreUnavailableError(f"database {shown(engine.url)} failed: {cause}; {remedy}")


def _unknown(engine: sa.Engine, error: Exception) -> OutcomeUnknownError:
    cause, _ = _cause_and_code(error)
    return OutcomeUnknownError(
        f"database {shown(engine.url)} was lost while it made a change: {cause};"
        " the change may have been made all the same: look before you try again"
    )


def _cause_and_code(error: Exception) -> tuple[str, str]:
    said = getattr(error, "orig", None) or error
    return one_line(said), postgresql.code_of(said)


def _passing_remedy(engine: sa.Engine, cause: str) -> str:
    """Return what helps against a trouble of the machine that holds the database; empty for any other."""
    path = Path(engine.url.database or "")
    is_sqlite = engine.dialect.name == "sqlite"
    here = f"of {path.parent}" if is_sqlite else "of the server"
    # Of a file that is there, it is the log beside it that cannot be written.
    is_there = is_sqlite and path.is_file()
    remedies = (remedy for part, remedy in _PASSING if part in cause and (is_there or part != _UNOPENED))
    return next((remedy.format(where=here) for remedy in remedies), "")


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that sees one moment. Raises StoreUnavailableError when the database fails."""
    with _transaction(engine, _READING) as connection:
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a transaction that is committed whole or not at all.

    Raises StoreUnavailableError when the database fails, as an OutcomeUnknownError where it may have committed before,
    BadInputError for a value that it does not take, and QueueLockLostError where this thread works the queue and a
    newer worker has begun.
    """
    with _transaction(engine, _WRITING) as connection:
        check_fence(engine, connection)
        yield connection


@contextmanager
def _transaction(engine: sa.Engine, options: Mapping[str, Mapping[str, Any]]) -> Iterator[sa.Connection]:
    commits = False
    try:
        with (
            engine.connect() as connection,
            _with_options(connection, options[engine.dialect.name]).begin(),
        ):
            yield connection
            commits = options is _WRITING
    except sa.exc.DataError as error:
        cause = one_line(error.orig or error)
        raise BadInputError(f"the database does not take a value: {cause}; write another") from error
    except (sa.exc.DatabaseError, sa.exc.TimeoutError) as error:
        if isinstance(error, _FAULTS_OF_OURS) and not postgresql.is_of_the_server(*_cause_and_code(error)):
            raise
        # What a server that is still there answers to a COMMIT is that it did not.
        is_lost = isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
        raise (_unknown if commits and is_lost else unavailable)(engine, error) from error


def _with_options(connection: sa.Connection, options: Mapping[str, Any]) -> sa.Connection:
    return connection.execution_options(**options) if options else connection


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    summed: Iterable[str] = (),
) -> None:
    """Insert rows of the same columns; one whose primary key is taken replaces that row, but for what is summed."""
    if rows:
        connection.execute(_upsert(connection.dialect.name, table, tuple(rows[0]), frozenset(summed)), rows)


# Statements are made once: making one costs more than running it.
@cache
def _upsert(dialect: str, table: sa.Table, columns: tuple[str, ...], summed: frozenset[str]) -> sa.Executable:
    # By name, since a dialect that is not used costs a short command a tenth of its time.
    statement = importlib.import_module(f"sqlalchemy.dialects.{dialect}").insert(table)
    new = statement.excluded
    changes = {name: table.c[name] + new[name] if name in summed else new[name] for name in columns}
    made: sa.Executable = statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changes)
    return made


def shown(url: sa.URL) -> str:
    """Return the URL without anything that may hold a secret."""
    query = {name: value for name, value in url.query.items() if name in {"host", "port"}}
    return url.set(query=query).render_as_string(hide_password=True)


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Let us begin transactions: the driver's would begin a write with a read lock, and two of those deadlock."""
    path = engine.url.database
    if path and path != ":memory:":
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite itself would let everybody read a new one, and gives its log the same mode. It says what is wrong if
        # this cannot be.
        with suppress(OSError):
            Path(path).touch(mode=0o600, exist_ok=False)

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        for pragma in (f"busy_timeout = {_BUSY_S * 1000}", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        _keep_write_ahead_log(connection)

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writing: Any = connection.get_execution_options().get("writing")
        statement = "BEGIN IMMEDIATE" if writing else "BEGIN"
        driver: Any = connection.connection.driver_connection
        try:
            # By the driver itself: SQLAlchemy takes longer to begin than to read a row.
            driver.execute(statement)
        except sqlite3.Error as error:
            raise sa.exc.DBAPIError.instance(statement, None, error, sqlite3.Error) from error


def _keep_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Let the database keep a write-ahead log; while another program creates it, wait as for any other lock.

    SQLite itself does not wait here: it refuses the change at once while another connection writes.
    """
    deadline = time.monotonic() + _BUSY_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] not in _NEED_NO_CHANGE:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_LOOK_S)


def _revision(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        try:
            return connection.execute(_REVISION).scalar()
        except sa.exc.DatabaseError:
            # Each process asks for the revision first of all, and nearly always the table is there.
            connection.rollback()
            if sa.inspect(connection).has_table("alembic_version"):
                raise
            return None


def _migrate(engine: sa.Engine) -> None:
    # Here, since Alembic's import costs more than the rest of a short command.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(resources.files("muster.store") / "migrations"))
    with engine.execution_options(**_WRITING[engine.dialect.name]).connect() as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            # Another control node may open the database at the same time; SQLite lets one writer in anyway.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            found = _revision(engine)
            raise SettingsError(
                f"database {shown(engine.url)} was upgraded by a newer Muster (migration {found}, and this one knows"
                f" {HEAD}); update Muster, or restore the backup from before with `muster restore`"
            ) from error
