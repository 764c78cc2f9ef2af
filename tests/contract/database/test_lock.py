"""One process works the queue at a time, even if that process dies or loses its connection."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from muster.core.values.errors import PassInProgressError, QueueLockLostError, StoreUnavailableError
from muster.store.database.lock import exclusive, queue_lock
from tests.contract.forked import Forked

CLOSE = psycopg.Connection.close
ASKS = "SELECT pg_try_advisory_lock%"


def hold(say, url, directory):
    with queue_lock(url, directory, wait=True) as lock:
        lock.check()
        say("held")
        threading.Event().wait()


def hold_until_terminated(say, url, directory):
    terminated = threading.Event()

    def end_if_terminated() -> None:
        if terminated.is_set():
            raise SystemExit(7)

    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    say("waiting")
    with queue_lock(url, directory, wait=True, between_tries=end_if_terminated):
        say("held")


def test_a_second_holder_is_refused_with_the_reason(url, tmp_path):
    second = queue_lock(url, tmp_path, wait=False)
    with queue_lock(url, tmp_path, wait=False), pytest.raises(PassInProgressError, match="another pass"):
        second.__enter__()
    with queue_lock(url, tmp_path, wait=False) as third:
        third.check()


def test_the_lock_of_a_killed_process_goes_to_the_one_that_waits(url, tmp_path):
    with Forked(hold, url, tmp_path) as first:
        assert first.receive() == "held"
        with pytest.raises(PassInProgressError), queue_lock(url, tmp_path, wait=False):
            pass
        with Forked(hold, url, tmp_path) as second:
            first.kill()
            assert second.receive() == "held"


def test_a_process_that_waits_for_the_lock_can_be_terminated(url, tmp_path):
    with queue_lock(url, tmp_path, wait=False), Forked(hold_until_terminated, url, tmp_path) as waits:
        assert waits.receive() == "waiting"
        assert waits.terminate() == 7


def test_queues_of_two_databases_have_nothing_to_do_with_each_other(server, tmp_path):
    one, two = (server.url(server.new_database()) for _ in range(2))
    with queue_lock(one, tmp_path, wait=False), queue_lock(two, tmp_path, wait=False) as lock:
        lock.check()


def test_control_nodes_share_the_queue_of_their_database(postgresql_url, tmp_path):
    with queue_lock(postgresql_url, tmp_path / "one", wait=False), pytest.raises(PassInProgressError):
        queue_lock(postgresql_url, tmp_path / "two", wait=False).__enter__()


def test_the_lock_is_free_before_the_server_has_ended_its_holders_connection(postgresql_url, tmp_path, monkeypatch):
    with ExitStack() as at_last:

        def close_later(connection: psycopg.Connection) -> None:
            at_last.callback(CLOSE, connection)

        monkeypatch.setattr(psycopg.Connection, "close", close_later)
        with queue_lock(postgresql_url, tmp_path, wait=False):
            pass
        with queue_lock(postgresql_url, tmp_path, wait=False) as lock:
            lock.check()


def test_a_holder_whose_connection_ended_loses_the_lock_and_is_notified(
    server, migrated_database, postgresql_url, tmp_path
):
    with queue_lock(postgresql_url, tmp_path, wait=False) as lost:
        assert server.end_connections(migrated_database, ASKS) == 1
        with queue_lock(postgresql_url, tmp_path, wait=True) as taken:
            with pytest.raises(QueueLockLostError, match="the lock on the queue is lost"):
                lost.check()
            taken.check()


def test_a_process_that_waits_for_the_lock_outlives_a_restart_of_the_database(
    server, migrated_database, postgresql_url, tmp_path, caplog
):
    def wait_for_it() -> None:
        with queue_lock(postgresql_url, tmp_path, wait=True) as lock:
            lock.check()

    with ThreadPoolExecutor(1) as pool, queue_lock(postgresql_url, tmp_path, wait=False) as held:
        waits = pool.submit(wait_for_it)
        server.wait_for_connections(migrated_database, ASKS, 2)
        server.stop()
        server.start()
        with pytest.raises(QueueLockLostError):
            held.check()
        waits.result()
    assert "while waiting for the lock" in caplog.text


def test_without_the_database_there_is_no_lock(server, tmp_path):
    with pytest.raises(StoreUnavailableError, match="nosuch"):
        queue_lock(server.url("nosuch"), tmp_path, wait=True).__enter__()


def test_making_a_key_excludes_another_that_makes_it(tmp_path):
    path = tmp_path / "state" / "key.lock"
    with exclusive(path, wait=False), pytest.raises(PassInProgressError):
        exclusive(path, wait=False).__enter__()
    with exclusive(path, wait=True):
        pass
