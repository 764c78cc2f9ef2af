"""The real daemon while its database is away or its disk is full: it waits, says so once, and goes on by itself."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

import muster.daemon
import muster.service.queue.heartbeat
from muster.store.store import Store
from tests.command_line import write_settings
from tests.contract.postgresql_server import postgresql_server
from tests.running.forked_cli import ForkedMuster
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session


def eventually(reached: Callable[[], object], daemon: ForkedMuster, log: Path) -> None:
    give_up_at = time.monotonic() + 60
    while not reached():
        assert daemon.poll() is None, log.read_text()
        assert time.monotonic() < give_up_at, log.read_text()
        time.sleep(0.05)


@contextmanager
def daemon(directory: Path, **settings: object) -> Iterator[tuple[ForkedMuster, Path]]:
    """Yield the daemon of a cluster with one agent, whose address nothing answers at."""
    (directory / "state").mkdir(mode=0o700, exist_ok=True)
    config = write_settings(directory, {"observe_interval_s": 600, **settings})
    host = "far ansible_host=127.0.0.1 ansible_port=1 ansible_ssh_common_args='-o ConnectTimeout=1'"
    (directory / "inventory").write_text(f"[agents]\n{host}\n")
    log = directory / "daemon.log"
    log.touch()
    with pytest.MonkeyPatch.context() as patch:
        # For the forked process: shorter pauses, and more frequent signs of life.
        patch.setattr(muster.daemon, "_FIRST_PAUSE_S", 0.05)
        patch.setattr(muster.daemon, "_LONGEST_PAUSE_S", 1.0)
        patch.setattr(muster.service.queue.heartbeat, "_WRITTEN_EVERY_S", 0.1)
        running = ForkedMuster(("daemon",), {**os.environ, "MUSTER_CONFIG": str(config)}, log)
    try:
        yield running, log
        running.terminate()
        assert running.wait() == 0, log.read_text()
    finally:
        running.kill()
    assert "Traceback" not in log.read_text()


def beat_since(url: str, at: float) -> bool:
    store = Store(url)
    try:
        last = store.heartbeats.last()
    finally:
        store.close()
    return last is not None and last.at > at


def is_logged(log: Path, words: str, after: int) -> bool:
    return words in log.read_text()[after:]


def test_a_daemon_waits_for_a_database_that_is_away_from_the_start_and_later(tmp_path):
    with postgresql_server() as server:
        url = server.url(server.new_database())
        server.stop()
        try:
            with daemon(tmp_path, database=url) as (running, log):
                eventually(lambda: "cannot be opened" in log.read_text(), running, log)
                server.start()
                eventually(lambda: beat_since(url, 0), running, log)
                for _ in range(2):
                    # Before, since the daemon may notice while the server is still about to stop.
                    said = len(log.read_text())
                    server.stop()
                    eventually(partial(is_logged, log, "trying again", said), running, log)
                    server.start()
                    eventually(partial(beat_since, url, time.time()), running, log)
                    eventually(partial(is_logged, log, "worked again", said), running, log)
        finally:
            if not server.is_running:
                server.start()
    lines = [line.split(" ", 1)[1] for line in log.read_text().splitlines() if "cannot be opened" in line]
    # Each cause once: a server that starts up may be seen, and is another than one that is away.
    assert len(lines) == len(set(lines)) in {1, 2}
    assert all("see that the server runs" in line for line in lines)


def limit_pages_while(is_full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the SQLite databases of processes that are forked from now on from growing while the file is there."""
    real = sa.create_engine

    def limited(connection: sa.Connection) -> None:
        pages = 1 if is_full.exists() else 1_000_000
        connection.connection.cursor().execute(f"PRAGMA max_page_count = {pages}")

    def create_engine(url: sa.URL, **options: object) -> sa.Engine:
        engine = real(url, **options)
        sa.event.listen(engine, "begin", limited)
        return engine

    monkeypatch.setattr(sa, "create_engine", create_engine)


def test_a_full_disk_is_said_once_and_work_goes_on_when_there_is_room_again(empty_database, tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    path, is_full = tmp_path / "state" / "muster.db", tmp_path / "full"
    path.write_bytes(empty_database.read_bytes())
    url = f"sqlite:///{path}"
    with pytest.MonkeyPatch.context() as patch:
        limit_pages_while(is_full, patch)
        forked = daemon(tmp_path)
        running, log = forked.__enter__()
    store = Store(url)
    try:
        store.agents.save([make_agent("far")])
        eventually(lambda: beat_since(url, 0), running, log)
        is_full.touch()
        # Each waits for another reason: more than the database has room for.
        store.add([make_session(number, resource_group=f"group-{number}") for number in range(1, 400)])
        eventually(lambda: "disk is full" in log.read_text(), running, log)
        assert len(store.search()) == 399
        assert not any(session.wait for session in store.search())
        is_full.unlink()
        eventually(lambda: "worked again" in log.read_text(), running, log)
        eventually(lambda: all(session.wait for session in store.search()), running, log)
    finally:
        store.close()
        forked.__exit__(None, None, None)
    assert log.read_text().count("trying again") == 1
    assert f"free space on the disk of {path.parent}; trying again" in log.read_text()


def test_a_catalog_that_cannot_be_read_stops_no_queue(tmp_path, empty_database):
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "muster.db").write_bytes(empty_database.read_bytes())
    (tmp_path / "images.yml").write_text("images: [")
    with daemon(tmp_path) as (running, log):
        store = Store(f"sqlite:///{tmp_path / 'state' / 'muster.db'}")
        store.add([make_session(1)])
        eventually(lambda: store.search()[0].wait is not None, running, log)
        store.close()
