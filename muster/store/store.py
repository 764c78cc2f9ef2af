"""The only SQL. What is committed here is true; everything else can be made again from it."""

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import sqlalchemy as sa

from muster.core.agents.agent import Agent
from muster.core.agents.gpu_health import AcceptedSymptoms
from muster.core.agents.launch_record import LaunchRecord
from muster.core.lifecycle.transitions import Event
from muster.core.model.reservation import Reservation
from muster.core.model.session import PullProgress, Session, SessionState, StoryLine
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.usage.by_owner import SessionRun
from muster.core.values.errors import (
    AmbiguousNameError,
    NameTakenError,
    NotFoundError,
    StoreUnavailableError,
)
from muster.store.agent_samples import AgentSamples
from muster.store.agents.known import AGENT_COUNTERS, FORGOTTEN, REVISION, KnownAgents, drained_agents
from muster.store.agents.left import keep_what_was_said, say_it_again
from muster.store.database.connection import open_engine, reading, shown, upsert, writing
from muster.store.database.counters import (
    increment_counter,
    increment_counters,
    value_of,
    values_of,
)
from muster.store.database.listener import CHANNEL, listening
from muster.store.database.postgresql import lossy_settings
from muster.store.database.settling import settled
from muster.store.database.tables import NOT_ENDED, agents, events, kernels, logs, sessions
from muster.store.deliveries import Deliveries
from muster.store.folders import Folders, check_mountable
from muster.store.heartbeats import Heartbeats
from muster.store.images import CommittedImages
from muster.store.kernel_uses import KernelUses
from muster.store.overrides import OverrideRows
from muster.store.owner_uids import OwnerUids
from muster.store.presets import PresetRows
from muster.store.pulled_images import PulledImages
from muster.store.queue_numbers import GENERATION_COUNTERS, QueueNumbers, begins_at
from muster.store.reservations import Reservations, kept_reservations_after, reservations_after
from muster.store.rows import (
    accepted_symptoms_row,
    agent_row,
    kernel_rows,
    launch_record_from,
    launch_record_row,
    progress_row,
    session_row,
)
from muster.store.secrets import SecretRows
from muster.store.sessions.applying import apply_one, lock
from muster.store.sessions.changes import Changes
from muster.store.sessions.ended_runs import ended_runs
from muster.store.sessions.known import SESSION_REVISION, KnownSessions
from muster.store.sessions.list_pages import ListPageRequest, Place, SessionFilter, recent_words, session_ids_of_page
from muster.store.sessions.names import meant, taken
from muster.store.sessions.pending import PendingCheck, PendingSessions, read_pending, repeat_check
from muster.store.sessions.reader import SELECT, SessionReader
from muster.store.sessions.renaming import rename
from muster.store.sessions.submissions import Submission, Submissions, claim
from muster.store.sessions.waits import KnownWaits
from muster.store.sign_ins import SignIns
from muster.store.tokens import Tokens
from muster.store.usage_steps import UsageSteps


