"""Strategies for the queue's turn: worlds of frozen values, in which agents answer as they like."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from muster.contract.outcome import Outcome
from muster.core.agents.agent import Agent
from muster.core.lifecycle import transitions
from muster.core.lifecycle.applied import applied, with_agents
from muster.core.model.session import Kernel, LaunchStep, PullProgress, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.closures import could_hold
from muster.core.scheduling.schedule import schedule
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.facts import Fact, PullOver, VisitOver
from muster.core.turn.interpretation import interpret
from muster.core.turn.ledger import Ledger, TurnRules
from muster.core.turn.open_visits import OpenVisit
from muster.core.turn.turn import Convergence, Turn, turn
from muster.core.values.errors import AnsibleFailedError, ImageError
from tests.reports import kernel_entry
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

RULES = TurnRules(lost_after_s=300, slow_after_s=15, could_hold=could_hold)


@dataclass(frozen=True)
class World:
    """A world: what the store holds and the worker remembers. `generation` is the last one that was given out.

    `past` holds the turns that were taken, each with the snapshot and the ledger that it was taken from.
    """

    snapshot: Snapshot
    ledger: Ledger = field(default_factory=Ledger)
    generation: int = 100
    past: tuple[tuple[Snapshot, Ledger, Turn], ...] = ()

    def decide(self) -> Turn:
        return turn(self.snapshot, self.ledger, schedule, RULES)

    def after_turn(self, decided: Turn) -> "World":
        """Return the world once the worker has committed and begun what the turn says."""
        snapshot = with_agents(self.snapshot, decided.agents, decided.records)
        snapshot, ledger, generation = applied(snapshot, decided.events), decided.ledger, self.generation
        for visit in decided.visits:
            if isinstance(visit, Convergence):
                generation += 1
                reports = {agent.id: agent.report for agent in visit.agents}
                events = [
                    transitions.launch(s, generation, "ssh-ed25519 AAAA", snapshot.now, reports) for s in visit.launches
                ]
                snapshot = applied(snapshot, events)
                ledger = ledger.with_launches([session.id for session in visit.launches], generation)
                ledger = ledger.with_steps(visit.visit, snapshot.placed)
        return World(snapshot, ledger, generation, (*self.past, (self.snapshot, self.ledger, decided)))

    def settled(self) -> "World":
        """Return the world after as many turns as follow at once."""
        while True:
            decided = self.decide()
            self = self.after_turn(decided)  # noqa: PLW0642 - the next value of this one
            if not decided.again:
                return self

    def after(self, *facts: Fact) -> "World":
        """Return the world once the worker has recorded these facts."""
        meaning = interpret(self.snapshot, self.ledger, facts, RULES)
        snapshot = with_agents(self.snapshot, (*meaning.reporting, *meaning.silent), meaning.records)
        known = tuple(agent for agent in snapshot.agents if agent.id not in meaning.forgotten)
        snapshot = applied(replace(snapshot, agents=known), meaning.events)
        return replace(self, snapshot=snapshot, ledger=meaning.ledger)

    def later(self, seconds: float) -> "World":
        return replace(self, snapshot=replace(self.snapshot, now=self.snapshot.now + seconds))


@st.composite
def worlds(draw: st.DrawFn, *, most_steps: int = 12) -> World:
    """Draw worlds in which turns were taken, facts interpreted and sessions ended, in any order."""
    world = World(draw(st.one_of(_clusters(), _clusters(), snapshots())))
    for step in draw(st.lists(st.sampled_from(_STEPS), max_size=most_steps)):
        match step:
            case "turn":
                world = world.settled()
            case "facts":
                world = world.settled()
                world = world.after(*draw(st.lists(facts(world), min_size=1, max_size=4)))
            case "end":
                ending = [s for s in world.snapshot.sessions if not s.ends_for_good]
                chosen = draw(st.sampled_from(ending)) if ending else None
                events = [transitions.end_by_user(chosen, "ada", world.snapshot.now)] if chosen else []
                world = replace(world, snapshot=applied(world.snapshot, events))
            case "forget":
                world = replace(world, ledger=Ledger())
            case _:
                world = world.later(draw(st.sampled_from((1, 5, 20, 400))))
        world = draw(_to_be_observed(world))
    return world


@st.composite
def launching_worlds(draw: st.DrawFn) -> World:
    """Draw worlds in which sessions that may not be queued again are launched, and agents, time and workers fail."""
    agents = tuple(make_agent(f"a{n}", cpus=4, swarm="manager") for n in range(1, 4))
    sizes = draw(st.lists(st.sampled_from((1, 1, 2, 3)), min_size=1, max_size=3))
    sessions = tuple(
        make_session(n, cluster_size=size, cluster_mode="multi-node", cpu=3, command="true")
        for n, size in enumerate(sizes, start=1)
    )
    world = World(Snapshot(agents, sessions, NOW + 10)).settled()
    steps = st.sampled_from(("answers", "answers", "answers", "over", "forget", "later"))
    for step in draw(st.lists(steps, min_size=6, max_size=16)):
        visits = world.ledger.visits.visits
        if step == "answers" and visits:
            world = world.after(*draw(st.lists(answers(world), min_size=1, max_size=3)))
        elif step == "over" and visits:
            world = world.after(VisitOver(draw(st.sampled_from([visit.number for visit in visits]))))
        elif step == "forget":
            world = replace(world, ledger=Ledger().observing_all())
        elif step == "later":
            later = world.later(draw(st.sampled_from((6, 20, 400))))
            world = replace(later, ledger=later.ledger.observing_all())
        world = world.settled()
    return world


_STEPS = ("turn", "facts", "facts", "facts", "facts", "facts", "end", "forget", "time")


def _to_be_observed(world: World) -> st.SearchStrategy[World]:
    """Draw the world as it is, or with one agent or all of them to be observed."""
    ledgers = [world.ledger] * 3
    ledgers += [world.ledger.observing([agent.id]) for agent in world.snapshot.agents[:1]]
    return st.sampled_from([replace(world, ledger=ledger) for ledger in (*ledgers, world.ledger.observing_all())])


@st.composite
def _clusters(draw: st.DrawFn) -> Snapshot:
    """Draw agents on which a few small sessions find room, some of them with an image that no agent holds."""
    agents = tuple(make_agent(f"a{n}", cpus=4, swarm="manager") for n in range(1, draw(st.integers(2, 4))))
    sessions = tuple(
        make_session(
            number,
            cluster_size=draw(st.integers(1, 3)),
            cluster_mode=draw(st.sampled_from(("single-node", "multi-node", "multi-node"))),
            cpu=draw(st.sampled_from((1, 2, 3))),
            image=draw(st.sampled_from(("busybox", "busybox", "debian:13"))),
            command=draw(st.sampled_from((None, "true"))),
            requeue=draw(st.booleans()),
        )
        for number in range(1, draw(st.integers(2, 5)))
    )
    return Snapshot(agents, sessions, NOW + 10)


def facts(world: World) -> st.SearchStrategy[Fact]:
    """Draw facts that may come now; answers also of visits that are over."""
    choices: list[st.SearchStrategy[Any]] = [st.just(VisitOver(0))]
    visits = world.ledger.visits.visits
    if visits:
        choices += [answers(world), answers(world)]
        errors = st.sampled_from((None, None, AnsibleFailedError("the inventory cannot be read")))
        choices.append(st.builds(VisitOver, st.sampled_from([visit.number for visit in visits]), errors))
    if world.ledger.pulls.under_way:
        keys = st.sampled_from(sorted(world.ledger.pulls.under_way))
        choices.append(keys.map(lambda key: PullProgress(*key, 1, 2)))
        errors = st.sampled_from((None, ImageError("gone", permanent=True), ImageError("busy", permanent=False)))
        choices.append(st.tuples(keys, errors).map(lambda pair: PullOver(*pair[0], pair[1])))
    return st.one_of(choices)


@st.composite
def answers(draw: st.DrawFn, world: World) -> AgentAnswer:
    """Draw one agent's answer in a visit: its manifest is carried out, or not, or the agent does not answer at all."""
    visit = draw(st.sampled_from(world.ledger.visits.visits))
    waiting = sorted(visit.waiting) or [agent.id for agent in world.snapshot.agents] or ["a9"]
    agent_id = draw(st.sampled_from(waiting))
    agent = next((agent for agent in world.snapshot.agents if agent.id == agent_id), None)
    if agent is None or draw(st.integers(0, 4)) == 0:
        return AgentAnswer(
            agent_id, visit.number, problem="no", reached=draw(st.booleans()), nothing_begun=draw(st.booleans())
        )
    outcomes = dict(draw(_outcomes(world, visit, agent)))
    kernels = [entry for session in world.snapshot.placed for entry in draw(_entries(session, agent))]
    report = reporting(agent, kernels=kernels).report
    return AgentAnswer(agent_id, visit.number, report, agent.inventory, outcomes)


