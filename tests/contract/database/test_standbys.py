"""A real standby of a PostgreSQL server: what it answers, and what follows when it becomes the primary."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from queue import Queue

import pytest

from muster.core.lifecycle import transitions
from muster.core.values.errors import NotFoundError, StoreUnavailableError
from muster.service.sessions.live import LiveChange, LiveChanges
from muster.service.sessions.queries import SessionQueries
from muster.store.store import Store
from tests.contract.database import test_daemon_outages
from tests.contract.database.test_daemon_outages import beat_since, daemon, is_logged
from tests.contract.postgresql_proxy import postgresql_proxy
from tests.contract.postgresql_server import PostgresqlServer, postgresql_server, standby_server
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW
from tests.waiting import PATIENCE_S, eventually

NEEDS_THE_PRIMARY = "let `database` name the primary; with several hosts, add target_session_attrs=read-write"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresqlServer]:
    with postgresql_server(keeps_commits=True, replicates=True) as running:
        yield running


@pytest.fixture
def database(primary) -> str:
    """Return the name of a new database of the primary that has all tables."""
    name: str = primary.new_database()
    Store(primary.url(name)).close()
    return name


@pytest.fixture
def standby(primary, database) -> Iterator[PostgresqlServer]:
    del database
    with standby_server(primary) as running:
        yield running


def test_a_standby_answers_what_only_reads_and_says_what_is_needed_to_write(primary, standby, database, open_store):
    open_store(primary.url(database)).add([session := make_session()])
    standby.catch_up_with(primary)
    store = open_store(standby.url(database))
    for _ in range(2):
        assert store.snapshot(NOW).sessions == (session,)
        with pytest.raises(StoreUnavailableError) as raised:
            store.add([make_session(2)])
        assert str(raised.value).endswith(NEEDS_THE_PRIMARY)


def test_a_daemon_waits_while_its_server_is_a_standby_and_goes_on_once_that_is_promoted(
    primary, standby, database, tmp_path
):
    with postgresql_proxy(primary.port) as proxy, daemon(tmp_path, database=proxy.url(database)) as (running, log):
        test_daemon_outages.eventually(partial(beat_since, primary.url(database), 0), running, log)
        standby.catch_up_with(primary)
        standby.lose_the_primary()
        said = len(log.read_text())
        proxy.lead_to(standby.port)
        test_daemon_outages.eventually(
            partial(is_logged, log, f"{NEEDS_THE_PRIMARY}; trying again", said), running, log
        )
        standby.promote()
        test_daemon_outages.eventually(partial(beat_since, standby.url(database), time.time()), running, log)
    assert "may lack what was decided last" in log.read_text()


def test_after_a_failover_everybody_reads_what_the_new_primary_has(primary, standby, database, open_store):
    """The commits that did not come to it are lost, and it gives their numbers to others."""
    before = open_store(primary.url(database))
    before.add([ended := make_session(1), waits := make_session(2, after_ok=[make_session(1).id])])
    before.agents.save([make_agent("one"), make_agent("two")])
    standby.catch_up_with(primary)
    standby.lose_the_primary()
    with postgresql_proxy(primary.port) as proxy:
        reader = open_store(proxy.url(database))
        reader.add([make_session(number) for number in (11, 12)])
        reader.apply([transitions.end_by_user(ended, "ada", NOW)])
        reader.agents.drain("one", "lost")
        reader.snapshot(NOW)
        waiting = SessionQueries(reader).wait_for([make_session(11).id], lambda _session: False)
        assert [session.name for session in next(waiting)] == ["s11"]
        standby.promote()
        writer = open_store(standby.url(database))
        for number in (21, 22):
            writer.add([make_session(number)])
        writer.agents.drain("two", "new")
        proxy.lead_to(standby.port)
        read = reader.snapshot(NOW)
        assert read.sessions == writer.snapshot(NOW).sessions
        writer.add([make_session(23)])
        with pytest.raises(NotFoundError, match="session s11 is not there any more: the database was put back"):
            next(waiting)
    assert {session.name for session in read.sessions} == {"s1", "s2", "s21", "s22"}
    assert read.ended == {}
    assert {agent.id: agent.drain_reason for agent in read.agents} == {"one": None, "two": "new"}
    assert waits in read.sessions


def test_after_a_failover_changes_are_told_although_they_have_numbers_that_others_had(
    primary, standby, database, open_store, caplog
):
    standby.catch_up_with(primary)
    standby.lose_the_primary()
    told: Queue[str] = Queue()

    def tell(changes: Sequence[LiveChange]) -> None:
        for change in changes:
            told.put(change.session.name)

    with postgresql_proxy(primary.port) as proxy:
        store = open_store(proxy.url(database))
        # More than the server numbers ahead.
        store.add([make_session(number) for number in range(1, 100)])
        live = LiveChanges(store)
        with live.running():
            live.add(tell, None)
            proxy.lead_to(None)
            eventually(lambda: "news of sessions wait" in caplog.text)
            standby.promote()
            proxy.lead_to(standby.port)
            open_store(standby.url(database)).add([make_session(200)])
            assert told.get(timeout=PATIENCE_S) == "s200"
