"""Waiting for sessions: each change is seen, and what has not changed is not read again."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from muster.core.lifecycle.transitions import end_by_user
from muster.core.model.session import FINAL, Session
from muster.service.sessions.queries import SessionQueries
from muster.store.store import Store
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW


class CountingStore(Store):
    """A store that notes which sessions are read by their ids."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[list[str]] = []

    def get(self, session_ids: Sequence[str]) -> dict[str, Session]:
        self.reads.append(list(session_ids))
        return super().get(session_ids)


@pytest.fixture
def store(tmp_path: Path, empty_database: Path):
    path = tmp_path / "muster.db"
    path.write_bytes(empty_database.read_bytes())
    store = CountingStore(f"sqlite:///{path}")
    yield store
    store.close()


def test_each_change_is_seen_until_all_have_ended(store):
    waiting = [make_session(1), make_session(2)]
    store.add(waiting)
    seen = []
    for now in SessionQueries(store).wait_for([session.id for session in waiting], lambda s: s.state in FINAL):
        seen.append([session.state.value for session in now])
        left = [session for session in now if session.state not in FINAL]
        store.apply([end_by_user(session, "enough", NOW) for session in left[:1]])
    assert seen == [["PENDING", "PENDING"], ["CANCELLED", "PENDING"], ["CANCELLED", "CANCELLED"]]


def test_what_has_not_changed_is_not_read_again(store):
    store.add([session := make_session(1)])
    with pytest.raises(TimeoutError):
        for _ in SessionQueries(store).wait_for([session.id], lambda _: False, timeout_s=0.2):
            pass
    assert store.reads == [[session.id]]


def test_what_has_ended_is_not_read_again(store):
    store.add([first := make_session(1), second := make_session(2)])
    for now in SessionQueries(store).wait_for([first.id, second.id], lambda s: s.state in FINAL):
        left = [session for session in now if session.state not in FINAL]
        store.apply([end_by_user(session, "enough", NOW) for session in left[:1]])
    assert store.reads == [[first.id, second.id], [first.id, second.id], [second.id]]
