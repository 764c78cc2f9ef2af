"""A control node of its own for each test of the command line."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.store.store import Store
from tests.command_line import write_settings


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state directory of a control node of its own."""
    (tmp_path / "state").mkdir(mode=0o700)
    shutil.copy(empty_database, tmp_path / "state" / "muster.db")
    write_settings(tmp_path, {})
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.yml"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SUDO_USER", "ada")
    return tmp_path / "state"


@pytest.fixture
def store(state_dir: Path) -> Store:
    return Store(f"sqlite:///{state_dir / 'muster.db'}")


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "job.sh"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write
