"""Hypothesis profiles (`ci` unless HYPOTHESIS_PROFILE names `thorough`), and a database that is made once."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from muster.store.store import Store

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("ci", max_examples=15, stateful_step_count=25, print_blob=True, **_COMMON)
settings.register_profile("thorough", max_examples=1500, stateful_step_count=60, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with all migrations and no row, to be copied: migrating is most of a small test's time."""
    path = tmp_path_factory.mktemp("empty") / "muster.db"
    Store(f"sqlite:///{path}").close()
    return path
