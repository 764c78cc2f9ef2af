"""The queue is decided once for all who look at the same moment, and before the server's first request."""

import threading

import pytest

from muster.core.model.token import Scope
from muster.core.scheduling.schedule import schedule
from muster.service.questions import decided_queue
from muster.service.scheduler import compiled_code
from muster.service.scheduler.compiled_code import compile_placement
from muster.web.rendering import _environment, load_templates
from muster.web.separation import processes
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.waiting import PATIENCE_S


@pytest.fixture
def decided(monkeypatch, service):
    """Save a queue in which nothing fits; return the snapshots that are decided on."""
    snapshots = []

    def counted(snapshot, memory):
        # What is remembered costs nothing, and is no decision.
        if memory.plan(snapshot.with_free_places()) is None:
            snapshots.append(snapshot)
        return schedule(snapshot, memory)

    monkeypatch.setattr(decided_queue, "schedule", counted)
    service.store.agents.save([make_agent("a1")])
    service.store.add([make_session(number, owner="ada", cpu=80) for number in range(1, 4)])
    return snapshots


@pytest.mark.usefixtures("decided")
def test_readers_between_two_changes_share_a_decision(browser, decided, service):
    ada, root = browser("ada"), browser("root", Scope.ADMIN)
    first = ada.get("/queue").text
    assert "s1 … s3" in root.get("/queue").text
    assert root.get("/overview").status_code == 200
    assert len(decided) == 1
    service.store.add([make_session(4, owner="ada", cpu=80)])
    assert "s1 … s3" in first
    assert "s1 … s4" in ada.get("/queue").text
    assert len(decided) == 2


def test_a_server_has_decided_before_its_first_request(browser, decided, service):
    compile_placement()
    with processes._queue_ahead(service.service):
        assert len(decided) == 1
    browser("ada").get("/queue")
    assert len(decided) == 1


def test_a_server_that_cannot_read_the_queue_starts_all_the_same(caplog, monkeypatch, service):
    compile_placement()

    def read_ahead():
        raise ZeroDivisionError("in the order of a site")

    monkeypatch.setattr(service.service, "read_ahead", read_ahead)
    with processes._queue_ahead(service.service):
        pass
    assert "the queue could not be read" in caplog.text


def test_where_nothing_is_compiled_the_server_does_not_wait(decided, monkeypatch, service):
    """It decides beside its first requests, once the code is there."""
    monkeypatch.setattr(processes, "is_compiled", lambda: False)
    has_code, has_read = threading.Event(), threading.Event()
    monkeypatch.setattr(compiled_code, "_stamp", lambda: None)
    monkeypatch.setattr(compiled_code, "compile_placement", has_code.wait)
    read_ahead = service.service.read_ahead

    def read():
        read_ahead()
        has_read.set()

    monkeypatch.setattr(service.service, "read_ahead", read)
    with processes._queue_ahead(service.service):
        assert not decided
        has_code.set()
        assert has_read.wait(PATIENCE_S)
    assert len(decided) == 1


def test_all_templates_are_compiled_before_the_first_page():
    load_templates()
    loaded = {name for _, name in _environment().cache}
    assert {"base.html", "queue.html", "sessions.html", "macros.html"} <= loaded
