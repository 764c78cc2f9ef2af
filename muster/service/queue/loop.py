"""The loop around the queue's worker: one code path for the daemon, `muster pass` and the playbook.

The worker decides when an agent answered, when somebody nudged the loop, and when the clock brings something: an
observation of all agents on an interval, a launch to be repeated, a time limit.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, SimpleQueue

from muster.core.agents.agent import Agent
from muster.core.agents.silence import cluster_problem
from muster.core.lifecycle.end_signals import limit_at, limit_signal_at
from muster.core.model.heartbeat import Worker
from muster.core.model.session import SessionState
from muster.core.scheduling.admission import moments
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.facts import Fact, VisitOver
from muster.core.turn.turn import PROMPT_S
from muster.core.turn.verdicts import verdict_times
from muster.service.queue.heartbeat import Pulse
from muster.service.queue.journal import Journal, log
from muster.service.queue.pass_durations import PassTimer
from muster.service.queue.worker import QueueWorker, Work, WorkerDependencies
from muster.service.trouble import Trouble
from muster.settings import Settings
from muster.store.database.lock import QueueLock

_STOP_PATIENCE_S = 30.0
_POLL_S = 2.0
# Answers of one visit come close together, and so do deaths: one decision for them all.
_GATHER_S = 0.02


class Nudge(StrEnum):
    """A message from outside that wakes the loop."""

    QUEUE = "queue"
    AGENTS = "agents"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class KernelDied:
    """A kernel of this session on this agent has ended."""

    agent_id: str
    session_id: str


@dataclass(slots=True)
class _RequestedPass:
    """A pass that somebody waits for: over when all agents have answered, and the visits that followed are over."""

    number: int
    until_visit: int
    observed: bool = False


class QueueLoop:
    """The loop holds the queue's lock for as long as it runs.

    `on_report` gets each agent that gave a report. `on_recorded` is called when answers are in the database.
    `between_turns` is called after each. `worker` names the command that runs it, for the heartbeat. Raises
    SettingsError where the settings give the cluster another name than what runs has.
    """

    def __init__(
        self,
        settings: Settings,
        shell: WorkerDependencies,
        lock: QueueLock,
        on_report: Callable[[Agent], None] = lambda _agent: None,
        on_recorded: Callable[[], None] = lambda: None,
        between_turns: Callable[[], None] = lambda: None,
        *,
        worker: Worker = Worker.ONCE,
    ) -> None:
        self._settings = settings
        self._shell = shell
        self._lock = lock
        self._on_report = on_report
        self._on_recorded = on_recorded
        self._between_turns = between_turns
        self._inbox: SimpleQueue[Fact | Nudge | KernelDied] = SimpleQueue()
        shell.store.queue.note_cluster(settings.cluster)
        self._worker = QueueWorker(shell, self._inbox.put)
        self._timer = PassTimer(shell.store)
        self._pulse = Pulse(shell.store, worker, shell.clock)
        self._journal = Journal(shell.store)
        self._failure = Trouble(log)
        self._visited = False
        self._observe_at = 0.0
        self._requested: _RequestedPass | None = None
        self._cluster_problem = ""

    def send(self, message: Nudge | KernelDied) -> None:
        """Wake the loop with this, from any thread or from a signal handler."""
        self._inbox.put(message)

    def run_until_idle(self) -> Work:
        """Make one pass, with all that follows from it. Raises the error if Ansible could not be run at all."""
        self._worker.observe_all()
        while True:
            self._decide()
            if self._worker.failure is not None:
                raise self._worker.failure
            if self._worker.is_idle:
                self._timer.write()
                return self._worker.work
            self._take(_POLL_S)

    def run(self) -> None:
        """Work the queue until the loop is stopped."""
        while True:
            if time.monotonic() >= self._observe_at:
                self._observe_all()
            self._decide()
            self._report()
            self._between_turns()
            if self._take(min(self._due_in(), self._observe_at - time.monotonic())):
                self._finish_visits()
                self._journal.write_changes()
                self._timer.write()
                return

    def _decide(self) -> None:
        self._lock.check()
        with self._timer.timed():
            self._worker.decide()
        self._pulse.beat()
        self._finish_requested()

    def _take(self, timeout_s: float) -> bool:
        """Take what has come; return whether to stop."""
        messages = self._awaited(timeout_s)
        facts: list[Fact] = []
        for message in messages:
            match message:
                case Nudge.AGENTS:
                    self._observe_all()
                case KernelDied() | Nudge():
                    continue
                case _:
                    facts.append(message)
        self._visited = any(isinstance(fact, VisitOver) and fact.error is None for fact in facts)
        for agent in self._worker.take(facts):
            self._journal.note_report(agent)
            self._on_report(agent)
        if facts:
            self._on_recorded()
        return Nudge.STOP in messages

    def _awaited(self, timeout_s: float) -> list[Fact | Nudge | KernelDied]:
        """Return what has come within that time, as soon as a decision can follow from it.

        Nothing follows from deaths before their agents have answered; many short jobs die meanwhile. So an agent that
        is not in flight is observed at once, and not after a decision on a queue that may be long.
        """
        deadline = time.monotonic() + timeout_s
        messages: list[Fact | Nudge | KernelDied] = []
        while new := self._received(deadline - time.monotonic()):
            messages += new
            deaths = [message for message in new if isinstance(message, KernelDied)]
            for death in deaths:
                self._worker.note_death(death.agent_id, death.session_id)
            if len(deaths) < len(new) or not self._is_waiting_for_agents_of(deaths) or time.monotonic() > deadline:
                break
        return messages

    def _is_waiting_for_agents_of(self, deaths: list[KernelDied]) -> bool:
        """Observe agents where kernels died; return whether answers of all of them are to come."""
        agents = {death.agent_id for death in deaths}
        if not agents <= self._worker.ledger.visits.in_flight:
            self._lock.check()
            self._worker.observe_deaths()
        return agents <= self._worker.ledger.visits.in_flight

    def _received(self, timeout_s: float) -> list[Fact | Nudge | KernelDied]:
        messages: list[Fact | Nudge | KernelDied] = []
        try:
            messages.append(self._inbox.get(timeout=max(0.01, timeout_s)))
            if self._more_comes_with(messages[0]):
                time.sleep(_GATHER_S)
            while True:
                messages.append(self._inbox.get_nowait())
        except Empty:
            return messages

    def _more_comes_with(self, message: Fact | Nudge | KernelDied) -> bool:
        """Return whether others like this one may come at the same time."""
        match message:
            case Nudge() | VisitOver():
                return False
            case AgentAnswer():
                visit = self._worker.ledger.visits.find(message.visit)
                return visit is None or visit.waiting != {message.agent_id}
            case _:
                return True

    def _observe_all(self) -> None:
        self._observe_at = time.monotonic() + self._settings.observe_interval_s
        number = self._shell.store.queue.requested_pass()
        self._worker.observe_all()
        if number > self._shell.store.queue.finished_pass():
            self._requested = _RequestedPass(number, self._worker.ledger.visits.last_number + 1)

    def _finish_requested(self) -> None:
        requested = self._requested
        if requested is None or self._worker.ledger.to_observe_all or self._is_open(requested):
            return
        if not requested.observed:
            requested.observed, requested.until_visit = True, self._worker.ledger.visits.last_number
        if not self._is_open(requested):
            self._shell.store.queue.finish_pass(requested.number)
            self._requested = None

    def _is_open(self, requested: _RequestedPass) -> bool:
        return any(number <= requested.until_visit for number in self._prompt_visits())

    def _prompt_visits(self) -> frozenset[int]:
        return self._worker.ledger.visits.prompt(self._settings.slow_after_s, self._shell.clock())

    def _report(self) -> None:
        work, self._worker.work = self._worker.work, Work()
        if self._worker.failure is not None:
            # The queue outlives a run that failed: the next one reads everything again.
            self._failure.note(str(self._worker.failure))
            self._worker.failure = None
        elif self._visited:
            self._failure.over("visits to agents go well again")
        problem = cluster_problem(self._worker.snapshot.agents)
        if problem != self._cluster_problem:
            log.warning("%s", problem or "agents answer again")
            self._cluster_problem = problem
        for agent_id, problem in work.problems.items():
            self._journal.note_problem(agent_id, problem)
        self._journal.write_changes()

    def _due_in(self) -> float:
        """Return the seconds until the clock alone brings something. What is overdue waits for the next observation."""
        snapshot, now = self._worker.snapshot, self._shell.clock()
        limits = [
            at
            for session in snapshot.placed
            if session.state is SessionState.RUNNING
            for at in (limit_at(session), limit_signal_at(session), session.leaves_at)
            if at is not None
        ]
        verdicts = verdict_times(snapshot, self._shell.rules)
        # A visit that has become late makes room for another visit; a slow one, for other agents.
        late_after_s = (PROMPT_S, self._settings.slow_after_s)
        late = [visit.since + after for visit in self._worker.ledger.visits.visits for after in late_after_s]
        times = (*moments(snapshot), *limits, *verdicts, *late, self._worker.ledger.paused_until)
        coming = [max(0.0, at - now) for at in times if at > snapshot.now]
        # A moment later: a decision that comes too early would see nothing to do.
        return min(coming, default=self._settings.observe_interval_s) + 0.05

    def _finish_visits(self) -> None:
        """Record the answers of visits that end soon. The others are read from the agents later."""
        give_up_at = time.monotonic() + _STOP_PATIENCE_S
        self._worker.conclude()
        while self._prompt_visits() and time.monotonic() < give_up_at:
            self._take(0.5)
            self._worker.conclude()
