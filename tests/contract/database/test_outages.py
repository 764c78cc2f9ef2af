"""Databases that cannot be used, are gone for a while, or are given wrong settings: one clear line each."""

import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from muster.core.values.errors import DatabaseAwayError, SettingsError, StoreUnavailableError
from muster.store.database.connection import cannot_be_opened, new_engine, open_engine, writing
from muster.store.store import Store
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW


def refusal(url: str) -> str:
    with pytest.raises((SettingsError, DatabaseAwayError), match="cannot be opened") as raised:
        open_engine(url)
    line = str(raised.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    "broken",
    [
        lambda path: f"sqlite:///{path / 'file' / 'x.db'}",
        lambda _path: "nonsense",
        lambda _path: "nosuch://x",
        lambda _path: "mysql://x/y",
        lambda _path: "postgresql+psycopg2://x/y",
        lambda _path: "postgresql://host:port/name",
    ],
)
def test_a_url_that_names_no_database_of_ours_is_a_fault_of_the_settings(tmp_path, broken: Callable[[Path], str]):
    (tmp_path / "file").touch()
    assert "database" in refusal(broken(tmp_path))


def test_a_file_that_is_no_database_is_a_fault_of_the_settings(tmp_path):
    (tmp_path / "muster.db").write_bytes(b"this is no database at all, but text of some length" * 100)
    assert "mend `database` or `state_dir`" in refusal(f"sqlite:///{tmp_path / 'muster.db'}")


def test_a_database_beside_which_nothing_can_be_written_is_no_fault_of_the_settings(empty_database, tmp_path):
    """As on a disk that was mounted read-only after an error: root may write everywhere else."""
    shutil.copy(empty_database, tmp_path / "muster.db")
    (tmp_path / "muster.db-wal").mkdir()
    with pytest.raises(DatabaseAwayError, match="unable to open database file") as raised:
        open_engine(f"sqlite:///{tmp_path / 'muster.db'}")
    remedy = f"see the permissions of {tmp_path}, and whether its disk is mounted read-only"
    assert str(raised.value).endswith(f"; {remedy}")


def test_a_server_that_is_not_there_is_named_without_the_password():
    line = refusal("postgresql://ada:secret@127.0.0.1:1/muster?application_name=secret&connect_timeout=5")
    assert "127.0.0.1:1/muster" in line
    assert "see that the server runs" in line
    assert "secret" not in line


def test_a_database_that_is_missing_is_to_be_created(server):
    assert 'database "nosuch" does not exist; create it' in refusal(server.url("nosuch"))


@pytest.mark.parametrize(
    ("user", "remedy"), [("guarded:wrong", "mend user and password"), ("guarded", "write the pass")]
)
def test_a_wrong_or_missing_password_is_said_and_not_shown(server, migrated_database, user, remedy):
    line = refusal(server.url(migrated_database, user))
    assert remedy in line
    assert "wrong" not in line


def test_without_the_right_to_create_tables_the_error_gives_the_command(server):
    assert "ALTER DATABASE" in refusal(server.url(server.new_database(), "guarded:right"))


def test_a_driver_that_cannot_be_loaded_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "pip install 'psycopg[binary]'" in refusal("postgresql://host/muster")


def test_a_url_may_name_our_driver(postgresql_url, open_store):
    open_store(postgresql_url.replace("postgresql:", "postgresql+psycopg:")).add([make_session()])
    assert len(open_store(postgresql_url).search()) == 1


def test_options_of_the_url_come_behind_those_by_which_a_lost_connection_is_noticed(postgresql_url, open_store):
    url = f"{postgresql_url}?options=-c%20search_path%3Dpublic%20-c%20lock_timeout%3D7s"
    names = ("search_path", "lock_timeout", "tcp_keepalives_idle", "idle_in_transaction_session_timeout")
    with open_store(url)._engine.connect() as connection:
        values = [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names]
    assert values == ["public", "7s", "10", "1min"]


def test_tables_of_another_role_are_named_with_the_remedy(server, own_database):
    """As after a dump that the server's administrator has loaded."""
    server.run("CREATE ROLE other LOGIN")
    server.run_in(own_database, "GRANT ALL ON SCHEMA public TO other")
    remedy = "permission denied for table alembic_version; make the user owner of the tables as well: ALTER TABLE"
    assert remedy in refusal(server.url(own_database, "other"))
    server.run_in(own_database, "GRANT SELECT ON alembic_version TO other")
    store = Store(server.url(own_database, "other"))
    with pytest.raises(StoreUnavailableError, match="permission denied for table sessions; make the user owner"):
        store.search()
    store.close()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("42501", "make the user owner of the database and of its tables"),
        ("25006", "it is a standby"),
    ],
)
def test_what_a_server_says_in_another_language_has_its_remedy(server, own_database, open_store, code, remedy):
    server.run_in(
        own_database,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION 'keine Berechtigung' USING ERRCODE = '{code}'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON sessions EXECUTE FUNCTION refuse()",
    )
    with pytest.raises(StoreUnavailableError, match=f"keine Berechtigung .*; {remedy}"):
        open_store(server.url(own_database)).add([make_session()])


