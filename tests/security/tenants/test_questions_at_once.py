"""A tenant who asks for the price of everything at once: others get their answers all the same."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from muster.service.questions import dry_run, why
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.waiting import PATIENCE_S

REFUSED = "too many questions of yours are answered; try again in a minute"


@contextmanager
def released_in_the_end(event):
    try:
        yield
    finally:
        event.set()


@pytest.fixture
def held(monkeypatch):
    """Return an event until which no question is answered, and a semaphore that counts those that are asked."""
    release, asked = threading.Event(), threading.Semaphore(0)
    for module, name in ((dry_run, "visible_dry_run"), (why, "visible_why")):
        answer = getattr(module, name)

        def slowly(*arguments, answer=answer, **options):
            asked.release()
            assert release.wait(PATIENCE_S)
            return answer(*arguments, **options)

        monkeypatch.setattr(module, name, slowly)
    return release, asked


def test_one_users_questions_leave_threads_to_others(caller, service, held):
    release, asked = held
    service.store.agents.save([make_agent("a1", cpus=2)])
    service.store.add([make_session(1, name="waits", cpu=4)])
    ada, bob = caller("ada"), caller("bob")
    new = {"command": "true"}
    ask = (
        lambda: ada.post("/api/v1/sessions/dry-run", json=new),
        lambda: ada.get("/api/v1/sessions/waits/why", params={"what_if": True}),
    )
    with ThreadPoolExecutor(5) as pool, released_in_the_end(release):
        answers = [pool.submit(ask[number % 2]) for number in range(4)]
        assert all(asked.acquire(timeout=PATIENCE_S) for _ in answers)
        assert [(one().status_code, one().json()["detail"]) for one in ask] == [(409, REFUSED)] * 2
        others = pool.submit(bob.post, "/api/v1/sessions/dry-run", json=new)
        assert asked.acquire(timeout=PATIENCE_S), "bob is answered meanwhile"
        release.set()
        assert [answer.result().status_code for answer in (*answers, others)] == [200] * 5
    assert ask[0]().status_code == 200, "as soon as they have their answers"
