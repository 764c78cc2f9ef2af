"""The tables: equal to the code's, created by the first process, and migrated from older versions without loss."""

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import LaunchStep, SessionState
from muster.store.database.connection import HEAD, new_engine, open_engine
from muster.store.database.tables import metadata
from muster.store.rows import agent_row, kernel_rows, session_row
from muster.store.store import Store
from tests.contract.forked import Forked
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState
POSTGRESQL_ONLY = ("sessions_by_start_of_id",)
NEW = {
    *("step", "progress", "requeue_after_end", "requeues", "unreachable_since", "drain_reason"),  # in 0002
    *("project", "held_by", "array_id", "array_name", "array_index", "stranded_on", "revision"),  # in 0003
    "gpu_problem",  # in 0005
    "folders",  # in 0007
    *("notice", "warned_at"),  # in 0008
    "inventory",  # in 0014
    *("boot_id", "failed_on", "silence_counts_from", "reached", "launch_record"),  # in 0015
    *("gpu_record", "gpu_accepted"),  # in 0020
    "given",  # in 0022
    "moved_for",  # in 0024
    *("signals", "signalled_at", "leaves_at", "ends_for", "signal_receivers"),  # in 0026
}


def config() -> Config:
    made = Config()
    made.set_main_option("script_location", "muster:store/migrations")
    return made


def test_head_is_alembics_head():
    assert ScriptDirectory.from_config(config()).get_heads() == [HEAD]


def test_the_migrations_make_the_tables_of_the_code(new_url):
    engine = open_engine(new_url)
    not_there = {"alembic_version", *(() if engine.dialect.name == "postgresql" else POSTGRESQL_ONLY)}

    def is_told_of(_object: object, name: str, *_: object) -> bool:
        return name not in not_there

    with engine.connect() as connection:
        opts = {"compare_type": True, "include_object": is_told_of}
        assert compare_metadata(MigrationContext.configure(connection, opts=opts), metadata) == []
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]
        indexes = {name: {i["name"] for i in sa.inspect(connection).get_indexes(name)} for name in metadata.tables}
    wanted = {name: {index.name for index in table.indexes} - not_there for name, table in metadata.tables.items()}
    assert indexes == wanted
    engine.dispose()


def open_and_close(say, url):
    Store(url).close()
    say("done")


def test_processes_that_open_a_new_database_at_once_all_can(new_url):
    with ExitStack() as stack:
        openers = [stack.enter_context(Forked(open_and_close, new_url)) for _ in range(3)]
        assert [opener.receive() for opener in openers] == ["done"] * 3


@pytest.fixture
def at_first_migration(new_url: str) -> Callable[..., str]:
    """Makes a database as the first Muster left it, with these rows."""

    def make(rows: dict[str, list[dict[str, Any]]]) -> str:
        engine = new_engine(new_url)
        with engine.begin() as connection:
            alembic = config()
            alembic.attributes["connection"] = connection
            command.upgrade(alembic, "0001")
            for name, of_table in rows.items():
                table = sa.Table(name, sa.MetaData(), autoload_with=connection)
                plain = [{key: value for key, value in row.items() if key not in NEW} for row in of_table]
                connection.execute(sa.insert(table), plain)
        engine.dispose()
        return new_url

    return make


def first_agent_row(agent: Agent, **values: Any) -> dict[str, Any]:
    """Return the row with the inventory's word inside the report, which had fewer fields then."""
    row = agent_row(agent)
    report = {name: value for name, value in json.loads(row["report"]).items() if name not in {"numa", "swarm", "fgpu"}}
    return {**row, "report": {**report, "attributes": row["inventory"]}, **values}


def test_a_database_of_the_first_muster_is_taken_over_with_all_that_is_in_it(at_first_migration, open_store):
    starts = placed_on(make_session(1, cluster_size=3), "a1", "a2", state=S.PREPARING)
    runs = placed_on(make_session(2, cluster_size=2), "a1")
    waits, ended = make_session(3), make_session(4, state=S.TERMINATED, ended_at=NOW)
    sessions = [starts, runs, waits, ended]
    answers = make_agent("a1", labels={"disk": "ssd"}, address="192.0.2.7")
    silent = first_agent_row(make_agent("a2"), state="LOST", problem="no route")
    event = {"session_id": runs.id, "at": NOW, "from_state": None, "to_state": "PENDING", "reason": "submitted"}
    store = open_store(
        at_first_migration(
            {
                "sessions": [{**session_row(session), "wait": {"message": "busy"}} for session in sessions],
                "kernels": [row for session in sessions for row in kernel_rows(session)],
                "agents": [first_agent_row(answers), silent],
                "events": [event],
                "counters": [{"name": "generation", "value": 2**41}],
            }
        )
    )
    by_id = store.get([session.id for session in sessions])
    assert by_id.pop(starts.id).step is LaunchStep.STARTING
    assert by_id == {session.id: session for session in (runs, waits, ended)}
    first, second = store.snapshot(NOW).agents
    assert (first, first.report) == (answers, answers.report)
    assert (first.inventory, first.connection) == (answers.inventory, answers.connection)
    assert (second.state, second.unreachable_since, second.problem) == (AgentState.UNREACHABLE, NOW, "no route")
    assert [line.reason for line in store.story(runs.id)] == ["submitted"]
    assert store.queue.next_generation(0) == 2**41 + 1
    store.add([make_session(5)])


def test_nobody_but_its_owner_can_read_a_new_file_whatever_the_umask(tmp_path, open_store):
    """The directory may be one that others read, where `database` names it."""
    before = os.umask(0o022)
    try:
        open_store(f"sqlite:///{tmp_path / 'muster.db'}").tokens.all()
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"muster.db": 0o600, "muster.db-wal": 0o600, "muster.db-shm": 0o600}
