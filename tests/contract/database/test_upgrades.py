"""A database of each earlier migration, with rows in every table, is upgraded without loss."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from muster.core.model.session import SessionState
from muster.core.model.wait import Wait, WaitCode
from muster.core.values.errors import SettingsError
from muster.store.database.connection import HEAD, new_engine, open_engine
from muster.store.rows import agent_row, kernel_rows, session_row
from muster.store.sessions.waits import wait_row
from muster.store.store import Store
from tests.command_line import muster, write_settings
from tests.contract.conftest import KINDS
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

if TYPE_CHECKING:
    from tests.contract.postgresql_server import PostgresqlServer

S = SessionState
RUNS = placed_on(make_session(1, cluster_size=2), "a1")
SESSIONS = (RUNS, make_session(2), make_session(3, state=S.TERMINATED, ended_at=NOW))
AGENT = make_agent("a1", labels={"disk": "ssd"})
VALUES: Mapping[type[sa.types.TypeEngine[Any]], object] = {
    sa.JSON: [],
    sa.LargeBinary: b"\x00sealed",
    sa.Boolean: True,
    sa.Float: 1.5,
    sa.Integer: 7,
    sa.String: "x",
}
REFERENCES = {"session_id": RUNS.id, "token_name": "x", "folder_id": "x"}
# Columns that a later migration changes.
CHANGED = {"sessions": {"wait", "wait_id"}, "agents": {"report", "inventory"}, "alembic_version": {"version_num"}}

_newest: dict[str, list[sa.Table]] = {}


@dataclass
class _Ladder:
    """Empty databases, one of each kind, that are upgraded step by step and copied at each.

    To make each copy from nothing would be a third of the CPU of these tests.
    """

    directory: Path
    at: dict[str, tuple[str, str]] = field(default_factory=dict)

    def climb(self, kind: str, revision: str, new: Callable[[], str]) -> str:
        """Return the url of the kind's database, which is at the revision now. `new` makes one without tables."""
        reached, url = self.at.get(kind, ("", ""))
        if not reached or reached > revision:
            url = new()
        if reached != revision:
            engine = new_engine(url)
            with engine.begin() as connection:
                command.upgrade(config(connection), revision)
            engine.dispose()
            self.at[kind] = (revision, url)
        return url


@pytest.fixture(scope="session")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> _Ladder:
    return _Ladder(tmp_path_factory.mktemp("ladder"))


@pytest.fixture(params=KINDS)
def database_at(request: pytest.FixtureRequest, ladder: _Ladder, tmp_path: Path) -> Callable[[str], str]:
    """Makes a database of the test's own that has the tables of a revision and no row. Return its url."""

    def make(revision: str) -> str:
        if request.param == "sqlite":
            made = ladder.climb("sqlite", revision, lambda: f"sqlite:///{ladder.directory / f'{revision}.db'}")
            shutil.copy(made.removeprefix("sqlite:///"), tmp_path / "muster.db")
            return f"sqlite:///{tmp_path / 'muster.db'}"
        server: PostgresqlServer = request.getfixturevalue("server")
        made = ladder.climb("postgresql", revision, lambda: server.url(server.new_database()))
        return server.url(server.new_database(made.rpartition("/")[2]))

    return make


def config(connection: sa.Connection) -> Config:
    made = Config()
    made.set_main_option("script_location", "muster:store/migrations")
    made.attributes["connection"] = connection
    return made


def earlier_revisions() -> Iterator[str]:
    made = Config()
    made.set_main_option("script_location", "muster:store/migrations")
    for script in ScriptDirectory.from_config(made).walk_revisions():
        if script.revision != HEAD:
            yield script.revision


def a_value(column: sa.Column[Any]) -> object:
    """Return a value of the column's type, or the key of a row that there is."""
    if column.name in REFERENCES:
        return REFERENCES[column.name]
    return next(value for kind, value in VALUES.items() if isinstance(column.type, kind))


