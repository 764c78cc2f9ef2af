"""Files of the control node's state on a disk that takes no more: whole or not at all, and one clear line."""

import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from muster.core.values.errors import UnwritableError
from muster.seal import make_key
from muster.service.reach.ssh_access import control_public_key
from muster.settings import Settings
from muster.whole_files import write_whole


@contextmanager
def no_room(most_bytes: int = 10) -> Iterator[None]:
    """Let the kernel refuse to write further into any file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_as_it_was_where_the_new_one_has_no_room(tmp_path):
    path = tmp_path / "new" / "config"
    write_whole(path, b"old")
    with no_room(), pytest.raises(UnwritableError, match="config cannot be written: File too large; free space there"):
        write_whole(path, b"x" * 100)
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("most_bytes", [10, 100])
def test_the_control_nodes_key_is_made_whole_or_not_at_all(tmp_path, most_bytes):
    """With 100 bytes there is room for the public half alone."""
    settings = Settings(state_dir=tmp_path)
    with no_room(most_bytes), pytest.raises(UnwritableError, match="id_ed25519"):
        control_public_key(settings)
    assert not (tmp_path / "id_ed25519").exists()
    public = control_public_key(settings)
    assert public.startswith("ssh-ed25519 ")
    assert public == control_public_key(settings)
    assert {path.name for path in tmp_path.iterdir()} == {"id_ed25519", "id_ed25519.pub", "id_ed25519.lock"}


def test_the_key_of_secrets_is_made_whole_or_not_at_all(tmp_path):
    path = tmp_path / "secrets.key"
    with no_room(), pytest.raises(UnwritableError, match=r"secrets\.key.* cannot be written"):
        make_key(path)
    assert list(tmp_path.iterdir()) == []
    assert make_key(path) == make_key(path)
    assert list(tmp_path.iterdir()) == [path]
