"""Where a server's socket lies for the tests of Unix users."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Yield a directory that everybody may enter, and only root may write in."""
    with TemporaryDirectory() as made:
        directory = Path(made)
        directory.chmod(0o755)
        yield directory


@pytest.fixture
def socket_path(open_directory: Path) -> Path:
    return open_directory / "api.sock"
