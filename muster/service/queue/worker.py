"""The shell around the queue's turn: read, decide, commit, send Ansible to the agents, record each answer as it comes.

Every decision is read from the store, and committed before anything acts on it. A crash anywhere so leaves a state from
which the next worker goes on by this same code. This object's memory only spares it repeated requests.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from muster.core.agents.agent import Agent
from muster.core.launch.manifest import KeyPair, LaunchPolicy, Render
from muster.core.lifecycle import transitions
from muster.core.lifecycle.launch_usage import LaunchUsage
from muster.core.lifecycle.observation import newest_accepted
from muster.core.lifecycle.transitions import Event
from muster.core.model.plan import Plan, Waits
from muster.core.model.reported import Reports
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.schedule import schedule
from muster.core.turn.conclusions import conclude
from muster.core.turn.facts import Fact, VisitOver
from muster.core.turn.foreign_kernels import databases_of
from muster.core.turn.interpretation import Interpretation, interpret
from muster.core.turn.last_words import gone_with_usage, unfetched_spools
from muster.core.turn.ledger import Ledger, TurnRules
from muster.core.turn.turn import Convergence, Observation, Turn, turn, turn_of_deaths
from muster.core.values.errors import MusterError, SettingsError, StoreUnavailableError
from muster.core.values.garbage import without_garbage_collection
from muster.service.queue.agent_sampling import AgentSampling
from muster.service.queue.manifests import LastWords, ManifestWriter
from muster.service.queue.pulls import PullImage, PullRunner
from muster.service.queue.usage_sampling import UsageSampling
from muster.service.queue.visits import Gateway, Start, VisitRunner
from muster.service.secrets.secrets import Secrets, with_secrets
from muster.store.store import Store

log = logging.getLogger(__name__)
_USING = frozenset({SessionState.RUNNING, SessionState.TERMINATING})


@dataclass(slots=True)
class Work:
    """The work that was done, by session id; `problems` are by agent id."""

    scheduled: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    waiting: int = 0
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return bool(self.scheduled or self.started or self.ended or self.failed)

    def note(self, session_id: str, to_state: str) -> None:
        lists = {
            SessionState.SCHEDULED: self.scheduled,
            SessionState.RUNNING: self.started,
            SessionState.TERMINATED: self.ended,
            SessionState.ERROR: self.failed,
        }
        if to_state in lists:
            lists[SessionState(to_state)].append(session_id)


@dataclass(frozen=True, slots=True)
class WorkerDependencies:
    """The worker's means; `rules` are those of its turns.

    As long as `may_place` says no, nothing new is placed: the scheduler is still being compiled. `collect_images` gets
    what is recorded, and the agents that have just reported. `hurry` gets agents that sessions wait for, which are to
    be observed before others. `refused_images` returns, by session id, why the owner may not run an image of it any
    more.
    """

    store: Store
    gateway: Gateway
    pull_image: PullImage
    render: Render
    make_key_pair: Callable[[str], KeyPair]
    launch_policy: LaunchPolicy
    start: Start
    with_policy: Callable[[Snapshot], Snapshot]
    secrets: Secrets
    rules: TurnRules
    clock: Callable[[], float] = time.time
    may_place: Callable[[], bool] = lambda: True
    collect_images: Callable[[Snapshot, Sequence[Agent]], None] = lambda _snapshot, _agents: None
    hurry: Callable[[Collection[str]], None] = lambda _agent_ids: None
    refused_images: Callable[[Sequence[Session]], Mapping[str, str]] = lambda _sessions: {}


class QueueWorker:
    """The worker of a queue, one at a time. Only one thread calls its methods.

    `send` puts facts where `take` gets them from; visits and pulls call it from their own threads. `snapshot` is what
    was last read. What the scheduler remembers is a cache of what it works out; it knows values by their identity,
    which a ledger of values cannot promise, so it stays here.
    """

    def __init__(self, shell: WorkerDependencies, send: Callable[[Fact], None]) -> None:
        self.work = Work()
        self.failure: MusterError | None = None
        # First, since it finds out whether an adoption is due.
        self._mark = shell.store.queue.begin_work()
        self.ledger = Ledger(adoption=shell.store.queue.adoption())
        if self.ledger.adoption is not None:
            log.info("the database was put back: nothing begins or ends before all agents have said what they run")
        self.snapshot = Snapshot((), (), 0.0)
        self._shell = shell
        self._visits = VisitRunner(shell.gateway, shell.start, send)
        self._pulls = PullRunner(shell.pull_image, shell.start, send)
        self._writer = ManifestWriter(shell.store, shell.launch_policy, shell.render)
        self._memory = PassMemory()
        self._saved: Waits | None = None
        self._sampling = AgentSampling(shell.store)
        self._usage_sampling = UsageSampling(shell.store)

    @property
    def is_idle(self) -> bool:
        return self.ledger.is_idle

    def note_death(self, agent_id: str, session_id: str) -> None:
        """Observe the agent, unless an answer tells first that a kernel of this session has ended."""
        self.ledger = self.ledger.with_death(agent_id, session_id)

    def observe_deaths(self) -> None:
        """Begin to observe agents where kernels died, and from which no decision needs anything else."""
        begun = turn_of_deaths(self.snapshot.at(self._shell.clock()), self.ledger, self._shell.rules)
        self.ledger = begun.ledger
        self._begin(begun)

    def observe_all(self) -> None:
        """Observe all agents, and try again what has failed or resisted."""
        self.ledger = self.ledger.observing_all()

    def take(self, facts: Sequence[Fact]) -> tuple[Agent, ...]:
        """Record the facts and return the agents that gave a report. `decide` says what follows from that.

        Raises QueueLockLostError when another worker has begun since.
        """
        if not facts:
            return ()
        with self._shell.store.queue.working_as(self._mark):
            snapshot = self._read()
            gone = self._gone(facts, snapshot)
            meaning = interpret(snapshot, self.ledger, facts, self._shell.rules, gone)
            self._record(meaning, snapshot)
        if meaning.reporting:
            self._shell.collect_images(snapshot, meaning.reporting)
        for fact in facts:
            if isinstance(fact, VisitOver) and fact.error is not None:
                self.failure = fact.error
        return meaning.reporting

    def decide(self) -> None:
        """Take turns until nothing more follows: commit what is decided, and begin visits that make it so.

        Raises QueueLockLostError when another worker has begun since.
        """
        with without_garbage_collection(), self._shell.store.queue.working_as(self._mark):
            while not self._take_turn():
                continue

    def conclude(self) -> None:
        """Apply what follows for the sessions that are placed, without starting anything."""
        with self._shell.store.queue.working_as(self._mark):
            snapshot = self._read()
            events, self.ledger = conclude(snapshot, self.ledger, self._shell.rules)
            self._apply(events)

    def _take_turn(self) -> bool:
        """Take one turn. Return whether nothing more follows for now."""
        read = self._read()
        decided = turn(read, self.ledger, self._plan, self._shell.rules)
        if len(self._apply(decided.events)) < len(decided.events):
            # Somebody has changed a session meanwhile.
            return False
        if decided.agents:
            self._shell.store.agents.save(decided.agents)
        self._shell.store.agents.save_launch_records(decided.records, read.agents)
        if self.ledger.adoption is not None and decided.ledger.adoption is None:
            self._shell.store.queue.finish_adoption(databases_of(decided.snapshot.agents))
            log.info("all agents have said what they run: the queue goes on from that")
        self.ledger, self.snapshot = decided.ledger, decided.snapshot
        if decided.waits is not None:
            self._save_waits(decided.waits)
        self._begin(decided)
        return not decided.again

    def _save_waits(self, waits: Waits) -> None:
        if waits is not self._saved:
            self._shell.store.save_waits(waits.reasons)
            self._saved = waits
        self.work.waiting = len(waits)

    def _plan(self, snapshot: Snapshot) -> Plan | None:
        if not self._shell.may_place():
            return None
        try:
            return schedule(self._shell.with_policy(snapshot), self._memory)
        except SettingsError as error:
            # A site's plugin is broken: placed sessions go on, and nothing new starts until it is mended.
            self.failure = error
            return None

    def _begin(self, decided: Turn) -> None:
        numbers = [visit.visit for visit in decided.visits]
        self.ledger = replace(self.ledger, visits=self.ledger.visits.begun(numbers, self._shell.clock()))
        for pull in decided.pulls:
            self._pulls.begin(pull)
        for visit in decided.visits:
            match visit:
                case Observation():
                    self._visits.observe(visit)
                case Convergence():
                    self._converge(visit, decided.snapshot)
        if decided.awaited:
            self._shell.hurry(decided.awaited)

    def _converge(self, visit: Convergence, snapshot: Snapshot) -> None:
        accepted = newest_accepted(snapshot.agents, snapshot.now)
        generation = self._shell.store.queue.next_generation(snapshot.now, accepted)
        keys: dict[str, KeyPair] = {}
        if visit.launches:
            reports = {agent.id: agent.report for agent in visit.agents}
            keys, snapshot = self._launch(visit.launches, generation, snapshot.now, reports)
        last_words = LastWords(self._shell.store, unfetched_spools(visit.agents, snapshot, self.ledger.fetched))
        try:
            manifests = self._writer.manifests(visit, snapshot, keys, generation, last_words)
        except StoreUnavailableError:
            # The next worker goes on: no launch has failed.
            raise
        except Exception:  # noqa: BLE001 - whatever it is, one session's spec must not cost the others their visit
            failures = self._writer.failures(visit, snapshot, keys, generation)
            self._apply(list(failures.values()))
            keys, snapshot = {key: pair for key, pair in keys.items() if key not in failures}, self._read()
            manifests = self._writer.manifests(visit, snapshot, keys, generation, last_words)
        self.ledger = self.ledger.with_steps(visit.visit, snapshot.placed)
        self._visits.converge(visit.visit, manifests)

    def _launch(
        self, sessions: Sequence[Session], generation: int, now: float, reports: Reports
    ) -> tuple[dict[str, KeyPair], Snapshot]:
        """Commit the launches; return the keys of those that go on, and what is recorded after that."""
        keys = {session.id: self._shell.make_key_pair(f"muster-{session.name}") for session in sessions}
        events = [
            transitions.launch(session, generation, keys[session.id].public, now, reports) for session in sessions
        ]
        launched = {event.session_id for event in self._apply(events)}
        self.ledger = self.ledger.with_launches(launched, generation)
        # Read again: a session that a user ended in the meantime must not be launched.
        snapshot = self._read()
        starting = [s for s in snapshot.placed if s.id in launched and s.step is LaunchStep.STARTING]
        begun = {session.id: keys[session.id] for session in starting}
        refused = self._shell.refused_images(starting)
        failures = [
            transitions.launch_failed(session, refused[session.id], now, permanent=True)
            for session in starting
            if session.id in refused
        ]
        allowed = {key: pair for key, pair in begun.items() if key not in refused}
        with_names = [session for session in starting if session.spec.secrets and session.id in allowed]
        complete, without_secrets = with_secrets(allowed, with_names, self._shell.secrets, now)
        failures += without_secrets
        return complete, self._read() if self._apply(failures) else snapshot

    def _record(self, meaning: Interpretation, snapshot: Snapshot) -> None:
        store = self._shell.store
        store.keep_logs(meaning.logs)
        if meaning.usage:
            store.uses.save(meaning.usage)
            self._usage_sampling.observe(snapshot, meaning.usage)
        if agents := {agent.id: agent for agent in (*meaning.reporting, *meaning.silent)}:
            store.agents.save(agents.values())
        store.agents.save_launch_records(meaning.records, snapshot.agents)
        self._sampling.observe(snapshot, meaning.reporting)
        self._apply(meaning.events)
        for agent_id in meaning.forgotten:
            store.agents.forget(agent_id)
        for session_id, progress in meaning.progress.items():
            store.save_progress(session_id, progress)
        self.work.problems |= meaning.problems
        for agent in meaning.reporting:
            self.work.problems.pop(agent.id, None)
        self.ledger = meaning.ledger

    def _read(self) -> Snapshot:
        """Read what is so now, with the usage of sessions that the ledger lacks."""
        store = self._shell.store
        self.snapshot = store.snapshot(self._shell.clock())
        self._know_usage_of(session for session in self.snapshot.placed if session.state in _USING)
        return self.snapshot

    def _gone(self, facts: Iterable[Fact], snapshot: Snapshot) -> Collection[Session]:
        """Read the sessions that last words tell the usage of, and that are not placed any more."""
        ids = gone_with_usage(facts, snapshot)
        gone = self._shell.store.get(sorted(ids)).values() if ids else ()
        self._know_usage_of(gone)
        return gone

    def _know_usage_of(self, sessions: Iterable[Session]) -> None:
        self.ledger = replace(self.ledger, usage=with_recorded_usage(self.ledger.usage, self._shell.store, sessions))

    def _apply(self, events: Sequence[Event]) -> list[Event]:
        applied = self._shell.store.apply(events)
        for event in applied:
            if event.from_state is not event.to_state:
                self.work.note(event.session_id, event.to_state)
        return applied


def with_recorded_usage(usage: LaunchUsage, store: Store, sessions: Iterable[Session]) -> LaunchUsage:
    """Return the usage with what the store holds of the sessions' present launches."""
    unread = usage.unread(sessions)
    if not unread:
        return usage
    return usage.with_read(unread, store.uses.of_sessions([session.id for session in unread]))