def test_a_full_disk_fails_in_one_line_that_says_where_and_leaves_what_was_there(empty_database, tmp_path):
    shutil.copy(empty_database, tmp_path / "muster.db")
    store = Store(f"sqlite:///{tmp_path / 'muster.db'}")
    store.add([make_session(1)])
    pages = []

    @sa.event.listens_for(store._engine, "begin")
    def _limit(connection: sa.Connection) -> None:
        connection.connection.cursor().execute(f"PRAGMA max_page_count = {1 if pages else 1_000_000}")

    pages.append("full")
    with pytest.raises(StoreUnavailableError, match="database or disk is full") as raised:
        store.add([make_session(number, script="x" * 9000) for number in range(2, 30)])
    assert str(raised.value).endswith(f"; free space on the disk of {tmp_path}")
    assert [session.name for session in store.search()] == [make_session(1).name]
    pages.clear()
    store.add([make_session(2)])
    assert len(store.search()) == 2
    store.close()


@pytest.mark.parametrize("text", ["password authentication failed for user", "database does not exist"])
def test_an_error_that_needs_a_change_by_hand_is_no_passing_outage(text):
    engine = new_engine("postgresql://host/name")
    assert type(cannot_be_opened(engine, Exception(text))) is SettingsError
    assert type(cannot_be_opened(engine, Exception("connection refused"))) is DatabaseAwayError


@pytest.mark.parametrize(
    "text",
    [
        "FATAL: sorry, too many clients already",
        "FATAL: remaining connection slots are reserved for non-replication superuser connections",
        "FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'FATAL: too many connections for database "muster"',
    ],
)
def test_a_server_with_no_connection_left_is_waited_for_and_the_limit_is_named(text):
    refused = cannot_be_opened(new_engine("postgresql://host/name"), Exception(text))
    assert type(refused) is DatabaseAwayError
    assert str(refused).endswith("raise max_connections of the server, or the role's or the database's own limit")


def test_a_role_with_no_connection_left_is_refused_with_the_limit(server, migrated_database):
    server.run("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
    assert 'too many connections for role "crowded"; raise max_connections' in refusal(
        server.url(migrated_database, "crowded")
    )


def test_requests_without_the_database_fail_in_one_line_and_work_once_it_is_back(server, postgresql_url, open_store):
    store = open_store(postgresql_url)
    store.add([session := make_session()])
    server.stop()
    try:
        for ask in (lambda: store.snapshot(NOW), lambda: store.add([make_session(2)])):
            with pytest.raises(StoreUnavailableError, match="refused") as raised:
                ask()
            assert "\n" not in str(raised.value)
    finally:
        server.start()
    assert store.snapshot(NOW).sessions == (session,)


def test_a_restart_between_two_questions_is_not_noticed(server, postgresql_url, open_store):
    store = open_store(postgresql_url)
    store.add([session := make_session()])
    server.stop()
    server.start()
    store.add([make_session(2)])
    assert session in store.snapshot(NOW).sessions


def test_a_transaction_that_is_cut_leaves_nothing_and_the_next_one_goes_through(
    server, migrated_database, postgresql_url, open_store
):
    store = open_store(postgresql_url)

    def write_and_be_cut() -> None:
        with writing(store._engine) as connection:
            connection.exec_driver_sql("INSERT INTO counters VALUES ('generation', 10000000000000)")
            assert server.end_connections(migrated_database, "INSERT INTO counters%") == 1
            connection.exec_driver_sql("SELECT 1")

    with pytest.raises(StoreUnavailableError):
        write_and_be_cut()
    assert store.queue.next_generation(NOW) == int(NOW * 1000)


def test_opening_a_new_database_waits_for_another_program_that_creates_it(tmp_path):
    path = tmp_path / "muster.db"
    refusals: list[Exception] = []

    def open_beside() -> None:
        try:
            open_engine(f"sqlite:///{path}").dispose()
        except SettingsError as error:
            refusals.append(error)

    # A file without a write-ahead log yet, in which another program has begun to write.
    with closing(sqlite3.connect(path, isolation_level=None)) as creator:
        creator.execute("BEGIN IMMEDIATE")
        opening = threading.Thread(target=open_beside)
        opening.start()
        opening.join(0.3)
        creator.execute("COMMIT")
        opening.join()
    assert refusals == []
