"""The engine behind the store, with its tables at the newest migration."""

import sqlite3
from importlib import resources
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from muster.core.errors import SettingsError

HEAD = "0001"


def open_engine(url: str) -> sa.Engine:
    """Raises SettingsError when the database cannot be opened, or is a newer Muster's."""
    try:
        engine = sa.create_engine(url)
        if engine.dialect.name == "sqlite":
            _prepare_sqlite(engine)
        if _revision(engine) != HEAD:
            _migrate(engine)
    except (sa.exc.DatabaseError, sa.exc.ArgumentError, OSError) as error:
        cause = getattr(error, "orig", None) or error
        raise SettingsError(f"database {url} cannot be opened: {cause}; mend `database` or `state_dir`") from None
    return engine


def _prepare_sqlite(engine: sa.Engine) -> None:
    """Transactions of our own making: the driver's would begin a write with a read lock, and two of those deadlock."""
    path = engine.url.database
    if path and path != ":memory:":
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "busy_timeout = 30000"):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        writing: Any = connection.get_execution_options().get("writing")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def _revision(engine: sa.Engine) -> str | None:
    if not sa.inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(engine: sa.Engine) -> None:
    # Here, since Alembic's import costs more than the rest of a short command.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(resources.files("muster.store") / "migrations"))
    with engine.connect().execution_options(writing=True) as connection, connection.begin():
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise SettingsError(
                f"database {engine.url} is at a migration that this Muster does not have: {error}; update Muster"
            ) from None
