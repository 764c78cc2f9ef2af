"""A user's page costs what the user has, not what all have."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from muster.core.model.session import SessionState
from muster.store.database.connection import new_engine, reading
from muster.store.sessions.list_pages import ListPageRequest, SessionFilter, session_ids_of_page
from muster.store.store import Store
from tests.strategies.sessions import make_session


@pytest.fixture
def engine(tmp_path) -> Iterator[sa.Engine]:
    url = f"sqlite:///{tmp_path / 'muster.db'}"
    store = Store(url)
    store.add([make_session(number, owner=f"user-{number % 10}") for number in range(1, 101)])
    store.close()
    opened = new_engine(url)
    yield opened
    opened.dispose()


@pytest.mark.parametrize(
    "filtered",
    [
        SessionFilter(owner="user-3"),
        SessionFilter(owner="user-3", ended=True),
        SessionFilter(owner="user-3", states=(SessionState.PENDING,)),
    ],
)
def test_a_users_sessions_are_counted_in_an_index_of_owners(engine, filtered):
    statements = []
    sa.event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2:4]))
    ids, _, count = session_ids_of_page(engine, filtered, ListPageRequest(5, descending=True))
    assert (len(ids), count) == (5, 10)
    (counting,) = [given for given in statements if "count(*)" in given[0]]
    with reading(engine) as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {counting[0]}", counting[1]).all()
    steps = [step[-1] for step in plan]
    assert any("COVERING INDEX sessions_by_owner (owner=?" in step for step in steps), steps
