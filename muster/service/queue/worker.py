"""Working the queue: decide, send Ansible to the agents, record each answer as it comes, decide again.

Every decision is read from the store, and committed before anything acts on it, so that a crash anywhere leaves a state
from which the next worker, by this same code, goes on. What this object remembers only spares it from asking twice.
"""

import base64
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from muster.core.launch.manifest import KeyPair, LaunchPolicy, Render, manifest
from muster.core.lifecycle import observation, transitions
from muster.core.lifecycle.answer import AgentAnswer
from muster.core.lifecycle.idle import IdleRules
from muster.core.lifecycle.outcomes import record
from muster.core.lifecycle.touch import kept_for_gangs, leftovers, touches
from muster.core.lifecycle.transitions import Event
from muster.core.model.agent import Agent, AgentState, agent_from_report
from muster.core.model.plan import Waits
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.pass_memory import PassMemory
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import SettingsError
from muster.service.queue.agent_sampling import AgentSampling
from muster.service.queue.pulls import PullImage, PullOver, PullProgress, Pulls
from muster.service.queue.session_ends import SessionEnds
from muster.service.queue.visits import Arrival, Gateway, Start, VisitOver, Visits
from muster.service.secrets.secrets import Secrets, with_secrets
from muster.store.store import Store

if TYPE_CHECKING:
    from muster.core.values.errors import MusterError

News = Arrival | VisitOver | PullProgress | PullOver
# So that a busy cluster's visits are few and large. One that hangs is not counted for long: it delays nobody.
_MOST_PROMPT_VISITS = 4
PROMPT_S = 3.0
_PAUSE_AFTER_FAILURE_S = 5.0


@dataclass(slots=True)
class Work:
    """What was done, by session id; `problems` by agent id."""

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
    """The shell around the pure core."""

    store: Store
    gateway: Gateway
    pull_image: PullImage
    render: Render
    make_key_pair: Callable[[str], KeyPair]
    launch_policy: LaunchPolicy
    start: Start
    with_policy: Callable[[Snapshot], Snapshot]
    secrets: Secrets
    lost_after_s: float
    slow_after_s: float
    idle_rules: Callable[[str], IdleRules] = lambda _resource_group: IdleRules()
    clock: Callable[[], float] = time.time


