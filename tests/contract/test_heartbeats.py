"""The heartbeat of what works the queue, on both databases."""

from muster.core.model.heartbeat import Heartbeat, Worker
from muster.core.model.session import SessionState
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

FIRST = Heartbeat(NOW + 0.25, Worker.DAEMON, "ctl-1", 4711)


def test_a_queue_that_was_never_worked_has_none(store):
    assert store.heartbeats.last() is None


def test_the_last_one_written_counts_for_every_process_even_if_its_clock_is_behind(store, url, open_store):
    store.heartbeats.save(FIRST)
    other = open_store(url)
    assert other.heartbeats.last() == FIRST
    later = Heartbeat(NOW - 3600, Worker.ONCE, "ctl-2", 1)
    other.heartbeats.save(later)
    assert store.heartbeats.last() == later


def test_the_oldest_session_is_of_those_that_have_not_ended(store):
    assert store.heartbeats.oldest_session() is None
    ended = make_session(1, state=SessionState.TERMINATED, submitted_at=NOW - 500)
    store.add([ended, make_session(2, submitted_at=NOW - 20), make_session(3, submitted_at=NOW - 30)])
    assert store.heartbeats.oldest_session() == NOW - 30
