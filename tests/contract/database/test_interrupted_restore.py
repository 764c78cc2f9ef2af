"""A restore into SQLite that a full disk stops, or that is killed, leaves the database that was there."""

import errno
import itertools
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from muster.core.values.errors import UnwritableError
from muster.service.backup import back_up, restore
from muster.store.store import Store
from tests.contract.database.test_backup import settings_of
from tests.strategies.sessions import make_session


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_restore_that_a_full_disk_stops_leaves_sqlite_as_it_was(empty_database, tmp_path, monkeypatch, fails_at):
    """The database may be on another disk than the state directory, and files are copied between the two then."""
    shutil.copy(empty_database, tmp_path / "muster.db")
    here = settings_of(f"sqlite:///{tmp_path / 'muster.db'}", tmp_path / "here")
    store = Store(here.database_url)
    store.add([make_session(1)])
    back_up(here, tmp_path / "b")
    store.add([make_session(7, name="later")])
    moves = itertools.count(1)
    move = shutil.move

    def moved(source: Path, target: Path) -> None:
        if next(moves) == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        move(source, target)

    monkeypatch.setattr(shutil, "move", moved)
    with pytest.raises(UnwritableError, match="No space left"):
        restore(here, tmp_path / "b", force=True)
    store.close()
    assert {session.name for session in Store(here.database_url).search()} == {make_session(1).name, "later"}
    assert not (tmp_path / "muster.db.restored").exists()


@pytest.mark.parametrize("has_a_log", [True, False])
def test_a_restore_that_is_killed_leaves_a_database_in_its_place(empty_database, tmp_path, has_a_log):
    """A daemon that began then made an empty one, and removed all that ran."""
    here = settings_of(f"sqlite:///{tmp_path / 'here' / 'muster.db'}", tmp_path / "here")
    shutil.copy(empty_database, tmp_path / "here" / "muster.db")
    back_up(here, tmp_path / "b")
    store = Store(here.database_url)
    store.add([make_session(1)])
    if not has_a_log:
        store.close()
    if (child := os.fork()) == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "replace", lambda *_arguments: os.kill(os.getpid(), signal.SIGKILL))
            restore(here, tmp_path / "b", force=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    store.close()
    left = Store(here.database_url)
    assert [session.name for session in left.search()] == [make_session(1).name]
    left.close()
    assert list((tmp_path / "here").glob(".restore-*"))
    assert restore(here, tmp_path / "b", force=True).sessions == 0
    assert not list((tmp_path / "here").glob(".restore-*"))


def test_copies_of_backups_that_were_killed_are_gone_after_a_day(empty_database, tmp_path, monkeypatch):
    """A nightly backup that a time limit ends each time would fill the disk with copies of the database."""
    here = settings_of(f"sqlite:///{tmp_path / 'here' / 'muster.db'}", tmp_path / "here")
    shutil.copy(empty_database, tmp_path / "here" / "muster.db")
    backups = tmp_path / "backups"
    backups.mkdir()
    for name in ("first", "second"):
        if (child := os.fork()) == 0:
            monkeypatch.setattr(Path, "replace", lambda *_arguments: os.kill(os.getpid(), signal.SIGKILL))
            back_up(here, backups / name)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    old, young = left = sorted(backups.iterdir())
    assert all((directory / "database").stat().st_size for directory in left)
    os.utime(old, (time.time() - 86401,) * 2)
    back_up(here, backups / "third")
    assert sorted(backups.iterdir()) == [young, backups / "third"]


def test_what_was_restored_is_on_the_disk_before_it_has_its_name(empty_database, tmp_path, monkeypatch):
    """Otherwise a loss of power may leave a name with nothing behind it."""
    here = settings_of(f"sqlite:///{tmp_path / 'here' / 'muster.db'}", tmp_path / "here")
    shutil.copy(empty_database, tmp_path / "here" / "muster.db")
    back_up(here, tmp_path / "b")
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(f"synced {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def replaced(path: Path, target: Path) -> Path:
        done.append(f"named {target.name}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    restore(here, tmp_path / "b", force=True)
    assert done == ["synced muster.db.restored", "named muster.db", "synced here"]