class QueueWorker:
    """One of these works a queue at a time; its methods are called by one thread. `tell` puts news where it is fed."""

    def __init__(self, shell: WorkerDependencies, tell: Callable[[News], None]) -> None:
        self.work = Work()
        self.failure: MusterError | None = None
        self._shell = shell
        self.visits = Visits(shell.gateway, shell.start, tell, shell.clock)
        self._pulls = Pulls(shell.pull_image, shell.start, tell)
        self._memory = PassMemory()
        self._ends = SessionEnds(shell.store, shell.idle_rules)
        self._sampling = AgentSampling(shell.store)
        self._look: set[str] = set()
        self._look_everywhere = False
        self._paused_until = 0.0
        # By session id and step, what each agent made of it.
        self._heard: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
        # Launches (session, generation) whose answers are still to come.
        self._launched: set[tuple[str, int]] = set()
        # Launches that were cut short, and the agents that are still to be asked what came of them.
        self._unsure: dict[str, set[str]] = {}
        self._leftovers_tried: dict[str, frozenset[str]] = {}

    @property
    def idle(self) -> bool:
        return not (self.visits.numbers or self._pulls.busy or self._look or self._look_everywhere)

    @property
    def is_to_look(self) -> bool:
        """Whether an observation of all agents is still to begin."""
        return self._look_everywhere

    @property
    def paused_until(self) -> float:
        """Seconds since the epoch."""
        return self._paused_until

    def look(self, agent_ids: Iterable[str]) -> None:
        """Observe these agents as soon as they are not in flight."""
        self._look.update(agent_ids)

    def look_everywhere(self) -> None:
        """Observe all agents, and try again what has failed or resisted."""
        self._look_everywhere = True
        self._leftovers_tried.clear()
        for outcomes in self._heard.values():
            for agent_id in [a for a, outcome in outcomes.items() if outcome["outcome"] == "failed"]:
                del outcomes[agent_id]

    def take(self, news: Sequence[News]) -> None:
        """Records what agents said. `decide` says what follows from it."""
        arrivals = [item for item in news if isinstance(item, Arrival)]
        if arrivals:
            self._arrived(arrivals)
        for item in news:
            match item:
                case VisitOver():
                    self._visit_over(item)
                case PullProgress():
                    self._pulls.progressed(item)
                    self._save_progress(item.image)
                case PullOver():
                    self._pulls.over(item)
                    if item.error is None:
                        self._look.add(item.agent_id)

    def decide(self) -> None:
        """One pass over the queue: what follows from what is known, and visits to make it so."""
        self.conclude()
        self._schedule()
        snapshot = self._snapshot()
        if self._shell.clock() < self._paused_until:
            return
        snapshot = self._pull_images(snapshot)
        self._observe(snapshot)
        self._converge(snapshot)

    def _schedule(self) -> None:
        try:
            snapshot = self._shell.with_policy(self._snapshot())
            plan = schedule(snapshot, self._memory)
        except SettingsError as error:
            # A site's plugin is broken: what is placed goes on, and nothing new starts until it is mended.
            self.failure = error
            return
        self._apply([*transitions.place(plan, snapshot), *transitions.preempt(plan, snapshot)])
        self._shell.store.save_waits(_as_kept(plan.waits))
        self.work.waiting = len(plan.waits)

    def conclude(self) -> None:
        """What follows for the sessions that are placed, and from that again, without starting anything."""
        while self._conclude():
            continue

    def _conclude(self) -> list[Event]:
        snapshot = self._snapshot()
        events = [*transitions.lose(snapshot), *transitions.take_back(snapshot), *observation.observe(snapshot, {})]
        events += self._ends.events(snapshot, {event.session_id for event in events})
        decided = {event.session_id for event in events}
        agents = {agent.id: agent for agent in snapshot.agents}
        rest = [session for session in snapshot.placed if session.id not in decided]
        conclusions = [self._conclusion(session, agents, snapshot.now) for session in rest]
        self._forget_all_but(snapshot)
        return self._apply([*events, *filter(None, conclusions)])

    def _conclusion(self, session: Session, agents: Mapping[str, Agent], now: float) -> Event | None:
        if session.step is LaunchStep.PULLING:
            failure = self._pulls.failure(self._pulls.missing(session, agents))
            if failure:
                return transitions.launch_failed(session, str(failure), now, permanent=failure.permanent)
        outcomes = self._heard.get((session.id, _step_of(session)), {})
        awaited = [
            a for a in session.agents if session.state is not SessionState.TERMINATING or not _is_lost(agents, a)
        ]
        if session.state in {SessionState.PREPARING, SessionState.TERMINATING} and outcomes.keys() >= set(awaited):
            return record(session, outcomes, {agent.id: agent.report for agent in agents.values()}, now)
        if session.step is LaunchStep.STARTING:
            return self._cut_short(session, outcomes, agents, now)
        return None

    def _cut_short(
        self, session: Session, outcomes: Mapping[str, Any], agents: Mapping[str, Agent], now: float
    ) -> Event | None:
        """A launch some agent's answer to which does not come: found out what became of it, or given up."""
        key = (session.id, session.generation)
        if key in self._launched:
            if all(agent_id in outcomes or agent_id in self.visits.in_flight for agent_id in session.agents):
                return None
            self._launched.discard(key)
        silent = [a for a in session.agents if a not in agents or agents[a].state is not AgentState.ALIVE]
        if silent and session.spans_agents:
            # None of its commands has begun: they are released when every agent has answered.
            reason = f"agent {silent[0]} stopped answering during the launch"
            return transitions.back_to_the_queue(session, reason, now)
        if silent:
            return None
        if session.id not in self._unsure:
            self._unsure[session.id] = set(session.agents)
            self.look(session.agents)
        if self._unsure[session.id]:
            return None
        return observation.adopt(session, {agent_id: agents[agent_id].report for agent_id in session.agents}, now)

    def _arrived(self, arrivals: Sequence[Arrival]) -> None:
        now = self._shell.clock()
        reports = {}
        for arrival in arrivals:
            self.visits.arrived(arrival)
            answer = arrival.answer
            if answer.report is not None:
                reports[answer.agent_id] = answer.report
                self._keep_logs(answer)
                self._hear(arrival)
            else:
                self._no_report(answer.agent_id, answer.problem, now)
                if answer.reached:
                    self._launches_refused(arrival)
        answering = [agent_from_report(agent_id, report, now) for agent_id, report in reports.items()]
        self._shell.store.save_agents(answering)
        for agent in answering:
            self._pulls.reported(agent)
            self.work.problems.pop(agent.id, None)
        for awaited in self._unsure.values():
            awaited.difference_update(reports)
        snapshot = self._snapshot()
        self._ends.observe(snapshot, reports.values(), now)
        self._sampling.observe(snapshot, answering)
        self._apply(observation.observe(snapshot, reports))

    def _keep_logs(self, answer: AgentAnswer) -> None:
        for session_id, outcome in answer.outcomes.items():
            self._ends.hear_last_words(session_id, outcome["last_words"], self._shell.clock())
            for words in outcome["last_words"]:
                self._shell.store.keep_log(session_id, words["name"], base64.b64decode(words["log_gz_b64"]))

    def _hear(self, arrival: Arrival) -> None:
        for session_id, outcome in arrival.answer.outcomes.items():
            step = arrival.visit.steps.get(session_id)
            if step is not None and outcome["outcome"] != "kept":
                self._heard.setdefault((session_id, step), {})[arrival.answer.agent_id] = outcome

    def _no_report(self, agent_id: str, problem: str, now: float) -> None:
        self.work.problems[agent_id] = problem
        for agent in self._snapshot().agents:
            if agent.id == agent_id:
                self._shell.store.save_agents([agent.unanswered(problem, now, self._shell.lost_after_s)])

    def _launches_refused(self, arrival: Arrival) -> None:
        """An agent whose module failed as a whole has failed the launches that it was asked for."""
        agent_id, problem = arrival.answer.agent_id, arrival.answer.problem
        failed = {"outcome": "failed", "error": f"agent {agent_id}: {problem}", "permanent": False, "last_words": ()}
        for session in self._shell.store.get(list(arrival.visit.steps)).values():
            step = arrival.visit.steps[session.id]
            if (session.id, session.generation) in self._launched and agent_id in session.agents:
                self._heard.setdefault((session.id, step), {})[agent_id] = failed

    def _visit_over(self, over: VisitOver) -> None:
        silent = self.visits.over(over.visit)
        if over.error is not None:
            self.failure = over.error
            self._paused_until = self._shell.clock() + _PAUSE_AFTER_FAILURE_S
            return
        now = self._shell.clock()
        for agent_id in silent:
            if over.visit.everywhere:
                self._not_in_inventory(agent_id, now)
            else:
                self._no_report(agent_id, "Ansible brought no answer of it", now)

    def _not_in_inventory(self, agent_id: str, now: float) -> None:
        snapshot = self._snapshot()
        for agent in snapshot.agents:
            if agent.id == agent_id and any(agent_id in session.agents for session in snapshot.placed):
                self._no_report(agent_id, "it is no longer in the inventory", now)
            elif agent.id == agent_id:
                self._shell.store.forget_agent(agent_id)

    def _pull_images(self, snapshot: Snapshot) -> Snapshot:
        agents = {agent.id: agent for agent in snapshot.agents}
        waiting = {s.id: self._pulls.missing(s, agents) for s in snapshot.placed if _before_launch(s)}
        scheduled = [s for s in snapshot.placed if s.state is SessionState.SCHEDULED and waiting[s.id]]
        if self._apply([transitions.pull(session, waiting[session.id], snapshot.now) for session in scheduled]):
            snapshot = self._snapshot()
        pulling = [session for session in snapshot.placed if session.step is LaunchStep.PULLING]
        for session in pulling:
            for image, agent_ids in waiting[session.id].items():
                for agent_id in agent_ids:
                    self._pulls.begin(agents[agent_id], image)
        return snapshot

    def _save_progress(self, image: str) -> None:
        snapshot = self._snapshot()
        agents = {agent.id: agent for agent in snapshot.agents}
        for session in snapshot.placed:
            if session.step is LaunchStep.PULLING and any(kernel.image == image for kernel in session.kernels):
                progress = self._pulls.progress(self._pulls.missing(session, agents))
                self._shell.store.save_progress(session.id, progress)

    def _observe(self, snapshot: Snapshot) -> None:
        agents = {agent.id: agent for agent in snapshot.agents}
        in_flight = self.visits.in_flight
        launchable = {session.id for session in snapshot.placed if self._may_launch(session, agents)}
        kept = kept_for_gangs(snapshot, launchable, in_flight)
        if self._look_everywhere:
            self._look_everywhere = False
            self._look |= kept
            if agents.keys() - in_flight - kept or not (agents or self.visits.is_everywhere):
                self.visits.observe_everywhere(agents.keys(), without=in_flight | kept)
        self._look &= agents.keys()
        free = self._look - self.visits.in_flight - kept
        if free:
            self._look -= free
            self.visits.observe(free)

    def _converge(self, snapshot: Snapshot) -> None:
        if len(self.visits.prompt(PROMPT_S)) >= _MOST_PROMPT_VISITS:
            return
        agents = {agent.id: agent for agent in snapshot.agents}
        in_flight = self.visits.in_flight
        free = {a.id for a in snapshot.agents if a.state is AgentState.ALIVE and a.id not in in_flight}
        resisting = {a.id for a in snapshot.agents if self._leftovers_tried.get(a.id) == leftovers(a, snapshot)}
        launchable = {s.id for s in snapshot.placed if self._may_launch(s, agents)}
        heard = {s.id: set(self._heard.get((s.id, _step_of(s)), ())) for s in snapshot.placed}
        touched = touches(snapshot, free=free, launchable=launchable, heard=heard, resisting=resisting)
        if not touched.agents:
            return
        for agent_id in touched.agents:
            self._leftovers_tried[agent_id] = leftovers(agents[agent_id], snapshot)
        generation = self._shell.store.next_generation(snapshot.now)
        keys = self._launch(touched.launches, generation, snapshot.now)
        # Read again: a session that a user ended in the meantime must not be launched.
        placed = self._shell.store.snapshot(snapshot.now).placed
        keeper = snapshot.overlay_keeper
        manifests = {
            agent_id: manifest(
                agents[agent_id],
                placed,
                keys,
                generation,
                self._shell.launch_policy,
                self._shell.render,
                keeps_overlays=keeper is not None and keeper.id == agent_id,
            )
            for agent_id in sorted(touched.agents)
        }
        self.visits.converge(manifests, {session.id: _step_of(session) for session in placed})

    def _launch(self, sessions: Collection[Session], generation: int, now: float) -> dict[str, KeyPair]:
        keys = {session.id: self._shell.make_key_pair(f"muster-{session.name}") for session in sessions}
        events = [transitions.launch(session, generation, keys[session.id].public, now) for session in sessions]
        launched = {event.session_id for event in self._apply(events)}
        self._launched |= {(session_id, generation) for session_id in launched}
        for session_id in launched:
            self._unsure.pop(session_id, None)
        begun = {session_id: pair for session_id, pair in keys.items() if session_id in launched}
        asking = self._shell.store.get([s.id for s in sessions if s.spec.secrets and s.id in launched])
        complete, failures = with_secrets(begun, asking.values(), self._shell.secrets, now)
        self._apply(failures)
        return complete

    def _may_launch(self, session: Session, agents: dict[str, Agent]) -> bool:
        if _before_launch(session):
            return not self._pulls.missing(session, agents)
        # What came of it is known by now, and it was not enough to adopt.
        return session.step is LaunchStep.STARTING and self._unsure.get(session.id) == set()

    def _forget_all_but(self, snapshot: Snapshot) -> None:
        steps = {(session.id, _step_of(session)) for session in snapshot.placed}
        self._heard = {key: outcomes for key, outcomes in self._heard.items() if key in steps}
        starting = {s.id: s.generation for s in snapshot.placed if s.step is LaunchStep.STARTING}
        self._launched = {(key, generation) for key, generation in self._launched if starting.get(key) == generation}
        self._unsure = {session_id: rest for session_id, rest in self._unsure.items() if session_id in starting}

    def _snapshot(self) -> Snapshot:
        snapshot = self._shell.store.snapshot(self._shell.clock())
        return replace(snapshot, slow=self.visits.slow(self._shell.slow_after_s))

    def _apply(self, events: Iterable[Event]) -> list[Event]:
        applied = self._shell.store.apply(events)
        for event in applied:
            if event.from_state is not event.to_state:
                self.work.note(event.session_id, event.to_state)
        return applied


def _as_kept(waits: Waits) -> dict[str, dict[str, Any]]:
    """One value for all sessions that share a reason. Their places in the queue, which move all the time, stay out."""
    kept: dict[int, dict[str, Any]] = {}
    by_session = {}
    for session_id in waits:
        reason = waits.reason(session_id)
        if id(reason) not in kept:
            kept[id(reason)] = {name: value for name, value in reason.as_dict().items() if name != "position"}
        by_session[session_id] = kept[id(reason)]
    return by_session


def _before_launch(session: Session) -> bool:
    return session.state is SessionState.SCHEDULED or session.step is LaunchStep.PULLING


def _step_of(session: Session) -> str:
    """What its agents are to do now, and the generation that this belongs to."""
    return f"{session.step or session.state} {session.generation}"


def _is_lost(agents: Mapping[str, Agent], agent_id: str) -> bool:
    return agent_id not in agents or agents[agent_id].state is AgentState.LOST
