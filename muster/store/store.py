"""The only SQL. What is committed here is true; everything else can be made again from it."""

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

import sqlalchemy as sa

from muster.core.lifecycle.transitions import Event
from muster.core.model.reservation import Reservation
from muster.core.model.session import KernelLog, PullProgress, Session, SessionState, StoryLine
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.usage.by_owner import SessionRun
from muster.core.values.errors import (
    AmbiguousNameError,
    NameTakenError,
    StoreUnavailableError,
)
from muster.store.agent_samples import AgentSamples
from muster.store.agents.agents import Agents
from muster.store.agents.known import AGENT_COUNTERS, drained_agents
from muster.store.database.connection import open_engine, reading, shown, upsert, writing
from muster.store.database.counters import (
    increment_counter,
    increment_counters,
    value_of,
    values_of,
)
from muster.store.database.ids import DATABASE_COUNTERS, DatabaseIds
from muster.store.database.listener import CHANNEL, listening
from muster.store.database.postgresql import lossy_settings
from muster.store.database.settling import settled
from muster.store.database.tables import NOT_ENDED, events, kernels, logs, sessions
from muster.store.deliveries import Deliveries
from muster.store.folders import Folders, check_mountable
from muster.store.heartbeats import Heartbeats
from muster.store.image_ids import ImageIdRows
from muster.store.images import CommittedImages
from muster.store.kernel_uses import KernelUses
from muster.store.overrides import OverrideRows
from muster.store.owner_uids import OwnerUids
from muster.store.presets import PresetRows
from muster.store.pulled_images import PulledImages
from muster.store.queue_numbers import GENERATION_COUNTERS, QueueNumbers, begins_at
from muster.store.reservations import Reservations, kept_reservations_after, reservations_after
from muster.store.rows import (
    kernel_rows,
    progress_row,
    session_row,
)
from muster.store.secrets import SecretRows
from muster.store.sessions.applying import apply_all, lock
from muster.store.sessions.changes import Changes
from muster.store.sessions.ended_runs import ended_runs
from muster.store.sessions.known import SESSION_REVISION, KnownSessions
from muster.store.sessions.list_pages import ListPageRequest, Place, SessionFilter, recent_words, session_ids_of_page
from muster.store.sessions.names import meant, taken
from muster.store.sessions.pending import PendingCheck, PendingSessions, read_pending, repeat_check
from muster.store.sessions.reader import SELECT, SessionReader
from muster.store.sessions.renaming import rename
from muster.store.sessions.submissions import Submission, Submissions, claim
from muster.store.sessions.updating import Update, apply_updates
from muster.store.sessions.waits import KnownWaits
from muster.store.sign_ins import SignIns
from muster.store.tokens import Tokens
from muster.store.usage_steps import UsageSteps

_CHUNK = 500
_MOST_LOGS_AT_ONCE = 50
_LOGGED = sa.select(logs.c.session_id, logs.c.kernel_name)


