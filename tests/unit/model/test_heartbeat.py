"""When a queue counts as not worked, and how an agent's state ages."""

from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.heartbeat import Heartbeat, Unworked, Worker, unworked
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW

LAST = Heartbeat(NOW, Worker.DAEMON, "ctl-1", 7)


def test_a_queue_is_worked_until_the_limit_is_over():
    assert unworked(LAST, NOW - 9999, NOW + 180, 180) is None
    assert unworked(LAST, NOW - 9999, NOW + 181, 180) == Unworked(181, LAST)


def test_a_queue_that_was_never_worked_counts_from_its_oldest_session():
    assert unworked(None, None, NOW, 180) is None
    assert unworked(None, NOW - 180, NOW, 180) is None
    assert unworked(None, NOW - 181, NOW, 180) == Unworked(181, None)


def test_a_heartbeat_far_in_the_future_is_of_a_clock_that_was_set_back():
    assert unworked(LAST, None, NOW - 60, 180) is None
    assert unworked(LAST, None, NOW - 3600, 180) == Unworked(3600, LAST)


def test_the_text_names_the_time_the_last_worker_and_the_remedy():
    text = Unworked(1020, LAST).text
    assert text.startswith("nobody has worked the queue for 17m (last: the daemon on ctl-1)")
    assert "ask an administrator" in text
    assert "last:" not in Unworked(1020, None).text


@pytest.mark.parametrize("state", AgentState)
def test_only_a_live_heartbeat_becomes_stale_and_only_after_the_limit(state):
    agent = replace(make_agent(), state=state)
    assert agent.aged(agent.observed_at + 180, 180) is agent
    aged = agent.aged(agent.observed_at + 1020, 180).state
    assert aged is (AgentState.STALE if state is AgentState.ALIVE else state)


def test_a_stale_agent_is_not_said_to_take_sessions():
    assert not make_agent().aged(NOW + 1e6, 180).takes_sessions
