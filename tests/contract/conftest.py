"""Databases that the store must treat alike: one line for each kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.store.store import Store


def sqlite_file(directory: Path) -> str:
    return f"sqlite:///{directory / 'muster.db'}"


DATABASES: dict[str, Callable[[Path], str]] = {
    "sqlite": sqlite_file,
}


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    return DATABASES[request.param](tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store(url)
    yield opened
    opened.close()
