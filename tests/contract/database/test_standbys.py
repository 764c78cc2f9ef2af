"""A real standby of a PostgreSQL server: what it answers, and what follows when it becomes the primary."""

import time
from collections.abc import Iterator
from functools import partial

import pytest

from muster.core.values.errors import StoreUnavailableError
from muster.store.store import Store
from tests.contract.database.test_daemon_outages import beat_since, daemon, eventually, is_logged
from tests.contract.postgresql_proxy import postgresql_proxy
from tests.contract.postgresql_server import PostgresqlServer, postgresql_server, standby_server
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

NEEDS_THE_PRIMARY = "let `database` name the primary; with several hosts, add target_session_attrs=read-write"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresqlServer]:
    with postgresql_server(replicates=True) as running:
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
        eventually(partial(beat_since, primary.url(database), 0), running, log)
        standby.catch_up_with(primary)
        standby.lose_the_primary()
        said = len(log.read_text())
        proxy.lead_to(standby.port)
        eventually(partial(is_logged, log, f"{NEEDS_THE_PRIMARY}; trying again", said), running, log)
        standby.promote()
        eventually(partial(beat_since, standby.url(database), time.time()), running, log)
    assert "may lack what was decided last" in log.read_text()
