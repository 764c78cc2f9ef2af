"""The queue's turn: what holds for it in any world, whatever agents answer."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.contract.outcome import Outcome
from muster.core.lifecycle import transitions
from muster.core.lifecycle.applied import applied, applied_to
from muster.core.lifecycle.transitions import TRANSITIONS
from muster.core.model.session import LaunchStep, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.facts import PullOver, VisitOver
from muster.core.turn.interpretation import Interpretation, interpret
from muster.core.turn.ledger import Ledger
from muster.core.turn.open_visits import OpenVisits, step_of
from muster.core.turn.turn import Convergence, Observation, turn_of_deaths
from tests.properties import examples
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW
from tests.turn_strategies import RULES, World, agents_in, answers, facts, launching_worlds, worlds

tried = examples(50)


@tried
@given(worlds())
def test_an_agent_is_in_one_visit_at_a_time_and_is_not_visited_again_while_in_flight(world):
    before = world.ledger.visits.in_flight
    decided = world.decide()
    for visit in decided.visits:
        match visit:
            case Observation(agent_ids=(), without=without):
                assert before <= set(without)
            case Observation(agent_ids=agent_ids):
                assert not (before | decided.ledger.to_observe) & set(agent_ids)
            case Convergence(agents=agents):
                assert not before & {agent.id for agent in agents}
    waiting = list(agents_in(decided.ledger.visits.visits))
    assert len(waiting) == len(set(waiting))


@tried
@given(worlds())
def test_an_image_is_pulled_to_an_agent_once_at_a_time(world):
    decided = world.decide()
    new = [(pull.agent.id, pull.image) for pull in decided.pulls]
    assert len(new) == len(set(new))
    assert not world.ledger.pulls.under_way.keys() & set(new)


@tried
@given(worlds())
def test_each_event_is_a_legal_transition_of_what_was_there(world):
    decided = world.decide()
    sessions = {session.id: session for session in world.snapshot.sessions}
    for event in decided.events:
        before = sessions[event.session_id]
        assert event.from_state is before.state
        assert event.to_state in TRANSITIONS[before.state]
        sessions[before.id] = applied_to(before, event)
        assert sessions[before.id].state is event.to_state
    assert decided.snapshot.sessions == applied(world.snapshot, decided.events).sessions


@tried
@given(worlds())
def test_a_second_turn_with_nothing_new_decides_nothing(world):
    settled = world.settled()
    again = settled.decide()
    assert (again.events, again.visits, again.pulls) == ((), (), ())
    assert again.ledger == settled.ledger


@tried
@given(worlds())
def test_a_turn_is_the_same_each_time(world):
    """What the store refuses is thrown away: nothing but values may have come of it."""
    first, second = world.decide(), world.decide()
    assert (first.events, first.visits, first.pulls) == (second.events, second.visits, second.pulls)
    assert first.ledger == second.ledger


@tried
@given(worlds())
def test_commands_are_released_when_all_agents_have_answered_that_the_kernels_are_there(world):
    decided = world.decide()
    sessions = {session.id: session for session in world.snapshot.placed}
    reports = {agent.id: agent.report for agent in world.snapshot.agents}
    for event in decided.events:
        if event.session.get("step") is not LaunchStep.RELEASING:
            continue
        session = sessions[event.session_id]
        outcomes = world.ledger.outcomes.get((session.id, step_of(session)), {})
        said = {agent_id for agent_id, outcome in outcomes.items() if outcome.outcome in {"started", "released"}}
        shown = {k.kernel_id for a in session.agents for k in reports[a].kernels if k.session_id == session.id}
        assert said >= set(session.agents) or shown >= {kernel.id for kernel in session.kernels}


# Each of these takes some thirty milliseconds.
@examples(100)
@given(launching_worlds())
def test_a_launch_whose_commands_may_have_begun_does_not_begin_again_unless_no_command_has(world):
    """It goes back to the queue by the word of its agent alone, and anew to its agent when that shows nothing of it."""
    for snapshot, ledger, decided in world.past:
        sessions = {session.id: session for session in snapshot.placed}
        reports = {agent.id: agent.report for agent in snapshot.agents}
        for event in decided.events:
            session = sessions.get(event.session_id)
            if session is None or not session.may_have_begun or session.spec.requeue:
                continue
            outcomes = ledger.outcomes.get((session.id, step_of(session)), {})
            failed = {agent_id for agent_id, outcome in outcomes.items() if outcome.outcome == "failed"}
            unbegun = session.step is LaunchStep.STARTING and failed == set(session.agents)
            assert unbegun or event.to_state not in {SessionState.PENDING, SessionState.ERROR}
            assert unbegun or not event.session.get("requeue_after_end")
        for visit in decided.visits:
            for session in visit.launches if isinstance(visit, Convergence) else ():
                if session.may_have_begun:
                    shown = [k for a in session.agents for k in reports[a].kernels if k.session_id == session.id]
                    assert not any(k.released for k in shown if k.generation == session.generation)
                    assert ledger.unclear[session.id] == frozenset()


@tried
@given(st.integers(2, 4), st.data())
def test_a_gang_is_released_by_the_last_of_its_agents_and_by_no_earlier_one(size, data):
    agents = tuple(make_agent(f"a{number}", cpus=1, swarm="manager") for number in range(1, size + 1))
    gang = make_session(cluster_size=size, cluster_mode="multi-node", cpu=1)
    world = World(Snapshot(agents, (gang,), NOW + 10)).settled()
    (visit,) = world.ledger.visits.visits
    assert visit.waiting == {agent.id for agent in agents}
    order = data.draw(st.permutations(agents))
    for place, agent in enumerate(order, start=1):
        outcomes = {gang.id: Outcome("started")}
        answer = AgentAnswer(agent.id, visit.number, agent.report, agent.inventory, outcomes)
        world = world.after(answer)
        if data.draw(st.booleans()):
            world = world.after(answer)
        world = world.settled()
        assert world.snapshot.placed[0].step is (LaunchStep.RELEASING if place == size else LaunchStep.STARTING)


@tried
@given(worlds(), st.data())
def test_a_fact_that_comes_twice_changes_nothing(world, data):
    fact = data.draw(facts(world))
    meaning = interpret(world.snapshot, world.ledger, [fact], RULES)
    assert interpret(world.snapshot, world.ledger, [fact, fact], RULES) == meaning
    after = world.after(fact)
    if isinstance(fact, AgentAnswer | VisitOver | PullOver):
        assert interpret(after.snapshot, after.ledger, [fact], RULES) == Interpretation(after.ledger)


def same(some: Interpretation, other: Interpretation) -> bool:
    """Return whether both are the same but for the order of their parts."""
    return some.ledger == other.ledger and {e.session_id: e for e in some.events} == {
        e.session_id: e for e in other.events
    }


@tried
@given(worlds(), st.data())
def test_the_order_in_which_agents_answer_does_not_matter(world, data):
    if not world.ledger.visits.in_flight:
        return
    drawn = data.draw(st.lists(answers(world), max_size=4, unique_by=lambda answer: answer.agent_id))
    shuffled = data.draw(st.permutations(drawn))
    assert same(
        interpret(world.snapshot, world.ledger, drawn, RULES), interpret(world.snapshot, world.ledger, shuffled, RULES)
    )
    together, one_by_one = world.after(*drawn), world
    for answer in shuffled:
        one_by_one = one_by_one.after(answer)
    assert together.ledger == one_by_one.ledger
    assert together.snapshot.sessions == one_by_one.snapshot.sessions


@tried
@given(worlds())
def test_only_agents_that_are_observed_and_that_a_session_starts_or_ends_on_are_awaited(world):
    decided = world.decide()
    assert decided.awaited <= decided.ledger.visits.observed
    keeper = decided.snapshot.overlay_keeper
    moving = [s for s in decided.snapshot.placed if s.state is not SessionState.RUNNING]
    needed = {agent_id for session in moving for agent_id in session.agents} | ({keeper.id} if keeper else set())
    assert decided.awaited <= needed


def test_a_session_awaits_the_agents_that_are_observed_when_it_starts_or_ends():
    agents = tuple(make_agent(f"a{number}", cpus=1) for number in (1, 2, 3))
    ending, runs = (placed_on(make_session(number, cpu=1), f"a{number}") for number in (1, 2))
    world = World(Snapshot(agents, (ending, runs), NOW)).settled()
    world = replace(world, ledger=world.ledger.observing_all()).settled()
    assert world.ledger.visits.observed == {"a1", "a2", "a3"}
    ended = transitions.end_by_user(world.snapshot.placed[0], "ada", NOW)
    snapshot = replace(world.snapshot, sessions=(*world.snapshot.sessions, make_session(3, cpu=1)))
    world = replace(world, snapshot=applied(snapshot, [ended])).settled()
    *_, (_, _, decided) = world.past
    assert (decided.visits, decided.awaited) == ((), {"a1", "a3"})


def test_an_agent_that_has_a_manifest_is_not_awaited():
    agents = (make_agent("a1", cpus=4),)
    world = World(Snapshot(agents, (make_session(1, cpu=1),), NOW)).settled()
    assert world.ledger.visits.in_flight == {"a1"}
    sessions = (*world.snapshot.sessions, make_session(2, cpu=1))
    assert not replace(world, snapshot=replace(world.snapshot, sessions=sessions)).decide().awaited


def test_an_agents_answers_count_in_the_order_in_which_it_gave_them():
    """One that an observation of everything brings from a new agent is as nothing once another visit knows it."""
    visits = OpenVisits().opened((), NOW, everywhere=True, observes=True)
    new = AgentAnswer("a1", visit=visits.last_number)
    assert visits.awaits(new, known=())
    assert not visits.awaits(new, known={"a1"})
    assert not visits.with_answers([new]).awaits(new, known=())
    assert visits.opened(("a1",), NOW).awaits(replace(new, visit=visits.last_number + 1), known={"a1"})


def test_an_agent_that_is_visited_anyway_is_not_observed_for_a_death_first():
    agents = (make_agent("a1", cpus=4), make_agent("a2", cpus=2))
    one, two = (placed_on(make_session(number, cpu=2), f"a{number}") for number in (1, 2))
    new = make_session(3, cpu=1)
    world = World(Snapshot(agents, (one, two, new), NOW + 10))
    died = world.ledger.with_death("a1", one.id).with_death("a2", two.id)
    world = replace(world, ledger=died).settled()
    launch, look = world.ledger.visits.visits
    assert (launch.waiting, look.waiting) == ({"a1"}, {"a2"})
    *_, (_, _, decided) = world.past
    assert [type(visit) for visit in decided.visits] == [Convergence, Observation]
    assert world.ledger.deaths == {"a1": {one.id}}


def test_an_agent_where_a_kernel_died_is_observed_before_anything_is_decided():
    agents = (make_agent("a1", cpus=4), make_agent("a2", cpus=2))
    one, two = (placed_on(make_session(number, cpu=2), f"a{number}") for number in (1, 2))
    world = World(Snapshot(agents, (one, two), NOW)).settled()
    later = world.snapshot.at(NOW + 10)
    begun = turn_of_deaths(later, world.ledger.with_death("a2", two.id), RULES)
    (look,) = begun.visits
    assert isinstance(look, Observation)
    assert (look.agent_ids, begun.ledger.visits.find(look.visit).since) == (("a2",), NOW + 10)
    assert begun.ledger.visits.in_flight == {"a2"}
    assert (begun.events, begun.pulls, begun.ledger.deaths) == ((), (), {})


def test_a_death_on_an_agent_with_other_work_to_do_is_left_to_the_turn():
    one, two = (placed_on(make_session(number, cpu=1), "a1") for number in (1, 2))
    ending = replace(two, state=SessionState.TERMINATING)
    ledger = Ledger().with_death("a1", one.id)
    begun = turn_of_deaths(Snapshot((make_agent("a1", cpus=4),), (one, ending), NOW), ledger, RULES)
    assert (begun.visits, begun.ledger) == ((), ledger)


def test_a_death_of_a_session_that_the_last_turn_did_not_know_is_left_to_the_next():
    ledger = Ledger().with_death("a1", "a session that is new")
    begun = turn_of_deaths(Snapshot((make_agent("a1"),), (), NOW), ledger, RULES)
    assert (begun.visits, begun.ledger) == ((), ledger)


def test_no_agent_is_observed_for_a_death_in_the_pause_after_a_failed_run():
    one = placed_on(make_session(1), "a1")
    ledger = replace(Ledger().with_death("a1", one.id), paused_until=NOW + 1)
    begun = turn_of_deaths(Snapshot((make_agent("a1"),), (one,), NOW), ledger, RULES)
    assert (begun.visits, begun.ledger) == ((), ledger)
