"""News between processes that share a database."""

import queue
from contextlib import ExitStack

import pytest

from muster.core.values.errors import StoreUnavailableError
from muster.store.store import Store
from tests.contract.forked import Forked

LISTENS = "LISTEN %"


def tell(say, url, message):
    store = Store(url)
    say(store.notify(message))
    store.close()


def test_every_listener_gets_one_processs_notifications_in_order(postgresql_url, open_store):
    queues = [queue.SimpleQueue(), queue.SimpleQueue()]
    with ExitStack() as stack:
        for messages in queues:
            stack.enter_context(open_store(postgresql_url).listen(messages.put))
        for message in ("queue", "agents a1", "it's ünicode"):
            with Forked(tell, postgresql_url, message) as other:
                assert other.receive() is True
        for messages in queues:
            assert [messages.get() for _ in range(3)] == ["queue", "agents a1", "it's ünicode"]


def test_a_stopped_listener_gets_nothing(postgresql_url, open_store):
    store, messages = open_store(postgresql_url), queue.SimpleQueue()
    with store.listen(messages.put):
        pass
    assert store.notify("queue")
    with store.listen(messages.put):
        store.notify("last")
        assert messages.get() == "last"


def test_a_listener_is_notified_after_its_connection_broke_and_receives_again(
    server, migrated_database, postgresql_url, open_store, caplog
):
    store, messages = open_store(postgresql_url), queue.SimpleQueue()
    with store.listen(messages.put):
        assert server.end_connections(migrated_database, LISTENS) == 1
        assert messages.get() == "queue"
        store.notify("agents")
        assert messages.get() == "agents"
    assert "news from the database stopped" in caplog.text


def test_a_listener_is_notified_while_the_database_is_away(server, postgresql_url, open_store):
    store, messages = open_store(postgresql_url), queue.SimpleQueue()
    with store.listen(messages.put):
        server.stop()
        try:
            assert messages.get(timeout=60) == "queue"
            assert not server.is_running
        finally:
            server.start()


def test_sqlite_notifies_nobody_and_says_so(tmp_path, open_store):
    store, messages = open_store(f"sqlite:///{tmp_path / 'muster.db'}"), queue.SimpleQueue()
    with store.listen(messages.put):
        assert store.notify("queue") is False
    assert messages.empty()


def test_without_the_database_no_listener_is_notified_and_none_can_begin(server, postgresql_url, open_store):
    store = open_store(postgresql_url)
    server.stop()
    try:
        assert store.notify("queue") is False
        with pytest.raises(StoreUnavailableError, match="connection"):
            store.listen(lambda _message: None).__enter__()
    finally:
        server.start()
    assert store.notify("queue")