@st.composite
def _outcomes(draw: st.DrawFn, world: World, visit: OpenVisit, agent: Agent) -> list[tuple[str, Outcome]]:
    may_be = {
        LaunchStep.STARTING: ("started", "started", "released", "failed"),
        LaunchStep.RELEASING: ("released", "released", "failed"),
        SessionState.TERMINATING: ("stopped", "stopped", "failed"),
    }
    found = []
    for session in world.snapshot.placed:
        step, _, _ = visit.steps.get(session.id, "").partition(" ")
        if step and agent.id in session.agents:
            outcome = draw(st.sampled_from(may_be.get(step, ("kept",))))
            found.append((session.id, Outcome(outcome, "it failed", draw(st.booleans()))))
    return found


@st.composite
def _entries(draw: st.DrawFn, session: Session, agent: Agent) -> list[dict[str, Any]]:
    kernels = [k for k in session.kernels if k.allocation and k.allocation.agent_id == agent.id]
    if session.generation == 0 or not draw(st.integers(0, 3)):
        return []
    states = st.sampled_from(("running", "running", "exited"))
    released = st.sampled_from((True, True, False))
    return [_entry(session, kernel, draw(states), released=draw(released)) for kernel in kernels]


def _entry(session: Session, kernel: Kernel, state: str, *, released: bool) -> dict[str, Any]:
    ended = state != "running"
    return kernel_entry(
        session,
        kernel.name,
        container_id=f"c{kernel.id}",
        state=state,
        released=released,
        exit_code=0 if ended else None,
        finished_at="2026-01-01T00:01:00Z" if ended else None,
        address=None if ended else "10.1.2.3",
    )


def agents_in(visits: tuple[OpenVisit, ...]) -> Iterator[str]:
    return (agent_id for visit in visits for agent_id in visit.waiting)
