"""The control node's clock is set back: nothing waits for the time that it showed before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import AgentState
from muster.core.agents.launch_record import FailedLaunch, LaunchRecord
from muster.core.lifecycle import transitions
from muster.core.lifecycle.applied import applied_to
from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.closures import could_hold
from muster.core.turn.conclusions import conclude
from muster.core.turn.ledger import Ledger, Silence, TurnRules
from muster.core.turn.verdicts import agents_by_the_clock, records_by_the_clock
from tests.properties import cheap
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW

HOUR_S = 3600.0
RULES = TurnRules(lost_after_s=90.0, slow_after_s=15.0, could_hold=could_hold)
RUNNING = make_session(state=SessionState.RUNNING, requeue=True, requeues=9)


def failed_once(**values):
    preparing = make_session(state=SessionState.PREPARING, **values)
    return applied_to(preparing, transitions.launch_failed(preparing, "no room", NOW, permanent=False))


def concluded(session, now: float):
    events, _ = conclude(Snapshot((make_agent(),), (session,), now), Ledger(), RULES)
    return [applied_to(session, event) for event in events]


def test_a_session_whose_launch_failed_is_tried_at_once():
    session = failed_once()
    (mended,) = concluded(session, NOW - HOUR_S)
    assert mended.retry_at is None
    assert mended.state is SessionState.PENDING
    assert mended.reason == session.reason


@pytest.mark.parametrize("requeues", [0, 3, 40])
def test_no_delay_is_taken_for_a_clock_that_was_set_back(requeues):
    begun = make_session(state=SessionState.RUNNING, requeue=True, requeues=requeues)
    ending = applied_to(begun, transitions.fail_begun(begun, "its engine died", NOW))
    again = applied_to(ending, transitions.ended(ending, {}, NOW))
    assert again.retry_at > NOW
    assert concluded(again, NOW) == []
    assert concluded(failed_once(), NOW) == []


@cheap
@given(st.floats(min_value=NOW, max_value=NOW + 1e6))
def test_an_agent_is_suspect_for_its_time_whatever_the_fractions_of_a_second(now):
    failures = tuple(FailedLaunch(f"s{number}", "ada") for number in range(2))
    record = LaunchRecord(failures).failed(FailedLaunch("s3", "bob"), now, RULES.suspects, may_suspect=True)
    suspect = replace(make_agent(), launch_record=record)
    assert records_by_the_clock(Snapshot((suspect,), (), now), RULES) == {}
    session = applied_to(RUNNING, transitions.fail_begun(RUNNING, "its engine died", now))
    assert concluded(applied_to(session, transitions.ended(session, {}, now)), now) == []


def test_an_agent_is_on_trial_at_once():
    record = LaunchRecord((FailedLaunch("s1", "ada"),), NOW + RULES.suspects.for_s, "launches fail there")
    suspect = replace(make_agent(), launch_record=record)
    assert records_by_the_clock(Snapshot((suspect,), (), NOW), RULES) == {}
    back = records_by_the_clock(Snapshot((suspect,), (), NOW - HOUR_S), RULES)
    assert back == {"a1": LaunchRecord((FailedLaunch("s1", "ada"),))}


def test_an_agent_that_stays_silent_is_lost_in_time():
    answering = make_agent("a2")
    silent = make_agent("a1").unanswered("unreachable", NOW)
    now = NOW - HOUR_S
    (silent,) = agents_by_the_clock(Snapshot((silent, answering), (), now), Ledger(), RULES)
    assert silent.unreachable_since == now
    assert silent.state is AgentState.UNREACHABLE
    later = now + RULES.lost_after_s
    # Times by the clock as it was before mean nothing for the time since.
    old = Ledger(silences={"a1": Silence(NOW + 1, NOW + 2)})
    assert agents_by_the_clock(Snapshot((silent, answering), (), later), old, RULES) == ()
    new = Ledger(silences={"a1": Silence(later - 2, later - 1)})
    (lost,) = agents_by_the_clock(Snapshot((silent, answering), (), later), new, RULES)
    assert lost.state is AgentState.LOST
