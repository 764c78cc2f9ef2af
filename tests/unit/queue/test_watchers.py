"""The daemon's watch for kernels that end: which deaths make it look at the agent."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from muster import daemon
from muster.core.model.session import SessionState
from muster.core.values.errors import AgentUnreachableError
from muster.settings import Settings
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session

S = SessionState
WATCHED = {S.PREPARING, S.RUNNING}


@pytest.mark.parametrize("state", list(S))
def test_a_death_during_a_launch_is_not_dropped_and_one_by_our_own_hand_is(monkeypatch, state):
    session = replace(make_session(), state=state)
    store = SimpleNamespace(get=lambda _ids: {session.id: session})

    def dies(agent, _cluster, died):
        died(session.id)
        raise AgentUnreachableError(f"agent {agent.id}: its engine closed the event stream")

    monkeypatch.setattr(daemon, "watch_deaths", dies)
    hurried = []
    watchers = daemon._Watchers(Settings(), store, SimpleNamespace(hurry=hurried.extend))
    observed = []
    watchers.died = lambda *death: observed.append(death)
    watchers._watch(make_agent("a1"))
    assert observed == ([("a1", session.id)] if state in WATCHED else [])
    assert hurried == (["a1"] if state in WATCHED else [])
