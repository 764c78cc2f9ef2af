"""Backup and restore on both databases: whole while others write, and never over a state that is in use."""

import gzip
import os
import secrets
import shutil
import socket
import stat
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from muster.core.lifecycle.adoption import Adoption
from muster.core.model.session import KernelLog, SessionState
from muster.core.model.token import Scope, Token
from muster.core.values.errors import BadInputError, MusterError, SettingsError
from muster.service import backup
from muster.service.backup import back_up, restore
from muster.service.secrets.secrets import Secrets
from muster.settings import Settings
from muster.store.database import copies
from muster.store.database.connection import HEAD, new_engine
from muster.store.database.lock import queue_lock
from muster.store.store import Store
from tests.command_line import write_settings
from tests.running.forked_cli import ForkedMuster
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW
from tests.waiting import PATIENCE_S, eventually

S = SessionState


def settings_of(url: str, directory: Path, **values: object) -> Settings:
    directory.mkdir(exist_ok=True, mode=0o700)
    return Settings(state_dir=directory, database=url, **values)


@pytest.fixture
def here(url, tmp_path):
    """Return a control node that is in use: sessions in three states, a token, a secret, an ssh key."""
    settings = settings_of(url, tmp_path / "here")
    store = Store(url)
    store.add([placed_on(make_session(1, name="runs"), "a1"), make_session(2, name="waits")])
    store.add([make_session(3, name="held", held_by="ada"), make_session(4, name="over", state=S.TERMINATED)])
    store.keep_logs([KernelLog(make_session(1).id, "main1", b"\x1f\x8b")])
    store.tokens.add(Token("laptop", "ada", Scope.USER, NOW, None), "1" * 64)
    Secrets(store.secrets, settings.seal_key).set("ada", "key", "s3cret", NOW)
    (settings.state_dir / "id_ed25519").write_text("private")
    store.close()
    return settings


@pytest.fixture
def elsewhere(url, tmp_path, request):
    """Makes a fresh control node with an empty database of the same kind."""

    def make(**values):
        if url.startswith("sqlite"):
            other = f"sqlite:///{tmp_path / 'there' / 'muster.db'}"
        else:
            server = request.getfixturevalue("server")
            other = server.url(server.new_database())
        return settings_of(other, tmp_path / "there", **values)

    return make


def content(url: str) -> dict[str, list]:
    engine = new_engine(url)
    with engine.connect() as connection:
        names = sorted(sa.inspect(connection).get_table_names())
        found = {name: [*map(tuple, connection.exec_driver_sql(f"SELECT * FROM {name}"))] for name in names}
    engine.dispose()
    return {name: sorted(map(repr, rows)) for name, rows in found.items()}


@contextmanager
def serving(settings: Settings, directory: Path) -> Iterator[None]:
    """Run `muster web` on this state."""
    directory.mkdir()
    config = write_settings(directory, {"state_dir": str(settings.state_dir), "database": settings.database_url})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = directory / "web.log"
    process = ForkedMuster(("web", "--port", str(port)), {**os.environ, "MUSTER_CONFIG": str(config)}, log)
    try:
        eventually(lambda: is_ready(port) or process.poll() is not None, complaint=log.read_text)
        assert process.poll() is None, log.read_text()
        yield
        process.terminate()
        assert process.wait() == 0, log.read_text()
    finally:
        process.kill()


