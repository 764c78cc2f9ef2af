"""What PostgreSQL needs beyond SQLite: connections that notice a dead peer, and remedies for a failed connection."""

import os
import socket
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.pool import ConnectionPoolEntry

DRIVER = "postgresql+psycopg"
PREFIX = "muster on "
# The server cuts names at 63 bytes.
_LONGEST_HOST = 40
# Either side notices a lost connection within half a minute, so that a control node without power does not keep the
# queue's lock. No transaction of ours lasts nearly as long as the timeouts on locks.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
_OPTIONS = (
    "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
    " -c tcp_user_timeout=20000 -c lock_timeout=30000 -c idle_in_transaction_session_timeout=60000"
)
# Of all clients; of those that are no superusers; and of one role, or of one database.
_CROWDED = ("too many clients", "connection slots are reserved", "too many connections for")
_DENIED = "permission denied for "
# What a server says that takes no writes: a standby by either, and one that was set so by the first.
_READ_ONLY = ("read-only transaction", "during recovery")
_NAME_THE_PRIMARY = (
    "it is a standby, or was set to be only read: let `database` name the primary;"
    " with several hosts, add target_session_attrs=read-write"
)
_REMEDIES = (
    ("password authentication failed", "mend user and password in `database`"),
    ("no password supplied", "write the password into `database`, or give it by a .pgpass file"),
    ("no pg_hba.conf entry", "allow this host and user in the server's pg_hba.conf"),
    ("does not exist", "create it there (createuser, createdb), or mend `database`"),
    ("permission denied for schema", "make the user owner of the database: ALTER DATABASE … OWNER TO …"),
    (_DENIED, "make the user owner of the tables as well: ALTER TABLE … OWNER TO …"),
    *((part, "raise max_connections of the server, or the role's or the database's own limit") for part in _CROWDED),
    *((part, _NAME_THE_PRIMARY) for part in _READ_ONLY),
)
_PASSING = frozenset({*_CROWDED, *_READ_ONLY})
_DENIED_CODE = "42501"
# By SQLSTATE, for servers that say it in another language.
_REMEDIES_BY_CODE = {
    _DENIED_CODE: "make the user owner of the database and of its tables: ALTER DATABASE … OWNER TO …, ALTER TABLE …",
    "25006": _NAME_THE_PRIMARY,
}
# What one run of a server shows of a database is one history, also where a standby is promoted meanwhile.
_HISTORY_OF = (
    "SELECT pg_postmaster_start_time()::text || '/' || oid::text FROM pg_database WHERE datname = current_database()"
)
_HISTORY = "muster history"
# Without them, a server that crashes comes back without its newest commits, and its place stays the same.
_KEEPING_COMMITS = ("fsync", "synchronous_commit")
_NOT_REACHED = "see that the server runs and is reachable from here, or mend host and port in `database`"


def application_name() -> str:
    """Return a name by which the connections of this process are known."""
    return f"{PREFIX}{socket.gethostname()[:_LONGEST_HOST]} {os.getpid()}"


def with_defaults(url: sa.URL) -> sa.URL:
    """Return the URL with our driver, our name, and with parameters of libpq that it does not set itself.

    The server's options that it sets come behind ours, one by one in their place.
    """
    missing = {name: value for name, value in _DEFAULTS.items() if name not in url.query}
    options = " ".join([_OPTIONS, *url.normalized_query.get("options", ())])
    ours = {"application_name": application_name(), "options": options}
    return url.set(drivername=DRIVER).update_query_dict({**missing, **ours})


def given_options(options: str) -> str:
    """Return those of `with_defaults` that the URL itself set."""
    return options.removeprefix(_OPTIONS).strip()


def connect(engine: sa.Engine) -> "psycopg.Connection[tuple[Any, ...]]":
    """Open a connection outside the engine's pool, where every statement is a transaction. Raises psycopg.Error."""
    import psycopg  # noqa: PLC0415 - it is there where PostgreSQL is used

    _, arguments = engine.dialect.create_connect_args(engine.url)
    return psycopg.connect(**arguments, autocommit=True)


def note_history(connection: "psycopg.Connection[tuple[str]]", entry: "ConnectionPoolEntry") -> None:
    """Note with a new connection of a pool what `history_of` says of it."""
    connection.autocommit = True
    row = connection.execute(_HISTORY_OF).fetchone()
    connection.autocommit = False
    entry.info[_HISTORY] = row and row[0]


def history_of(connection: sa.Connection) -> str:
    """Return words that differ where what was read by another connection may not hold: the server may be a replica.

    A replica that was promoted may lack the newest commits, and gives their numbers to others. Empty with SQLite.
    """
    return str(connection.info.get(_HISTORY, ""))


def code_of(error: object) -> str:
    """Return the SQLSTATE of an error; empty where a connection did not come about, which has none."""
    return getattr(error, "sqlstate", None) or ""


def is_wrong(cause: str, code: str) -> bool:
    """Return whether a connection was refused for a reason that will not pass by itself."""
    return code == _DENIED_CODE or any(part in cause for part, _ in _REMEDIES if part not in _PASSING)


def is_of_the_server(cause: str, code: str) -> bool:
    """Return whether a statement was refused for what the server is or allows, rather than for what it says."""
    return code in _REMEDIES_BY_CODE or any(part in cause for part in _READ_ONLY)


def remedy(cause: str, code: str, otherwise: str = _NOT_REACHED) -> str:
    by_code = _REMEDIES_BY_CODE.get(code, otherwise)
    return next((remedy for part, remedy in _REMEDIES if part in cause), by_code)


def lossy_settings(connection: sa.Connection) -> tuple[str, ...]:
    """Return the server's settings, for this connection, by which commits may be lost in a crash."""
    values = {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in _KEEPING_COMMITS}
    return tuple(name for name, value in values.items() if value == "off")