def rows_of(table: sa.Table) -> list[dict[str, Any]]:
    """Return rows as a control node would have written them; of small tables one with a value in each column."""
    attributes = {} if "inventory" in table.columns else {"attributes": agent_row(AGENT)["inventory"]}
    known: dict[str, list[dict[str, Any]]] = {
        "sessions": [{**session_row(session), "wait": {"message": "busy"}} for session in SESSIONS],
        "kernels": [row for session in SESSIONS for row in kernel_rows(session)],
        "waits": [{"id": 7, "wait": wait_row(Wait(WaitCode.BUSY, "busy"))}],
        "agents": [{**agent_row(AGENT), "report": {**json.loads(agent_row(AGENT)["report"]), **attributes}}],
    }
    if table.name not in known:
        return [{column.name: a_value(column) for column in table.columns}]
    return [{name: value for name, value in row.items() if name in table.columns} for row in known[table.name]]


def tables_of(connection: sa.Connection) -> list[sa.Table]:
    metadata = sa.MetaData()
    metadata.reflect(connection)
    return metadata.sorted_tables


def newest_tables(connection: sa.Connection) -> list[sa.Table]:
    """Return the tables that the newest migration leaves, read once for each kind of database."""
    kind = connection.dialect.name
    if kind not in _newest:
        _newest[kind] = tables_of(connection)
    return _newest[kind]


def content(connection: sa.Connection, tables: list[sa.Table]) -> dict[str, tuple[sa.Table, list[dict[str, Any]]]]:
    """Return the tables by name, each with its rows."""
    return {
        table.name: (table, [dict(row) for row in connection.execute(sa.select(table)).mappings()]) for table in tables
    }


def kept(name: str, table: sa.Table, rows: list[dict[str, Any]], others: sa.Table) -> list[str]:
    """Return the rows with the columns that both have and that mean the same, in an order of their own."""
    names = {c.name for c in table.columns} & {c.name for c in others.columns} - CHANGED.get(name, set())
    return sorted(repr([(column, row[column]) for column in sorted(names)]) for row in rows)


@pytest.mark.parametrize("revision", sorted(earlier_revisions()))
def test_nothing_that_a_table_held_is_lost_and_a_control_node_goes_on_with_it(revision, database_at, open_store):
    url = database_at(revision)
    engine = new_engine(url)
    with engine.begin() as connection:
        tables = tables_of(connection)
        for table in tables:
            if table.name != "alembic_version":
                connection.execute(sa.insert(table), rows_of(table))
        before = content(connection, tables)
    engine.dispose()
    store = open_store(url)
    engine = new_engine(url)
    with engine.connect() as connection:
        after = content(connection, newest_tables(connection))
    engine.dispose()
    for name, (table, rows) in before.items():
        assert name in after
        assert rows or name == "alembic_version", f"{name} was empty: the test proves nothing"
        new, now = after[name]
        # A migration may add rows of its own, such as a counter.
        assert set(kept(name, table, rows, new)) <= set(kept(name, new, now, table)), name
        assert len(now) >= len(rows)
    snapshot = store.snapshot(NOW)
    assert {session.id for session in snapshot.placed} == {RUNS.id}
    assert [session.id for session in snapshot.pending] == [SESSIONS[1].id]
    (agent,) = snapshot.agents
    assert (agent, agent.inventory, agent.attributes) == (AGENT, AGENT.inventory, AGENT.attributes)
    assert store.get([RUNS.id])[RUNS.id] == RUNS
    store.add([make_session(5)])
    assert store.heartbeats.last() is None or store.heartbeats.last().worker == "x"
    store.agents.save([AGENT])


def test_an_older_muster_refuses_a_newer_database_in_one_line_and_leaves_it_alone(new_url, tmp_path):
    store = Store(new_url)
    store.add([make_session(1)])
    store.close()
    engine = new_engine(new_url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SettingsError) as raised:
        open_engine(new_url)
    line = str(raised.value)
    assert "\n" not in line
    assert "migration 9999" in line
    assert f"knows {HEAD}" in line
    assert "muster restore" in line
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_CONFIG", str(write_settings(tmp_path, {"database": new_url})))
        for command_line in (("ls",), ("submit", "--name", "a"), ("pass",), ("daemon",)):
            answer = muster(*command_line)
            assert (answer.code, answer.out, answer.errors[-1]) == (2, "", f"muster: {line}")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM sessions")).scalar() == 1
    engine.dispose()