def is_ready(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    return False


def test_nothing_is_restored_while_a_server_runs(here, tmp_path):
    back_up(here, tmp_path / "b.tar.gz")
    with serving(here, tmp_path / "web"):
        before = content(here.database_url)
        with pytest.raises(MusterError, match=r"^`muster web` runs on this state; stop it first"):
            restore(here, tmp_path / "b.tar.gz", force=True)
        assert content(here.database_url) == before
    assert restore(here, tmp_path / "b.tar.gz", force=True).sessions == 3


@pytest.mark.parametrize("parameters", ["", "?application_name=mine"])
def test_a_server_on_another_machine_is_found_by_its_connections(postgresql_url, tmp_path, parameters):
    here = settings_of(postgresql_url, tmp_path / "here")
    there = settings_of(f"{postgresql_url}{parameters}", tmp_path / "there")
    store = Store(postgresql_url)
    store.add([make_session(1)])
    store.close()
    back_up(here, tmp_path / "b.tar.gz")
    with serving(there, tmp_path / "web"), pytest.raises(MusterError) as refused:
        restore(here, tmp_path / "b.tar.gz", force=True)
    assert str(refused.value).startswith(f"the database is in use: muster on {socket.gethostname()[:40]} ")
    assert str(refused.value).endswith("(host and process); stop daemons and `muster web` there first")
    assert restore(here, tmp_path / "b.tar.gz", force=True).sessions == 1


def test_all_that_there_is_comes_back_on_a_fresh_control_node(here, elsewhere, tmp_path):
    before = content(here.database_url)
    taken = back_up(here, tmp_path / "b.tar.gz")
    assert (taken.migration, [*taken.keys]) == (HEAD, ["secrets.key", "id_ed25519"])
    there = elsewhere()
    done = restore(there, tmp_path / "b.tar.gz", hold=False)
    assert (done.sessions, done.held, done.replaced) == (3, 0, None)
    after = content(there.database_url)
    # That it was restored is all that is new.
    after["counters"] = [row for row in after["counters"] if not any(new in row for new in ("restored", "first gen"))]
    assert after == before
    assert content(here.database_url) == before
    store = Store(there.database_url)
    session = make_session(9, secrets=["key"], owner="ada")
    assert Secrets(store.secrets, there.seal_key).values(session) == {"key": "s3cret"}
    store.add([make_session(10)])
    store.close()


def test_only_the_owner_can_read_a_backup_and_its_restored_files(here, elsewhere, tmp_path):
    back_up(here, tmp_path / "b.tar.gz")
    assert stat.S_IMODE((tmp_path / "b.tar.gz").stat().st_mode) == 0o600
    there = elsewhere()
    restore(there, tmp_path / "b.tar.gz")
    for path in there.state_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.name.endswith(".lock"), path


@pytest.mark.parametrize("hold", [True, False])
def test_a_pending_session_is_held_since_it_may_have_run_after_the_backup(here, elsewhere, tmp_path, hold):
    back_up(here, tmp_path / "b.tar.gz")
    there = elsewhere()
    assert restore(there, tmp_path / "b.tar.gz", hold=hold).held == int(hold)
    store = Store(there.database_url)
    by = {session.name: session.held_by for session in store.search()}
    adoption = store.queue.adoption()
    store.close()
    assert by == {"runs": None, "waits": "muster restore" if hold else None, "held": "ada"}
    assert (adoption is not None, adoption and adoption.holds) == (True, hold)


def test_a_backup_is_of_one_moment_while_others_write(here, elsewhere, tmp_path):
    """A writer adds sessions one by one, each with its kernel and story in one transaction."""
    stop, wrote = threading.Event(), threading.Event()

    def write():
        store = Store(here.database_url)
        for number in range(100, 10_000):
            if stop.is_set():
                break
            store.add([make_session(number, cluster_size=2)])
            wrote.set()
        store.close()

    writer = threading.Thread(target=write)
    writer.start()
    assert wrote.wait(PATIENCE_S)
    try:
        for name in ("one", "two"):
            back_up(here, tmp_path / name)
    finally:
        stop.set()
        writer.join()
    there = elsewhere()
    restore(there, tmp_path / "two", hold=False)
    store = Store(there.database_url)
    found = store.search()
    assert len(found) > 3
    assert all(len(session.kernels) == 2 for session in found if session.name not in {"runs", "waits", "held"})
    assert all(store.story(session.id) for session in found)
    store.close()


def test_a_backup_has_the_key_of_a_secret_that_was_set_meanwhile(empty_database, tmp_path, monkeypatch):
    shutil.copy(empty_database, tmp_path / "muster.db")
    here = settings_of(f"sqlite:///{tmp_path / 'muster.db'}", tmp_path / "here")
    store = Store(here.database_url)

    def copies_when_the_first_secret_is_there(url: str) -> copies.DatabaseCopies:
        found = copies.copies_of(url)
        save = found.save

        def saved(path: Path) -> None:
            Secrets(store.secrets, here.seal_key).set("ada", "key", "s3cret", NOW)
            save(path)

        monkeypatch.setattr(found, "save", saved)
        return found

    monkeypatch.setattr(backup, "copies_of", copies_when_the_first_secret_is_there)
    assert back_up(here, tmp_path / "b").keys == ["secrets.key"]
    store.close()


def test_a_backup_includes_the_write_ahead_log(empty_database, tmp_path):
    """A plain copy of the file loses it: the reason for `muster backup`."""
    settings = settings_of(f"sqlite:///{tmp_path / 'here' / 'muster.db'}", tmp_path / "here")
    shutil.copy(empty_database, tmp_path / "here" / "muster.db")
    store = Store(settings.database_url)
    store.add([make_session(1)])
    shutil.copy(tmp_path / "here" / "muster.db", tmp_path / "plain.db")
    back_up(settings, tmp_path / "b")
    plain = Store(f"sqlite:///{tmp_path / 'plain.db'}")
    assert plain.search() == []
    there = settings_of(f"sqlite:///{tmp_path / 'there' / 'muster.db'}", tmp_path / "there")
    assert restore(there, tmp_path / "b").sessions == 1
    store.close()
    plain.close()


@pytest.mark.parametrize("links", [True, False], ids=["one disk", "two disks"])
def test_a_state_in_use_is_not_overwritten_and_with_force_kept_aside(here, tmp_path, open_store, links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_paths: os.close(-1))
    back_up(here, tmp_path / "b")
    store = Store(here.database_url)
    store.add([make_session(7, name="later")])
    store.close()
    before = content(here.database_url)
    with pytest.raises(BadInputError, match="in use; give --force"):
        restore(here, tmp_path / "b")
    assert content(here.database_url) == before
    done = restore(here, tmp_path / "b", force=True)
    assert {session.name for session in open_store(here.database_url).search()} == {"runs", "waits", "held"}
    aside = Path(done.replaced)
    if here.database_url.startswith("sqlite"):
        assert "later" in {s.name for s in open_store(f"sqlite:///{aside / 'muster.db'}").search()}
    else:
        assert "later" in (aside / "database.sql").read_text()


@pytest.mark.parametrize("hold", [True, False])
def test_a_restore_that_is_cut_short_has_what_runs_adopted_all_the_same(
    here, elsewhere, tmp_path, hold, monkeypatch, open_store
):
    """Without adoption, the next pass would remove what was launched after the backup."""
    back_up(here, tmp_path / "b")
    there = elsewhere()

    def interrupted(_url: str) -> Store:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "Store", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore(there, tmp_path / "b", hold=hold)
    store = open_store(there.database_url)
    assert {session.name for session in store.search()} == {"runs", "waits", "held"}
    assert store.queue.adoption() == Adoption(holds=hold)


def test_another_key_of_secrets_is_kept_aside(here, elsewhere, tmp_path):
    back_up(here, tmp_path / "b")
    there = elsewhere()
    there.seal_key.write_bytes(b"x" * 32)
    done = restore(there, tmp_path / "b")
    assert there.seal_key.read_bytes() == here.seal_key.read_bytes()
    assert (Path(done.replaced) / "secrets.key").read_bytes() == b"x" * 32


def restored_once_unlocked(settings: Settings, file: Path):
    """Restore as soon as the lock is free: PostgreSQL gives it back when it notices that its connection has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return restore(settings, file)
        except MusterError as error:
            if "stop it first" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_nothing_is_restored_while_something_works_the_queue(here, elsewhere, tmp_path):
    back_up(here, tmp_path / "b")
    there = elsewhere()
    with queue_lock(there.database_url, there.state_dir, wait=False):
        back_up(here, tmp_path / "while-it-works")
        with pytest.raises(MusterError, match="stop it first"):
            restore(there, tmp_path / "b")
    assert restored_once_unlocked(there, tmp_path / "b").sessions == 3


def test_a_backup_file_that_is_there_is_replaced_with_force_only(here, tmp_path):
    (tmp_path / "b").write_text("mine")
    with pytest.raises(BadInputError, match="there already"):
        back_up(here, tmp_path / "b")
    assert (tmp_path / "b").read_text() == "mine"
    back_up(here, tmp_path / "b", force=True)
    assert tarfile.is_tarfile(tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".muster")) == []


def with_a_flipped_byte(taken: bytes, at: int) -> bytes:
    """Return the backup with one byte of its content flipped, and with its old checksum.

    A flipped byte of the compressed stream proves nothing: one in some hundreds still decompresses to the same.
    """
    content = bytearray(gzip.decompress(taken))
    content[at] ^= 0xFF
    return gzip.compress(content)[:-8] + taken[-8:]


def broken_files(taken: bytes):
    yield "empty", b""
    yield "random", secrets.token_bytes(1000)
    yield "cut", taken[: len(taken) // 2]
    yield "checksum", taken[:-8] + bytes([taken[-8] ^ 0xFF]) + taken[-7:]
    yield "database", with_a_flipped_byte(taken, len(gzip.decompress(taken)) // 2)
    yield "end", with_a_flipped_byte(taken, -1)


def test_a_damaged_backup_changes_nothing(here, elsewhere, tmp_path):
    back_up(here, tmp_path / "b")
    there = elsewhere()
    for name, data in broken_files((tmp_path / "b").read_bytes()):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(MusterError) as raised:
            restore(there, tmp_path / name)
        assert "\n" not in str(raised.value)
    with pytest.raises(BadInputError, match="No such file"):
        restore(there, tmp_path / "nosuch")
    assert restore(there, tmp_path / "b").replaced is None


def test_a_backup_of_another_cluster_or_of_a_newer_muster_is_refused(here, elsewhere, tmp_path, monkeypatch):
    back_up(here, tmp_path / "b")
    with pytest.raises(BadInputError, match="is of cluster muster, and this one is lab"):
        restore(elsewhere(cluster="lab"), tmp_path / "b")
    monkeypatch.setattr(copies, "HEAD", "0001")
    with pytest.raises(BadInputError, match=f"newer Muster .*, migration {HEAD}.*update Muster"):
        restore(elsewhere(), tmp_path / "b")


def test_a_control_node_without_a_database_has_nothing_to_back_up(elsewhere, tmp_path):
    there = elsewhere()
    with pytest.raises(SettingsError, match="no database"):
        back_up(there, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    assert not (there.state_dir / "muster.db").exists()


def test_a_backup_is_not_restored_into_a_database_of_another_kind(here, tmp_path, request):
    back_up(here, tmp_path / "b")
    if here.database_url.startswith("sqlite"):
        other = settings_of(request.getfixturevalue("postgresql_url"), tmp_path / "there")
    else:
        other = settings_of(f"sqlite:///{tmp_path / 'there' / 'muster.db'}", tmp_path / "there")
    with pytest.raises(BadInputError, match="of the same kind"):
        restore(other, tmp_path / "b")