class Store:
    """A store of sessions, kernels, agents and events in a relational database."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        self.agents = Agents(self._engine)
        self.reservations = Reservations(self._engine)
        self.overrides = OverrideRows(self._engine)
        self.presets = PresetRows(self._engine)
        self.uses = KernelUses(self._engine)
        self.usage_steps = UsageSteps(self._engine)
        self.samples = AgentSamples(self._engine)
        self.folders = Folders(self._engine)
        self.secrets = SecretRows(self._engine)
        self.owner_uids = OwnerUids(self._engine)
        self.deliveries = Deliveries(self._engine)
        self.tokens = Tokens(self._engine)
        self.sign_ins = SignIns(self._engine)
        self.submissions = Submissions(self._engine)
        self.changes = Changes(self._engine)
        self.images = CommittedImages(self._engine)
        self.image_ids = ImageIdRows(self._engine)
        self.pulled_images = PulledImages(self._engine)
        self.heartbeats = Heartbeats(self._engine)
        self.queue = QueueNumbers(self._engine)
        self._reader = SessionReader()
        self._known_sessions = KnownSessions(self._reader)
        self._waits = KnownWaits()
        self._snapshot = Snapshot((), (), 0.0)
        self._database_ids = DatabaseIds()

    def close(self) -> None:
        self._engine.dispose()

    @property
    def shown_url(self) -> str:
        """Return the database's URL without anything that may hold a secret."""
        return shown(self._engine.url)

    def lossy_settings(self) -> tuple[str, ...]:
        """Return the settings of the database's server by which commits may be lost in a crash; SQLite has none."""
        if self._engine.dialect.name == "sqlite":
            return ()
        with reading(self._engine) as connection:
            return lossy_settings(connection)

    def add(
        self, new: Sequence[Session], submission: Submission | None = None, check: PendingCheck | None = None
    ) -> None:
        """Add new sessions with their kernels: all of them or none.

        Raises NameTakenError when a session that has not ended has one of the names, SubmittedBeforeError when the
        submission was done already, what the check raises, and OutcomeUnknownError where the database is lost for long.
        """
        if new:
            # Users who get an error submit them again.
            settled(lambda may_be_there: self._add(new, submission, check, may_be_there=may_be_there))

    def _add(
        self, new: Sequence[Session], submission: Submission | None, check: PendingCheck | None, *, may_be_there: bool
    ) -> None:
        # Made before the transaction: of a hundred thousand kernels they take seconds, in which nobody else writes. In
        # one order everywhere, as in all writes of several rows: writers that wait for each other's rows would wait
        # forever otherwise.
        rows = [session_row(session) for session in sorted(new, key=lambda session: session.name)]
        rows_of_kernels = [row for session in new for row in kernel_rows(session)]
        with writing(self._engine) as connection:
            # An earlier try that is still being committed has the counter: it is over after that.
            revision = increment_counter(connection, SESSION_REVISION)
            if may_be_there and self._reader.of_ids(connection, [new[0].id]):
                return
            if submission is not None:
                claim(connection, submission, [session.id for session in new])
            if check is not None:
                repeat_check(connection, self._reader, check)
            check_mountable(connection, new)
            names = [session.name for session in new]
            claimed = {*names, *(s.array_name for s in new if s.array_name is not None)}
            if in_use := taken(connection, sorted(claimed)):
                raise _name_taken(in_use)
            try:
                connection.execute(sa.insert(sessions).values(revision=revision), rows)
            except sa.exc.IntegrityError:  # in the meantime, where writers do not wait for each other
                raise _name_taken(names) from None
            connection.execute(sa.insert(kernels), rows_of_kernels)
            lines = [
                {
                    "session_id": s.id,
                    "at": s.submitted_at,
                    "from_state": None,
                    "to_state": s.state,
                    "reason": "submitted",
                }
                for s in new
            ]
            connection.execute(sa.insert(events), lines)

    def pending(self) -> PendingSessions:
        """Return the sessions that wait, for a check of what may be added."""
        with reading(self._engine) as connection:
            return read_pending(connection, self._reader)

    def apply(self, changes: Iterable[Event]) -> list[Event]:
        """Apply each event whose session is still in its `from_state` and as it `expects`. Return those events.

        None places a session on an agent that is drained by now, or that a reservation of which it does not know may
        set aside.
        """
        changes = list(changes)
        if not changes:
            return []
        with writing(self._engine) as connection:
            revision = increment_counter(connection, SESSION_REVISION)
            lock(connection, sorted({event.session_id for event in changes}))
            if placing := [event for event in changes if event.placed_on]:
                drained = drained_agents(connection)
                reserved = frozenset(kept_reservations_after(connection, placing[0].at))
                changes = [event for event in changes if not _is_overtaken(event, drained, reserved)]
            return apply_all(connection, changes, revision)

    def rename(self, session: Session, name: str, by: str, now: float) -> None:
        """Raises NameTakenError, and NotPossibleInStateError where it has ended or is about to."""
        with writing(self._engine) as connection:
            rename(connection, session, name, by, now)

    def update(self, updates: Sequence[Update], now: float, check: PendingCheck) -> list[Update]:
        """Apply the updates of sessions that still wait, and were not updated since they were read; return those.

        Raises SpecError where a session would wait for itself, BadInputError for a folder that may not be mounted any
        more, and what the check raises; then none is changed.
        """
        with writing(self._engine) as connection:
            revision = increment_counter(connection, SESSION_REVISION)
            repeat_check(connection, self._reader, check)
            check_mountable(connection, [update.after for update in updates])
            return apply_updates(connection, self._reader, updates, now, revision)

    def save_waits(self, waits: Mapping[str, Wait]) -> None:
        """Save why each pending session waits, where that differs from the last snapshot.

        Sessions that wait for the same reason may share one value; so they do in the database.
        """
        changes = self._waits.changes(waits)
        if changes is None:
            return
        with writing(self._engine) as connection:
            revision = increment_counter(connection, SESSION_REVISION)
            written = changes.write(connection, revision)
        self._known_sessions.note_waits(changes, written, revision)
        self._waits = written

    def save_progress(self, session_id: str, progress: Iterable[PullProgress]) -> None:
        """Save how far a launch has come, unless it is over."""
        preparing = sessions.c.state == SessionState.PREPARING.value
        with writing(self._engine) as connection:
            revision = increment_counter(connection, SESSION_REVISION)
            this = sa.update(sessions).where(sessions.c.id == session_id, preparing)
            connection.execute(this.values(progress=progress_row(progress), revision=revision))

    def keep_logs(self, kept: Iterable[KernelLog]) -> None:
        """Keep what ended kernels wrote, in place of their earlier logs. Returns once all of them are kept."""
        rows = [asdict(log) for log in kept]
        # A log may have a megabyte and more, and on SQLite nobody else writes meanwhile.
        for start in range(0, len(rows), _MOST_LOGS_AT_ONCE):
            with writing(self._engine) as connection:
                upsert(connection, logs, rows[start : start + _MOST_LOGS_AT_ONCE])

    def kernels_with_logs(self, session_ids: Sequence[str]) -> set[tuple[str, str]]:
        """Return the session's id and the name of each kernel of these sessions whose log is kept."""
        found: set[tuple[str, str]] = set()
        with reading(self._engine) as connection:
            for start in range(0, len(session_ids), _CHUNK):
                some = logs.c.session_id.in_(session_ids[start : start + _CHUNK])
                found |= {(row[0], row[1]) for row in connection.execute(_LOGGED.where(some))}
        return found

    def log(self, session_id: str, kernel_name: str) -> bytes | None:
        query = sa.select(logs.c.gz).where(logs.c.session_id == session_id, logs.c.kernel_name == kernel_name)
        with reading(self._engine) as connection:
            gz = connection.execute(query).scalar()
        return None if gz is None else gzip.decompress(gz)

    def add_to_counters(self, amounts: Mapping[str, int]) -> None:
        """Raises each by its amount, all of them or none."""
        with writing(self._engine) as connection:
            increment_counters(connection, amounts)

    def recent_words(self, owner: str | None, limit: int) -> dict[str, list[str]]:
        """Return as `list_pages.recent_words`."""
        return recent_words(self._engine, owner, limit)

    def counters(self, names: Sequence[str]) -> dict[str, int]:
        """Return counters by name; one that was never incremented is 0."""
        with reading(self._engine) as connection:
            return values_of(connection, tuple(names))

    def notify(self, message: str) -> bool:
        """Notify all listeners on this database, wherever they run. Return False where that is not possible.

        What went before is committed. Listeners read again after an outage, since a message may be lost.
        """
        if self._engine.dialect.name != "postgresql":
            return False
        try:
            with writing(self._engine) as connection:
                connection.execute(sa.select(sa.func.pg_notify(CHANNEL, message)))
        except StoreUnavailableError:
            return False
        return True

    def listen(self, on_message: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `on_message` from another thread with each message of `notify`; never on SQLite, which cannot."""
        return listening(self._engine, on_message) if self._engine.dialect.name == "postgresql" else nullcontext()

    def snapshot(self, now: float) -> Snapshot:
        """Return agents, sessions that have not ended, what they depend on, and reservations, as of one moment."""
        with reading(self._engine) as connection:
            numbers = values_of(
                connection, (*AGENT_COUNTERS, SESSION_REVISION, *GENERATION_COUNTERS, *DATABASE_COUNTERS)
            )
            known = self.agents.read(connection, numbers)
            queue = self._known_sessions.read(connection, numbers[SESSION_REVISION])
            ended = self._known_sessions.ended(connection, queue)
            reserved = reservations_after(connection, now)
            databases = self._database_ids.read(connection, numbers)
        self._waits = queue.waits
        before = self._snapshot
        if before.sessions is not queue.sessions:
            before = Snapshot((), queue.sessions, now)
        # Several threads may read: each returns its own.
        self._snapshot = read = before.of_same_sessions(
            agents=known,
            now=now,
            ended=ended,
            reservations=reserved,
            begins_at=begins_at(numbers),
            databases=databases,
        )
        return read

    def ended_runs(self, after: float) -> dict[str, SessionRun]:
        """Return by session id the runs of sessions that ended later than that."""
        with reading(self._engine) as connection:
            return ended_runs(connection, after)

    def search(
        self,
        *,
        ended: bool = False,
        states: Iterable[SessionState] = (),
        owner: str | None = None,
        limit: int | None = None,
    ) -> list[Session]:
        """Return sessions, oldest first, an array's by their indexes.

        Those that have ended are included only with `ended` or by their state.
        """
        query = SELECT
        names = [state.value for state in states]
        if names:
            query = query.where(sessions.c.state.in_(names))
        elif not ended:
            query = query.where(NOT_ENDED)
        if owner is not None:
            query = query.where(sessions.c.owner == owner)
        if limit is not None:
            newest_first = [sessions.c[name].desc() for name in ("submitted_at", "array_index", "id")]
            query = query.order_by(None).order_by(*newest_first).limit(limit)
        with reading(self._engine) as connection:
            found = self._reader.read(connection, query)
        return sorted(found, key=lambda session: (session.submitted_at, session.array_index or 0, session.id))

    def page(self, filtered: SessionFilter, page: ListPageRequest) -> tuple[list[str], Place | None, int]:
        """Return as `session_ids_of_page`."""
        return session_ids_of_page(self._engine, filtered, page)

    def find(self, reference: str, owner: str | None = None) -> Session:
        """Return the session of an id, a name, or the start of an id (4 characters or more) that is nobody's name.

        A name that several sessions had means the one that has not ended, or the newest. Raises NotFoundError, and
        AmbiguousNameError if several that have not ended fit, or if the name is an array's. With an `owner`, only their
        sessions count.
        """
        found = self.find_all(reference, owner)
        if len(found) > 1:
            raise AmbiguousNameError(
                f"{reference!r} is an array of {len(found)} sessions; name one of them, such as {found[0].name}"
            )
        return found[0]

    def find_all(self, reference: str, owner: str | None = None) -> list[Session]:
        """Return as `find`; for an array's name all of its sessions by their indexes."""
        with reading(self._engine) as connection:
            found = self._reader.read(connection, SELECT.where(meant(connection, reference, owner)))
        return sorted(found, key=lambda session: session.array_index or 0)

    def ids(self, reference: str, owner: str | None = None) -> list[str]:
        """Return the ids of what `find_all` finds; with an `owner`, among that owner's sessions only."""
        with reading(self._engine) as connection:
            query = sa.select(sessions.c.id).where(meant(connection, reference, owner))
            return list(connection.execute(query).scalars())

    def get(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """Return sessions by id, in the order of the ids; unknown ids are left out."""
        with reading(self._engine) as connection:
            return self._reader.of_ids(connection, session_ids)

    def session_revision(self) -> int:
        """Return a number that each change of a session, or of why one waits, makes larger."""
        with reading(self._engine) as connection:
            return value_of(connection, SESSION_REVISION)

    def story(self, session_id: str) -> Sequence[StoryLine]:
        query = sa.select(events.c.at, events.c.from_state, events.c.to_state, events.c.reason)
        with reading(self._engine) as connection:
            rows = connection.execute(query.where(events.c.session_id == session_id).order_by(events.c.id))
            return [StoryLine(*row) for row in rows]

    def last_event(self) -> int:
        """Return the number of the newest line in any story; 0 if there is none."""
        with reading(self._engine) as connection:
            return connection.execute(sa.select(sa.func.max(events.c.id))).scalar() or 0

    def events_after(self, number: int) -> list[tuple[str, str]]:
        """Return session id and new state of each change since."""
        query = sa.select(events.c.session_id, events.c.to_state).where(
            events.c.id > number, events.c.from_state.is_distinct_from(events.c.to_state)
        )
        with reading(self._engine) as connection:
            return [(row.session_id, row.to_state) for row in connection.execute(query.order_by(events.c.id))]


def _is_overtaken(event: Event, drained: frozenset[str], reserved: frozenset[Reservation]) -> bool:
    """Return whether an event places a session where none may be placed any more."""
    return bool(event.placed_on) and not (drained.isdisjoint(event.placed_on) and reserved.issubset(event.reservations))


def _name_taken(names: Iterable[str]) -> NameTakenError:
    listed = ", ".join(sorted(names))
    return NameTakenError(
        f"name: a session that has not ended is already called {listed}; end it or choose another name"
    )
