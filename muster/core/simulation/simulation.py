"""A workload on an imagined cluster: `schedule` at every arrival and end, and the result.

Nothing runs and no clock is read: time is what the events say. Equal input gives equal results.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from muster.core.agents.agent import Agent
from muster.core.model.plan import Placement, Preemption
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.session import Kernel, LaunchStep, Result, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.committed import running
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.placement import gang_of, typical_requests
from muster.core.scheduling.schedule import schedule
from muster.core.simulation.usage_by_owner import OwnerUsageMeter
from muster.core.simulation.usage_of_cluster import ClusterUsage, ClusterUsageMeter
from muster.core.whatif.explain import HOPELESS


@dataclass(frozen=True, slots=True)
class Job:
    """A session that arrives at its `submitted_at` and, once it runs, would end by itself after `duration_s`."""

    session: Session
    duration_s: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster on which a workload is tried. `launch_s` passes between placing a session and its running.

    Decisions are `interval_s` apart at the least: what happens between is decided together. `half_life_s` is that of
    the owners' usage.
    """

    agents: tuple[Agent, ...]
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    launch_s: float = 0.0
    interval_s: float = 0.0
    half_life_s: float = 7 * 86400.0


class Fate(StrEnum):
    """The state of a session at the end. PREEMPTED: it was ended for another and not queued again."""

    ENDED = "ended"
    TIMED_OUT = "timed-out"
    PREEMPTED = "preempted"
    RUNNING = "running"
    WAITING = "waiting"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one session. `started_at` is that of its last start; `starts` counts those after preemptions too."""

    session: Session
    fate: Fate = Fate.WAITING
    placed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    starts: int = 0
    kernels: tuple[Kernel, ...] = ()
    reason: str = ""

    @property
    def waited_s(self) -> float | None:
        return None if self.started_at is None else self.started_at - self.session.submitted_at


@dataclass(frozen=True, slots=True)
class Simulated:
    """The result: `lives` in order of arrival; `use` from `began_at`, the first arrival, to `ended_at`."""

    lives: tuple[Life, ...]
    use: tuple[ClusterUsage, ...]
    began_at: float
    ended_at: float
    decisions: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Progress:
    now: float
    arrived: int
    waiting: int
    running: int
    ended: int
    of: int


class _What(StrEnum):
    """The kinds of events, in their order at equal times."""

    END = "1-end"
    START = "2-start"
    ARRIVAL = "3-arrival"
    MOMENT = "4-moment"


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    until: float | None = None,
    progressed: Callable[[Progress], None] = lambda _progress: None,
) -> Simulated:
    """Play the workload to the end of its last session, or until then. Times are seconds on the jobs' own clock."""
    run = _Run(sorted(jobs, key=lambda job: (job.session.submitted_at, job.session.id)), cluster, until)
    run.play(progressed)
    return run.result()


