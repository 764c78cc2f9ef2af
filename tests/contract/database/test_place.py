"""A database that lies elsewhere than before: it may be older than what runs, so that what runs is adopted."""

import shutil
from pathlib import Path

import pytest

from muster.core.lifecycle.adoption import Adoption
from muster.core.values.errors import QueueLockLostError, StoreUnavailableError
from muster.service.backup import back_up, restore
from muster.settings import Settings
from muster.store.store import Store
from tests.contract.postgresql_server import postgresql_server, recovered_server
from tests.strategies.values import NOW


def begun(url: str) -> Adoption | None:
    """Begin work on the database, and return the adoption that is due then."""
    store = Store(url)
    try:
        store.queue.begin_work()
        return store.queue.adoption()
    finally:
        store.close()


def finish_adoption(url: str) -> None:
    store = Store(url)
    store.queue.finish_adoption()
    store.close()


def put_back(path: Path) -> None:
    """Put a copy of the file in its place, as who restores a disk."""
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").rename(path)


def test_a_database_that_stays_where_it_is_asks_for_no_adoption(url):
    assert [begun(url) for _ in range(3)] == [None] * 3


def test_what_runs_is_adopted_once_where_the_file_is_another_one(tmp_path):
    path = tmp_path / "muster.db"
    url = f"sqlite:///{path}"
    begun(url)
    put_back(path)
    # Until it is over, also after a crash.
    assert [begun(url) for _ in range(2)] == [Adoption(holds=False)] * 2
    finish_adoption(url)
    assert begun(url) is None


def test_what_runs_is_adopted_where_a_dump_was_loaded_into_another_database(server):
    former = server.new_database()
    assert begun(server.url(former)) is None
    assert begun(server.url(server.new_database(former))) == Adoption(holds=False)


def ids_of(url: str) -> tuple[str, ...]:
    store = Store(url)
    try:
        return store.snapshot(NOW).databases
    finally:
        store.close()


def test_agents_obey_the_database_that_lies_elsewhere_and_not_the_former_any_more(server):
    former = server.new_database()
    begun(server.url(former))
    later = server.new_database(former)
    begun(server.url(later))
    assert ids_of(server.url(later))[1:] == ids_of(server.url(former))


@pytest.mark.parametrize("hold", [True, False])
def test_a_restore_says_itself_what_is_held_although_its_file_is_another_one(tmp_path, hold):
    settings = Settings(state_dir=tmp_path)
    begun(settings.database_url)
    back_up(settings, tmp_path / "backup.tar.gz")
    restore(settings, tmp_path / "backup.tar.gz", hold=hold)
    assert begun(settings.database_url) == Adoption(holds=hold)
    finish_adoption(settings.database_url)
    assert begun(settings.database_url) is None


def test_a_worker_writes_nothing_on_a_server_without_the_newest_commits_and_the_next_one_adopts():
    with postgresql_server() as primary:
        name = primary.new_database()
        store = Store(primary.url(name))
        mark = store.queue.begin_work()
        store.close()
        primary.stop()
        with recovered_server(primary) as replica:
            primary.start()
            hosts = f"host=127.0.0.1:{primary.port}&host=127.0.0.1:{replica.port}&target_session_attrs=read-write"
            store = Store(f"postgresql://postgres@/{name}?{hosts}")
            with store.queue.working_as(mark):
                lost = store.queue.next_generation(NOW)
            primary.stop()
            with pytest.raises(QueueLockLostError, match="another server"), store.queue.working_as(mark):
                store.queue.next_generation(NOW)
            store.queue.begin_work()
            assert store.queue.adoption() == Adoption(holds=False)
            assert store.queue.next_generation(NOW) == lost
            store.close()
        primary.start()


def test_a_worker_does_not_begin_while_the_place_cannot_be_asked_for(server):
    """It would not notice that the database is another one, as it may be after an outage."""
    name = server.new_database()
    url = f"{server.url(name)}?options=-c%20search_path%3Dpublic%2Cpg_catalog"
    assert begun(url) is None
    server.run_in(
        name,
        "CREATE FUNCTION public.pg_control_system(OUT system_identifier bigint) LANGUAGE plpgsql"
        " AS $$ BEGIN RAISE 'it takes too long' USING ERRCODE = 'query_canceled'; END $$",
    )
    with pytest.raises(StoreUnavailableError, match="it takes too long"):
        begun(url)
    server.run_in(name, "DROP FUNCTION public.pg_control_system()")
    assert begun(url) is None


def test_a_server_that_tells_nobody_where_it_is_is_worked_with_all_the_same(server):
    name = server.new_database()
    server.run_in(
        name, f"ALTER DATABASE {name} OWNER TO guarded", "REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC"
    )
    url = f"postgresql://guarded:right@127.0.0.1:{server.port}/{name}"
    store = Store(url)
    mark = store.queue.begin_work()
    with store.queue.working_as(mark):
        store.queue.next_generation(NOW)
    store.close()
    assert begun(url) is None
