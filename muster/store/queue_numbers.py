"""Numbers by which those that work the queue know what is newer: workers, manifests and passes."""

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager

import sqlalchemy as sa

from muster.core.lifecycle.adoption import Adoption
from muster.core.model.session import PLACED
from muster.core.values.errors import SettingsError
from muster.store.database.connection import reading, writing
from muster.store.database.counters import increment_counter, number_of, set_counter, value_of, values_of
from muster.store.database.fence import WORKER, WorkerMark, writing_as
from muster.store.database.ids import begin_database, continue_databases
from muster.store.database.place import place_of
from muster.store.database.tables import sessions

log = logging.getLogger("muster.store")
_GENERATION = "generation"
# The first that this database gave out; 1 where what it does not know is to be removed. Older databases have none.
_FIRST_GENERATION = "first generation"
_REQUESTED = "requested"
_FINISHED = "finished"
_RESTORED = "restored"
_RESTORED_HOLDING = "restored holding"
_ADOPTED = "adopted"
# The restore since which the database has its id, plus one; 0 where it has none.
_NAMED = "named"
# By `number_of`; none in databases from before it was noted.
_PLACE = "place"
# By `number_of`; none in databases from before it was noted.
_CLUSTER = "cluster"
# In the SQL of both databases.
_NOTE = """
INSERT INTO counters (name, value) VALUES ('restored', 1)
ON CONFLICT (name) DO UPDATE SET value = counters.value + 1
"""
_NOTE_HOLDING = """
INSERT INTO counters (name, value) SELECT 'restored holding', value FROM counters WHERE name = 'restored'
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_NOTE_KNOWN = """
INSERT INTO counters (name, value) VALUES ('first generation', 1) ON CONFLICT (name) DO NOTHING
"""
GENERATION_COUNTERS = (_GENERATION, _FIRST_GENERATION)


def restore_note(*, holds: bool) -> tuple[str, ...]:
    """Return the statements of `QueueNumbers.note_restore`, for a copy of a database that is no store's yet."""
    return (_NOTE, _NOTE_HOLDING, _NOTE_KNOWN) if holds else (_NOTE, _NOTE_KNOWN)


def begins_at(counters: Mapping[str, int]) -> float:
    """Return the generation at which a database with these counters begins (`Snapshot.begins_at`)."""
    generation, first = (counters[name] for name in GENERATION_COUNTERS)
    return math.inf if not generation and not first else first