class Store:
    """A store of sessions, kernels, agents and events in a relational database."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
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
        self.pulled_images = PulledImages(self._engine)
        self.heartbeats = Heartbeats(self._engine)
        self.queue = QueueNumbers(self._engine)
        self._known_agents = KnownAgents()
        self._reader = SessionReader()
        self._known_sessions = KnownSessions(self._reader)
        self._waits = KnownWaits()
        self._snapshot = Snapshot((), (), 0.0)

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
            return [event for event in changes if apply_one(connection, event, revision)]

    def rename(self, session: Session, name: str, by: str, now: float) -> None:
        """Raises NameTakenError, and NotPossibleInStateError where it has ended or is about to."""
        with writing(self._engine) as connection:
            rename(connection, session, name, by, now)

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

    def keep_log(self, session_id: str, kernel_name: str, gz: bytes) -> None:
        """Keep what an ended kernel wrote, gzipped, in place of its earlier log."""
        with writing(self._engine) as connection:
            upsert(connection, logs, [{"session_id": session_id, "kernel_name": kernel_name, "gz": gz}])

    def log(self, session_id: str, kernel_name: str) -> bytes | None:
        query = sa.select(logs.c.gz).where(logs.c.session_id == session_id, logs.c.kernel_name == kernel_name)
        with reading(self._engine) as connection:
            gz = connection.execute(query).scalar()
        return None if gz is None else gzip.decompress(gz)

    def save_agents(self, observed: Iterable[Agent]) -> None:
        """Save what observing agents reported. Whether they are drained stays as it is."""
        saved = {agent.id: agent for agent in observed}
        rows = [agent_row(saved[agent_id]) for agent_id in sorted(saved)]
        self._known_agents.note_written({row["id"]: (row["report"], saved[row["id"]].report) for row in rows})
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            upsert(connection, agents, [{**row, "revision": revision} for row in rows])
            say_it_again(connection, saved)

    def drain_agent(self, agent_id: str, reason: str, *, keeps_reason: bool = False) -> bool:
        """Let no session start on it until it is resumed. Return whether that is a change. Raises NotFoundError.

        With `keeps_reason`, one that is drained already keeps the reason that it has.
        """
        return self._set_drain(agent_id, reason, keeps_reason=keeps_reason)

    def resume_agent(self, agent_id: str) -> bool:
        """Resume an agent; return whether it was drained or suspect. Raises NotFoundError."""
        suspect = any(agent.id == agent_id and agent.is_suspect for agent in self.agents())
        self.save_launch_records({agent_id: LaunchRecord()})
        return self._set_drain(agent_id, None) or suspect

    def save_launch_records(self, records: Mapping[str, LaunchRecord], read: Iterable[Agent] = ()) -> None:
        """Save how launches went, by agent id. What has changed since the agents were `read`, by a resume, stays."""
        if not records:
            return
        before = {agent.id: agent.launch_record for agent in read}
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            for agent_id, record in sorted(records.items()):
                this = agents.c.id == agent_id
                now = connection.execute(sa.select(agents.c.launch_record).where(this)).scalar()
                if now is not None and before.get(agent_id) in {None, launch_record_from(now)}:
                    values = {"launch_record": launch_record_row(record), "revision": revision}
                    connection.execute(sa.update(agents).where(this).values(**values))

    def accept_symptoms(self, agent_id: str, accepted: AcceptedSymptoms) -> None:
        """Accept symptoms of an agent's GPUs, each in place of those that were accepted of that GPU before."""
        this = agents.c.id == agent_id
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            before = connection.execute(sa.select(agents.c.gpu_accepted).where(this)).scalar() or {}
            values = {"gpu_accepted": {**before, **accepted_symptoms_row(accepted)}, "revision": revision}
            connection.execute(sa.update(agents).where(this).values(**values))

    def forget_agent(self, agent_id: str) -> None:
        """Forget an agent that has left the inventory, but for its drain and the symptoms that are accepted."""
        with writing(self._engine) as connection:
            increment_counter(connection, FORGOTTEN)
            keep_what_was_said(connection, agent_id)
            connection.execute(sa.delete(agents).where(agents.c.id == agent_id))

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

    def agents(self) -> tuple[Agent, ...]:
        """Return all agents by id."""
        with reading(self._engine) as connection:
            return self._known_agents.read(connection, values_of(connection, AGENT_COUNTERS))

    def snapshot(self, now: float) -> Snapshot:
        """Return agents, sessions that have not ended, what they depend on, and reservations, as of one moment."""
        with reading(self._engine) as connection:
            numbers = values_of(connection, (*AGENT_COUNTERS, SESSION_REVISION, *GENERATION_COUNTERS))
            known = self._known_agents.read(connection, numbers)
            queue = self._known_sessions.read(connection, numbers[SESSION_REVISION])
            ended = self._known_sessions.ended(connection, queue)
            reserved = reservations_after(connection, now)
        self._waits = queue.waits
        before = self._snapshot
        if before.sessions is not queue.sessions:
            before = Snapshot((), queue.sessions, now)
        # Several threads may read: each returns its own.
        self._snapshot = read = before.of_same_sessions(
            agents=known, now=now, ended=ended, reservations=reserved, begins_at=begins_at(numbers)
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

    def _set_drain(self, agent_id: str, reason: str | None, *, keeps_reason: bool = False) -> bool:
        is_agent, known = agents.c.id == agent_id, agents.c.drain_reason
        changing = sa.update(agents).where(
            is_agent, known.is_(None) if keeps_reason else known.is_distinct_from(reason)
        )
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            if connection.execute(changing.values(drain_reason=reason, revision=revision)).rowcount:
                return True
            if connection.execute(sa.select(agents.c.id).where(is_agent)).first() is None:
                raise NotFoundError(f"there is no agent {agent_id!r}; see `muster agents`")
            return False


def _is_overtaken(event: Event, drained: frozenset[str], reserved: frozenset[Reservation]) -> bool:
    """Return whether an event places a session where none may be placed any more."""
    return bool(event.placed_on) and not (drained.isdisjoint(event.placed_on) and reserved.issubset(event.reservations))


def _name_taken(names: Iterable[str]) -> NameTakenError:
    listed = ", ".join(sorted(names))
    return NameTakenError(
        f"name: a session that has not ended is already called {listed}; end it or choose another name"
    )
