"""Copies of a whole database: taken while everything runs, and put in the place of another."""

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from muster.core.values.errors import (
    MusterError,
    OutcomeUnknownError,
    SettingsError,
    StoreUnavailableError,
)
from muster.private_directories import private_directory
from muster.store.database import postgresql
from muster.store.database.connection import HEAD, cannot_be_opened, new_engine, one_line
from muster.store.database.settling import settled

# A database with rows in one of these is in use. Agents and counters do not count: they come by themselves.
_OWNED = (
    *("sessions", "tokens", "secrets", "folders", "images", "reservations"),
    *("limit_overrides", "weight_overrides", "presets"),
)
_VERSION = "alembic_version"


# What libpq calls secret, but for the password.
_HIDDEN = ("sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_SERVICE = "muster"
_ERROR = re.compile(r"\b(ERROR|FATAL|error):")
# The exit code of psql where it has lost the server.
_LOST = 2


class CopyError(MusterError):
    """The database cannot be copied."""


class _ServerLostError(CopyError):
    """The server was lost while a copy was put in its place."""


class DatabaseCopies(Protocol):
    """A way to copy one database, which is opened without changing its tables."""

    @property
    def kind(self) -> str:
        """Return `sqlite` or `postgresql`: a copy of one cannot replace the other."""

    @property
    def is_live(self) -> bool:
        """Return whether it holds anything that a user made, or cannot be read.

        Raises SettingsError and StoreUnavailableError.
        """

    def users(self) -> Sequence[str]:
        """Return the names of other processes of Muster that are connected to it, as far as it knows."""

    def revision(self) -> str:
        """Return its migration. Raises SettingsError if there is nothing of Muster in it."""

    def save(self, path: Path) -> None:
        """Write a copy as of one moment; nobody has to wait. Raises CopyError."""

    def replace_by(self, path: Path, aside: Path, note: Sequence[str]) -> None:
        """Put the copy in its place, whole or not at all; keep what was there in the directory.

        The statements of `note` are carried out in it before anybody sees it. Raises CopyError, and OutcomeUnknownError
        where the server is lost for long.
        """


def copies_of(url: str) -> DatabaseCopies:
    """Raises SettingsError."""
    engine = new_engine(url)
    return _SqliteCopies(engine) if engine.dialect.name == "sqlite" else _PostgresqlCopies(engine)


def is_newer(revision: str) -> bool:
    """Tell whether a migration is one that this Muster lacks."""
    return revision > HEAD


def keep_aside(path: Path, aside: Path) -> None:
    """Keep a file in that directory as well, before another one takes its place: linked, or else copied."""
    aside.mkdir(mode=0o700, exist_ok=True)
    try:
        os.link(path, aside / path.name)
    except OSError:
        shutil.copy2(path, aside / path.name)


class _Copies:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    @property
    def kind(self) -> str:
        return self._engine.dialect.name

    def revision(self) -> str:
        with self._connected() as connection:
            found: str | None = None
            if sa.inspect(connection).has_table(_VERSION):
                found = connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(_VERSION))).scalar()
        if found is None:
            raise SettingsError("there is no database of Muster yet; see `database` and `state_dir` in the settings")
        return found

    def _has_rows(self) -> bool:
        with self._connected() as connection:
            there = set(sa.inspect(connection).get_table_names())
            return any(
                connection.execute(sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1)).first() is not None
                for name in _OWNED
                if name in there
            )

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except sa.exc.DatabaseError as error:
            raise cannot_be_opened(self._engine, error) from None
        finally:
            # A file that is replaced must not be open.
            self._engine.dispose()


