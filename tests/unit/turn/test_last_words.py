"""Which last words are fetched from agents, and which say the usage of sessions that are gone."""

import pytest

from muster.contract.outcome import LastWords, Outcome
from muster.contract.report import UseSample
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.answer import AgentAnswer
from muster.core.turn.facts import VisitOver
from muster.core.turn.last_words import MOST_FETCHED, Spools, gone_with_usage, unfetched_spools
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW, new_id


def stopped(session: Session, use: UseSample | None) -> Outcome:
    words = LastWords(
        session_id=session.id,
        kernel_id=session.main.id,
        name="main1",
        exit_code=0,
        oom_killed=False,
        started_at=None,
        finished_at=None,
        log_gz_b64="",
        log_truncated=False,
        use=use,
    )
    return Outcome("stopped", last_words=(words,))


def test_words_of_sessions_that_are_placed_or_were_fetched_here_are_left_alone():
    ending = placed_on(make_session(1), "a1", state=SessionState.TERMINATING)
    spools = [ending.id, new_id(2), new_id(3)]
    agents = (reporting(make_agent("a1"), spools=spools), reporting(make_agent("a2"), spools=spools))
    found = unfetched_spools(agents, Snapshot(agents, (ending,), NOW), {("a1", new_id(2))})
    assert found == {"a1": Spools((new_id(3),)), "a2": Spools((new_id(2), new_id(3)))}


def test_words_beyond_one_visits_share_stay_for_later_visits():
    ids = [new_id(number) for number in range(1, MOST_FETCHED + 3)]
    agents = (reporting(make_agent("a1"), spools=ids),)
    snapshot = Snapshot(agents, (), NOW)
    first = unfetched_spools(agents, snapshot, ())["a1"]
    assert first == Spools(tuple(ids[:MOST_FETCHED]), tuple(ids[MOST_FETCHED:]))
    assert unfetched_spools(agents, snapshot, {("a1", id_) for id_ in first.to_fetch}) == {"a1": Spools(first.to_leave)}


def test_a_spool_that_no_session_can_have_is_left_to_the_agent_to_discard():
    agents = (reporting(make_agent("a1"), spools=["../etc", new_id(0xABC).upper(), new_id(10) + "\\n"]),)
    assert unfetched_spools(agents, Snapshot(agents, (), NOW), ()) == {"a1": Spools()}


@pytest.mark.parametrize("state", [SessionState.TERMINATING, SessionState.TERMINATED])
@pytest.mark.parametrize("use", [None, UseSample(at=NOW)], ids=["silent", "usage"])
def test_only_words_with_usage_of_sessions_that_are_not_placed_are_read_for(state, use):
    session = placed_on(make_session(1), "a1", state=state)
    facts = [VisitOver(1), AgentAnswer("a1", 1, outcomes={session.id: stopped(session, use)})]
    is_gone = state is SessionState.TERMINATED and use is not None
    placed = (session,) if state is SessionState.TERMINATING else ()
    assert gone_with_usage(facts, Snapshot((), placed, NOW)) == ({session.id} if is_gone else frozenset())