class QueueNumbers:
    """The numbers of a store's queue."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def begin_work(self) -> WorkerMark:
        """Return the mark of a new worker of the queue. From now on, those of before can write nothing.

        A database that lies elsewhere than when the last one began may lack the newest commits: then an adoption is to
        come, as after a restore. After one it gets another id: agents obey it then, and not the one that it was.
        """
        with writing(self._engine) as connection:
            number = increment_counter(connection, WORKER)
            place = place_of(connection)
            before, now = value_of(connection, _PLACE), number_of(place)
            # An adoption that is to come already may be to hold what is pending.
            is_due = value_of(connection, _RESTORED) != value_of(connection, _ADOPTED)
            may_be_older = bool(before and now and before != now) and not is_due
            if now and before != now:
                set_counter(connection, _PLACE, now)
            if may_be_older:
                _carry_out(restore_note(holds=False), connection)
            restores = value_of(connection, _RESTORED)
            if value_of(connection, _NAMED) != restores + 1:
                begin_database(connection)
                set_counter(connection, _NAMED, restores + 1)
        if may_be_older:
            log.warning("the database lies elsewhere than before, and may lack what was decided last")
        return WorkerMark(number, place if self._engine.dialect.name == "postgresql" else "")

    def note_cluster(self, name: str) -> None:
        """Record the name of the cluster by which agents label what runs from now on.

        Raises SettingsError if sessions that run were launched under another one: nothing of them would be found.
        """
        if problem := self.problem_of_cluster(name):
            raise SettingsError(f"cluster: {problem}")
        if self._value(_CLUSTER) != number_of(name):
            with writing(self._engine) as connection:
                set_counter(connection, _CLUSTER, number_of(name))

    def problem_of_cluster(self, name: str) -> str:
        """Return why the queue cannot be worked under this name of the cluster; empty if it can."""
        running = sa.select(sa.func.count()).select_from(sessions).where(sessions.c.state.in_(PLACED))
        with reading(self._engine) as connection:
            if value_of(connection, _CLUSTER) in {0, number_of(name)}:
                return ""
            count = connection.execute(running).scalar()
        if not count:
            return ""
        what = "1 session runs" if count == 1 else f"{count} sessions run"
        return (
            f"{what} under another name of the cluster than {name}, by which agents would find nothing of them;"
            " put the former name back, or end all sessions under it first"
        )

    def working_as(self, worker: WorkerMark) -> AbstractContextManager[None]:
        """Let this thread write for a worker, as long as no newer one has begun, on no other server.

        Each write to the store raises QueueLockLostError otherwise, and writes nothing: what the worker has read may be
        out of date in ways that its events do not say, such as what is free on an agent.
        """
        return writing_as(self._engine, worker)

    def next_generation(self, now: float, accepted: int = 0) -> int:
        """Return a number above every earlier one, and above what agents have `accepted`.

        It follows the clock in milliseconds. A database begun anew, or restored from a backup, does not know the newest
        number that was given out; and where the clock is behind what it was then, the agents do.
        """
        with writing(self._engine) as connection:
            is_first = not any(values_of(connection, GENERATION_COUNTERS).values())
            generation = increment_counter(connection, _GENERATION, max(int(now * 1000), accepted + 1))
            if is_first:
                increment_counter(connection, _FIRST_GENERATION, generation)
            return generation

    def disown_unknown(self, databases: Collection[str] = ()) -> None:
        """Record that launches which the database does not know are to be removed, be they from before it or not.

        `databases` are the ids of others whose launches those are too.
        """
        with writing(self._engine) as connection:
            set_counter(connection, _FIRST_GENERATION, 1)
            continue_databases(connection, databases)

    def note_restore(self, *, holds: bool) -> None:
        """Record that a backup was restored: agents run launches that it does not know.

        `holds`: what may have run since the backup is to be held.
        """
        with writing(self._engine) as connection:
            _carry_out(restore_note(holds=holds), connection)

    def adoption(self) -> Adoption | None:
        """Return the adoption of what agents run that is to come after a restore; None where there is none."""
        restored = self._value(_RESTORED)
        if restored == self._value(_ADOPTED):
            return None
        return Adoption(holds=self._value(_RESTORED_HOLDING) == restored)

    def finish_adoption(self, databases: Collection[str] = ()) -> None:
        """Record that what agents run was adopted, by the manifests of databases with these ids."""
        with writing(self._engine) as connection:
            increment_counter(connection, _ADOPTED, value_of(connection, _RESTORED), step=0)
            continue_databases(connection, databases)

    def request_pass(self) -> int:
        """Request a pass and return its number.

        Once `finished_pass` has reached the number, a pass has read the present state.
        """
        return self._raise(_REQUESTED, 1, step=1)

    def requested_pass(self) -> int:
        """Return the newest request's number; a pass that begins after this call serves all up to it."""
        return self._value(_REQUESTED)

    def finish_pass(self, number: int) -> None:
        """Record the end of a pass that began when `number` was the newest request."""
        self._raise(_FINISHED, number, step=0)

    def finished_pass(self) -> int:
        """Return the newest request whose pass is over."""
        return self._value(_FINISHED)

    def _value(self, name: str) -> int:
        with reading(self._engine) as connection:
            return value_of(connection, name)

    def _raise(self, name: str, at_least: int, *, step: int) -> int:
        with writing(self._engine) as connection:
            return increment_counter(connection, name, at_least, step=step)


def _carry_out(statements: Iterable[str], connection: sa.Connection) -> None:
    for statement in statements:
        connection.execute(sa.text(statement))
