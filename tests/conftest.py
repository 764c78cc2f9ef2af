"""A database that is made once; Hypothesis' profile is loaded here, before any property is defined."""

from pathlib import Path

import pytest

import tests.properties  # noqa: F401 - loads the profile
from muster.store.store import Store


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all migrations and no row, to be copied: migrating is most of a small test's time."""
    path = tmp_path_factory.mktemp("empty") / "muster.db"
    Store(f"sqlite:///{path}").close()
    return path
