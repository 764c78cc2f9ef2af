"""Databases that the store must treat alike."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.store.store import Store
from tests.contract.postgresql_server import PostgresqlServer, postgresql_server

KINDS = ("sqlite", "postgresql")


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresqlServer]:
    with postgresql_server() as running:
        yield running


@pytest.fixture(scope="session")
def migrated_database(server: PostgresqlServer) -> str:
    name = server.new_database()
    Store(server.url(name)).close()
    return name


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of a database that has all tables and no row."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("empty_database"), tmp_path / "muster.db")
        return f"sqlite:///{tmp_path / 'muster.db'}"
    return emptied(request.getfixturevalue("server"), request.getfixturevalue("migrated_database"))


@pytest.fixture
def postgresql_url(server: PostgresqlServer, migrated_database: str) -> str:
    """Return the url of an empty PostgreSQL database, for tests of PostgreSQL alone."""
    return emptied(server, migrated_database)


@pytest.fixture
def own_database(server: PostgresqlServer, migrated_database: str) -> str:
    """Return the name of an empty PostgreSQL database with all tables, which no other test has."""
    # The test before may have left rows in the common one.
    emptied(server, migrated_database)
    return server.new_database(migrated_database)


@pytest.fixture(params=KINDS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the url of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'muster.db'}"
    server: PostgresqlServer = request.getfixturevalue("server")
    return server.url(server.new_database())


@pytest.fixture
def open_store() -> Iterator[Callable[[str], Store]]:
    """Opens stores that are closed when the test ends."""
    opened: list[Store] = []

    def open_one(url: str) -> Store:
        opened.append(Store(url))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(url: str, open_store: Callable[[str], Store]) -> Store:
    return open_store(url)


def emptied(server: PostgresqlServer, database: str) -> str:
    """Empty the database and return its url. Making one anew would be most of a small test's time."""
    server.run_in(
        database,
        *(
            f"DELETE FROM {table}"
            for table in (
                "sessions",
                "waits",
                "agents",
                "counters",
                "secrets",
                "tokens",
                "submissions",
                "images",
                "agent_samples",
                "heartbeats",
                "owner_uids",
                "pulled_images",
                "limit_overrides",
                "weight_overrides",
                "presets",
                "reservations",
            )
        ),
    )
    return server.url(database)
