"""Live usage of sessions: one poller for all watchers of a session, and none without watchers."""

import threading
from dataclasses import replace

import pytest

from muster.core.model.session import SessionState
from muster.core.model.token import Scope, Token
from muster.engine.container_usage import ContainerUsage
from muster.service.usage import live as live_use
from muster.service.usage.live import CurrentUsage, UsagePoller
from muster.service.usage.watched import LINGER_S, MOST_OF_ONE_OWNER, MOST_SESSIONS, UsageCache
from tests.reports import kernel_entry, use_of
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import new_id

WAIT_S = 20
ANYBODY = Token("operator", "root", Scope.ADMIN, 0.0)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class FakeUses:
    """A poller that answers on command, and notes its requests and its stop."""

    made: tuple["FakeUses", ...] = ()

    def __init__(self, sessions, agents, interval_s):
        del agents, interval_s
        FakeUses.made = (*FakeUses.made, self)
        self.session = sessions[0]
        self.answers = threading.Semaphore(0)
        self.requested = threading.Semaphore(0)
        self.stopped = threading.Event()

    def start(self):
        pass

    def stop(self):
        self.stopped.set()
        self.answers.release()

    def update_agents(self, agents):
        pass

    def all(self, timeout_s, *, rounds):
        del timeout_s
        self.requested.release()
        assert self.answers.acquire(timeout=WAIT_S)
        use = ContainerUsage(rounds / 10, rounds * 1000, None, 0, 0, 1)
        return [CurrentUsage(self.session, kernel, use) for kernel in self.session.kernels]

    def answer(self):
        assert self.requested.acquire(timeout=WAIT_S)
        self.answers.release()


class KnownAgents:
    def all(self):
        return (make_agent("a1"),)


class EmptyStore:
    agents = KnownAgents()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hub(clock, monkeypatch):
    monkeypatch.setattr("muster.service.usage.watched.INTERVAL_S", 0.001)
    FakeUses.made = ()
    made = UsageCache(EmptyStore(), FakeUses, clock)
    yield made
    made.close()


def running(number=1, **values):
    return placed_on(make_session(number, cluster_size=2, **values), "a1")


def test_one_poller_serves_all_watchers_of_a_session(hub):
    session = running()
    assert hub.of(session, ANYBODY).kernels == {}
    assert hub.of(session, ANYBODY).kernels == {}
    (uses,) = FakeUses.made
    uses.answer()
    assert uses.requested.acquire(timeout=WAIT_S)
    first = hub.of(session, ANYBODY).kernels
    assert list(first) == [kernel.id for kernel in session.kernels]
    assert first[session.id].now.use.cpu_cores == 0.1
    uses.answers.release()
    assert uses.requested.acquire(timeout=WAIT_S)
    assert [sample.mem_bytes for sample in hub.of(session, ANYBODY).kernels[session.id].samples] == [1000, 2000]
    assert len(FakeUses.made) == 1


def test_polling_ends_after_a_while_without_requests_and_begins_anew(hub, clock):
    session = running()
    hub.of(session, ANYBODY)
    clock.now += LINGER_S - 1
    hub.of(session, ANYBODY)
    (uses,) = FakeUses.made
    assert uses.requested.acquire(timeout=WAIT_S)
    clock.now += LINGER_S + 1
    uses.answers.release()
    assert uses.stopped.wait(WAIT_S)
    assert hub.watched == 0
    assert hub.of(session, ANYBODY).kernels == {}
    assert len(FakeUses.made) == 2


def test_a_session_that_does_not_run_is_not_watched(hub):
    assert hub.of(replace(running(), state=SessionState.TERMINATING), ANYBODY).kernels == {}
    assert hub.watched == 0


def test_no_other_user_reads_or_begins_the_watch_of_a_session(hub):
    bob = Token("laptop", "bob", Scope.USER, 0.0)
    assert hub.of(running(), bob).kernels == {}
    assert hub.watched == 0
    hub.of(running(), replace(bob, user="ada"))
    assert hub.watched == 1


def test_a_restart_makes_other_containers_which_are_watched_then(hub):
    session = running()
    hub.of(session, ANYBODY)
    restarted = replace(session, kernels=tuple(replace(k, container_id=f"new-{k.name}") for k in session.kernels))
    hub.of(restarted, ANYBODY)
    old, new = FakeUses.made
    assert old.stopped.is_set()
    assert new.session is restarted
    assert hub.watched == 1


def test_one_owner_and_all_together_watch_so_many_at_once(hub):
    for number in range(MOST_OF_ONE_OWNER):
        assert not hub.of(running(number + 1), ANYBODY).problem
    assert "sessions of ada are watched already" in hub.of(running(900), ANYBODY).problem
    for number in range(MOST_OF_ONE_OWNER, MOST_SESSIONS):
        assert not hub.of(replace(running(number + 1), owner=f"user{number}"), ANYBODY).problem
    refused = hub.of(replace(running(901), owner="bob"), ANYBODY)
    assert refused.problem.startswith(f"{MOST_SESSIONS} sessions are watched already")
    assert not hub.of(running(1), ANYBODY).problem
    assert hub.watched == MOST_SESSIONS


def test_a_poller_takes_newer_reports(monkeypatch):
    session = running()
    agent = make_agent("a1")
    entry = kernel_entry(session, "main1", use=use_of(gpu_percent=40))
    uses = UsagePoller([session], {"a1": agent}, 1.0)
    uses.update_agents({"a1": reporting(agent, kernels=[entry])})
    requested = threading.Event()

    class Engine:
        def __enter__(self):
            requested.set()
            return self

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(live_use, "engine_of", lambda *_args, **_kwargs: Engine())
    monkeypatch.setattr(live_use, "container_usages", lambda *_args: {})
    uses.start()
    try:
        known = uses.all(WAIT_S)
    finally:
        uses.stop()
    assert requested.is_set()
    assert {now.kernel.id: now.gpu_percent for now in known} == {session.id: 40, new_id(1, 1): None}
