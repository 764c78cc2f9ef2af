"""The place of a database: what lies elsewhere than before may be older than what runs.

A replica becomes the primary without the newest commits, a dump is loaded into another database, a file comes back from
a backup of its disk. Nothing in such a database says that it is not the one of before; its place does.
"""

from pathlib import Path

import sqlalchemy as sa

# Servers begin a new timeline where a replica is promoted, and where a backup was recovered.
POSTGRESQL_PLACE = sa.literal_column(
    "(SELECT system_identifier FROM pg_control_system())"
    " || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)"
    " || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())",
    sa.Text,
).label("place")


def place_of(connection: sa.Connection) -> str:
    """Return words that differ between places; empty where the place is not known, as of a database in memory."""
    if connection.dialect.name == "sqlite":
        return _file_of(connection)
    try:
        with connection.begin_nested():
            return str(connection.execute(sa.select(POSTGRESQL_PLACE)).scalar_one())
    except (sa.exc.ProgrammingError, sa.exc.NotSupportedError):
        # Some who offer PostgreSQL as a service allow nobody to ask that. What may pass, such as a timeout, is raised:
        # a worker that does not know the place would not notice that it is another one.
        return ""


def _file_of(connection: sa.Connection) -> str:
    path = connection.engine.url.database
    if not path:
        return ""
    try:
        # Not its device, whose number may be another one after each boot.
        return str(Path(path).stat().st_ino)
    except OSError:
        return ""