class _Run:
    def __init__(self, jobs: Sequence[Job], cluster: Cluster, until: float | None) -> None:
        self._memory = PassMemory()
        self._cluster = cluster
        self._until = until
        self._durations = {job.session.id: job.duration_s for job in jobs}
        self._lives = {job.session.id: Life(job.session) for job in jobs}
        self._wanted = {i for job in jobs for i in job.session.spec.dependencies}
        self._coming = self._wanted & self._lives.keys()
        # Those that came before a session on which they depend: the queue would take that for one that is not there.
        self._early: dict[str, Session] = {}
        self._waiting: dict[str, Session] = {}
        self._running: dict[str, Session] = {}
        self._over: dict[str, Session] = {}
        # Those that wait in vain, as far as others depend on them.
        self._vain: dict[str, Session] = {}
        self._arrived = self._preemptions = self._decisions = 0
        self._changed = False
        self._began_at = self._now = jobs[0].session.submitted_at if jobs else 0.0
        requests = Counter(gang_of(job.session, overlay=True) for job in jobs)
        self._use = ClusterUsageMeter(cluster.agents, typical_requests(requests), self._began_at)
        self._usage = OwnerUsageMeter(cluster.agents, cluster.half_life_s)
        self._events: list[tuple[float, _What, str, int]] = [
            (job.session.submitted_at, _What.ARRIVAL, job.session.id, 0) for job in jobs
        ]
        moments = {job.session.spec.begin for job in jobs if job.session.spec.begin is not None}
        self._events += [(at, _What.MOMENT, "", 0) for at in sorted(moments) if at > self._began_at]
        heapq.heapify(self._events)

    def play(self, progressed: Callable[[Progress], None]) -> None:
        next_decision = self._began_at
        while self._events and (self._waiting or self._running or self._arrived < len(self._lives)):
            at = max(self._events[0][0], next_decision)
            if self._until is not None and at > self._until:
                break
            while self._events and self._events[0][0] <= at:
                self._happens(*heapq.heappop(self._events))
            self._now = at
            if self._changed and self._waiting:
                self._decide()
                next_decision = at + self._cluster.interval_s
                progressed(self._progress())
            self._changed = False

    def result(self) -> Simulated:
        ended_at = max((life.ended_at for life in self._lives.values() if life.ended_at is not None), default=self._now)
        if self._until is not None:
            ended_at = max(self._began_at, self._until if self._running or self._waiting else ended_at)
        lives = tuple(self._lives.values())
        return Simulated(lives, self._use.until(ended_at), self._began_at, ended_at, self._decisions, self._preemptions)

    def _progress(self) -> Progress:
        waiting, running = len(self._waiting) + len(self._early), len(self._running)
        return Progress(self._now, self._arrived, waiting, running, self._arrived - waiting - running, len(self._lives))

    def _happens(self, at: float, what: _What, session_id: str, start: int) -> None:
        match what:
            case _What.ARRIVAL:
                self._arrive(self._lives[session_id].session)
            case _What.START:
                if not self._is_there(session_id, start):
                    return
                self._running[session_id] = replace(self._running[session_id], state=SessionState.RUNNING, step=None)
            case _What.END:
                if not self._is_there(session_id, start):
                    return
                ends_by_itself = self._durations[session_id] <= (self._limit(session_id) or self._durations[session_id])
                self._end(session_id, at, Fate.ENDED if ends_by_itself else Fate.TIMED_OUT)
        self._changed = True

    def _arrive(self, session: Session) -> None:
        """Add the session to the queue once all have come on which it depends, and those that it was the last of."""
        self._arrived += 1
        self._early[session.id] = session
        if session.id in self._coming:
            self._coming.remove(session.id)
            candidates = list(self._early.values())
        else:
            candidates = [session]
        for early in candidates:
            if self._coming.isdisjoint(early.spec.dependencies):
                self._waiting[early.id] = self._early.pop(early.id)

    def _is_there(self, session_id: str, start: int) -> bool:
        """Return whether it has its place since that start: one that was preempted has another start, or none."""
        return session_id in self._running and self._lives[session_id].starts == start

    def _limit(self, session_id: str) -> int | None:
        return self._lives[session_id].session.time_limit

    def _decide(self) -> None:
        """Decide until nothing is preempted any more: capacity that a session gave up is free in the next decision."""
        while True:
            self._decisions += 1
            plan = schedule(self._snapshot(), self._memory, explains=False)
            for placement in plan.placements:
                self._start(placement)
            for preemption in plan.preemptions:
                self._preempt(preemption)
            cancelled = False
            for session_id, reason in plan.waits.reasons.items():
                if session_id in self._vain:
                    continue
                if reason.code in HOPELESS:
                    cancelled |= self._give_up(session_id, reason)
                elif reason.passes:
                    waiting = self._waiting[session_id]
                    self._waiting[session_id] = replace(waiting, wait=reason)
            if not plan.preemptions and not cancelled:
                return

    def _give_up(self, session_id: str, reason: Wait) -> bool:
        """Give up a session that can never start; return whether others may start for that.

        It is cancelled if it depends on one that failed. Any other stays in the queue, and what depends on it waits.
        """
        self._lives[session_id] = replace(
            self._lives[session_id], fate=Fate.NEVER, ended_at=None, reason=reason.message
        )
        session = self._waiting.pop(session_id)
        if session_id not in self._wanted:
            return False
        if not reason.waits_for:
            self._vain[session_id] = session
            return False
        self._over_with(session_id, session, Result.FAILURE)
        return True

    def _snapshot(self) -> Snapshot:
        return Snapshot.of_parts(
            self._cluster.agents,
            tuple(self._running.values()),
            (*self._waiting.values(), *self._vain.values()),
            now=self._now,
            policy=self._cluster.policy,
            ended=self._over,
            usage=self._usage.at(self._now, self._running.values()),
        )

    def _start(self, placement: Placement) -> None:
        session = self._waiting.pop(placement.session_id)
        started_at = self._now + self._cluster.launch_s
        runs = running(session, placement, started_at)
        kernels = runs.kernels
        self._use.take(kernels, self._now)
        life = self._lives[session.id]
        starts = life.starts + 1
        self._lives[session.id] = replace(
            life, fate=Fate.RUNNING, placed_at=self._now, started_at=started_at, starts=starts, kernels=kernels
        )
        if session.id in self._wanted:
            # What comes after its start does not start before.
            runs = replace(runs, state=SessionState.PREPARING, step=LaunchStep.STARTING)
            heapq.heappush(self._events, (started_at, _What.START, session.id, starts))
        self._running[session.id] = runs
        limit, duration = session.time_limit, self._durations[session.id]
        ends_at = started_at + (duration if limit is None else min(duration, limit))
        heapq.heappush(self._events, (ends_at, _What.END, session.id, starts))

    def _end(self, session_id: str, at: float, fate: Fate) -> None:
        session = self._release(session_id, at)
        self._lives[session_id] = replace(self._lives[session_id], fate=fate, ended_at=at)
        self._over_with(session_id, session, Result.SUCCESS if fate is Fate.ENDED else Result.FAILURE)

    def _preempt(self, preemption: Preemption) -> None:
        """End the session for another. It begins again from nothing, at its old place, where it may be queued again."""
        self._preemptions += 1
        session = self._running[preemption.session_id]
        if not session.spec.requeue:
            self._end(session.id, self._now, Fate.PREEMPTED)
            return
        self._release(session.id, self._now)
        life = self._lives[session.id]
        self._lives[session.id] = replace(life, fate=Fate.WAITING, placed_at=None, started_at=None, kernels=())
        moved_for = preemption.for_session_id if preemption.moves else None
        self._waiting[session.id] = replace(life.session, requeues=session.requeues + 1, moved_for=moved_for)

    def _release(self, session_id: str, at: float) -> Session:
        session = self._running.pop(session_id)
        self._use.release(session.kernels, at)
        self._usage.ended(session, at)
        return session

    def _over_with(self, session_id: str, session: Session, result: Result) -> None:
        if session_id in self._wanted:
            self._over[session_id] = replace(session, state=SessionState.TERMINATED, result=result)