class _SqliteCopies(_Copies):
    @property
    def _path(self) -> Path:
        return Path(self._engine.url.database or "")

    @property
    def is_live(self) -> bool:
        if not self._path.exists():
            return False
        try:
            return self._has_rows()
        except (SettingsError, StoreUnavailableError):
            return True

    def users(self) -> Sequence[str]:
        return ()

    def revision(self) -> str:
        if not self._path.is_file():
            # Opening it would make an empty one.
            raise SettingsError(f"there is no database at {self._path}; see `database` and `state_dir` in the settings")
        return super().revision()

    def save(self, path: Path) -> None:
        path.touch(mode=0o600)
        try:
            with (
                closing(sqlite3.connect(f"{self._path.resolve().as_uri()}?mode=rw", uri=True)) as source,
                closing(sqlite3.connect(path)) as target,
            ):
                # In one step: with small steps, each write by others would restart the copy.
                source.backup(target)
                # One file, without a log beside it.
                target.execute("PRAGMA journal_mode = DELETE")
            _check_sqlite(path)
        except sqlite3.Error as error:
            raise CopyError(f"database {self._path} cannot be copied to {path.parent}: {one_line(error)}") from None

    def replace_by(self, path: Path, aside: Path, note: Sequence[str]) -> None:
        _check_sqlite(path)
        _carry_out(note, path)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as undo:
            # Beside it first: the database may be on another disk than the copy, and that one full.
            new = self._path.with_name(f"{self._path.name}.restored")
            undo.callback(new.unlink, missing_ok=True)
            shutil.move(path, new)
            new.chmod(0o600)
            # A name that survives a loss of power before what it names is a database that is damaged.
            _sync(new)
            _empty_log(self._path)
            for name in (f"{self._path.name}-wal", f"{self._path.name}-shm"):
                if (old := self._path.with_name(name)).exists():
                    aside.mkdir(mode=0o700, exist_ok=True)
                    shutil.move(old, aside / name)
                    undo.callback(shutil.move, aside / name, old)
            if self._path.exists():
                undo.callback((aside / self._path.name).unlink, missing_ok=True)
                keep_aside(self._path, aside)
            # At each moment there is a database: whatever begins without one makes an empty one, and what runs is lost.
            new.replace(self._path)
            undo.pop_all()
            _sync(self._path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _empty_log(path: Path) -> None:
    """Put what is in the database's log into the database itself, as far as that is not damaged."""
    if path.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _check_sqlite(path: Path) -> None:
    try:
        with closing(sqlite3.connect(path)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        raise CopyError(f"the copy of the database is damaged: {one_line(error)}") from None
    if found != ("ok",):
        raise CopyError(f"the copy of the database is damaged: {found[0]}")


def _carry_out(statements: Sequence[str], path: Path) -> None:
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)
    except sqlite3.Error as error:
        raise CopyError(f"the copy of the database is damaged: {one_line(error)}") from None


class _PostgresqlCopies(_Copies):
    """A way to copy by PostgreSQL's programs. No user sees in their arguments what is secret of the connection."""

    @property
    def is_live(self) -> bool:
        return self._has_rows()

    def users(self) -> Sequence[str]:
        query = sa.text(
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE :muster AND application_name <> :own ORDER BY application_name"
        )
        with self._connected() as connection:
            values = {"muster": f"{postgresql.PREFIX}%", "own": postgresql.application_name()}
            return connection.execute(query, values).scalars().all()

    def save(self, path: Path) -> None:
        tables = [f'--table="{name}"' for name in self._tables()]
        options = ("--format=plain", "--encoding=UTF8", "--no-owner", "--no-privileges", f"--file={path}")
        path.touch(mode=0o600)
        self._run("pg_dump", *options, *tables)

    def replace_by(self, path: Path, aside: Path, note: Sequence[str]) -> None:
        if self._tables():
            aside.mkdir(mode=0o700, exist_ok=True)
            self.save(aside / "database.sql")
        drops = path.with_name("drops.sql")
        drops.write_text("".join(f'DROP TABLE "{name}" CASCADE;\n' for name in self._tables()), encoding="utf-8")
        noted = path.with_name("note.sql")
        # A dump leaves its transaction without a search path.
        lines = ("SET search_path TO DEFAULT", *note)
        noted.write_text("".join(f"{line};\n" for line in lines), encoding="utf-8")
        # All files in one transaction: the former state stays if anything fails.
        options = ("--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null")
        former = self._version_table()

        def put(may_be_there: bool) -> None:
            try:
                if may_be_there and self._version_table() != former:
                    return
                self._run("psql", *options, *(f"--file={file}" for file in (drops, path, noted)))
            except _ServerLostError as error:
                raise OutcomeUnknownError(f"{error}; it is not known whether all was restored: restore again") from None

        settled(put)

    def _version_table(self) -> int | None:
        """Return the oid of the table of migrations, which each restore makes anew; None without one.

        Wait while it is being replaced.
        """
        with self._connected() as connection:
            if sa.inspect(connection).has_table(_VERSION):
                connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(_VERSION)))
            found: int | None = connection.execute(sa.text(f"SELECT to_regclass('{_VERSION}')::oid")).scalar()
            return found

    def _tables(self) -> Sequence[str]:
        with self._connected() as connection:
            return sorted(sa.inspect(connection).get_table_names())

    def _run(self, program: str, *arguments: str) -> None:
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - it is there where PostgreSQL is used

        if shutil.which(program) is None:
            raise CopyError(
                f"{program} is not installed; install PostgreSQL's client programs of the server's version or newer"
                " (Debian: apt-get install postgresql-client)"
            )
        _, given = self._engine.dialect.create_connect_args(self._engine.url)
        parameters: dict[str, Any] = dict(given)
        password = parameters.pop("password", None)
        # Of the driver alone.
        parameters.pop("context", None)
        # Without our timeouts, which would cut off a long copy.
        # What is only noticed comes before what is wrong.
        parameters["options"] = f"{postgresql.given_options(parameters['options'])} -c client_min_messages=warning"
        environment = {**os.environ, **({} if password is None else {"PGPASSWORD": str(password)})}
        with ExitStack() as stack:
            if hidden := {name: parameters.pop(name) for name in _HIDDEN if name in parameters}:
                if "service" in parameters:
                    name = next(iter(hidden))
                    raise CopyError(
                        f"database: {name} and service are both given; write {name} into the service's file"
                    )
                # For these there is no variable.
                directory = stack.enter_context(private_directory())
                environment["PGSERVICEFILE"] = str(_service_file(directory, hidden))
                parameters["service"] = _SERVICE
            command = [program, "--no-password", f"--dbname={make_conninfo(**parameters)}", *arguments]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            kind = _ServerLostError if program == "psql" and done.returncode == _LOST else CopyError
            raise kind(f"{program} failed: {_cause(done.stderr, program) or f'exit code {done.returncode}'}")


def _service_file(directory: Path, parameters: Mapping[str, str]) -> Path:
    """Write parameters of a connection to a file of libpq, in a directory that only this user reads."""
    path = directory / "services"
    path.write_text("\n".join([f"[{_SERVICE}]", *map("=".join, parameters.items()), ""]), encoding="utf-8")
    return path


def _cause(said: str, program: str) -> str:
    """Return the first error that a client program of PostgreSQL printed; notices may come before it."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line)]
    return next(iter(errors or lines), "").removeprefix(f"{program}: ")
