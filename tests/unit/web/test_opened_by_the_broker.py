"""What the broker has opened for the web server, and two of its threads ask about at once."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from muster.core.model.apps import App
from muster.core.model.token import Scope
from muster.web.separation.answers import done
from muster.web.separation.changes import BrokeredChanges
from muster.web.separation.line import Line, NoBrokerError
from muster.web.separation.opened import BrokeredProgram, BrokeredTunnel
from muster.web.separation.operations import EXIT_CODE, Credential, KnownToken
from muster.web.separation.wire import receive, send
from tests.strategies.sessions import make_session
from tests.waiting import PATIENCE_S

ROUNDS = 300
SESSION = make_session(1)
ANSWERS = {EXIT_CODE: 7, b"80 24": None, b"?": True}


@pytest.fixture
def asked() -> Iterator[socket.socket]:
    """Yield a connection whose other end answers each question in its turn, as the broker does."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        while (question := receive(theirs)) is not None:
            send(theirs, done(ANSWERS[question]))

    thread = threading.Thread(target=answer)
    thread.start()
    with ours, theirs:
        # An answer that another thread took fails a test, and does not hang it.
        ours.settimeout(PATIENCE_S)
        yield ours
        ours.close()
        thread.join()


def at_once(first: Callable[[], object], second: Callable[[], object]) -> set[tuple[object, object]]:
    """Return the pairs of answers of many rounds in which both are called at once."""
    together = threading.Barrier(2)

    def repeated(call: Callable[[], object]) -> list[object]:
        answers = []
        for _ in range(ROUNDS):
            together.wait(PATIENCE_S)
            answers.append(call())
        return answers

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(repeated, call) for call in (first, second)]
        return set(zip(*(one.result() for one in found), strict=True))


def test_a_terminal_is_resized_while_its_programs_exit_code_is_waited_for(asked):
    program = BrokeredProgram(SESSION, asked, socket.socket())
    assert at_once(program.exit_code, lambda: program.resize(80, 24)) == {(7, None)}
    program.close()


def test_nobody_who_stops_reading_changes_waits_until_the_broker_opens_them():
    begun, broken_off = threading.Event(), threading.Event()

    class SlowLine(Line):
        def open(self, *_: object, **__: object) -> Any:
            begun.set()
            broken_off.wait(PATIENCE_S)
            raise NoBrokerError

    with socket.socket() as unused, ThreadPoolExecutor(2) as pool:
        changes = BrokeredChanges(SlowLine(unused))
        token = KnownToken("t", "ada", Scope.USER, 0.0, credential=Credential(kind="token", secret="s"))
        adding = pool.submit(changes.add, print, token)
        assert begun.wait(PATIENCE_S)
        try:
            pool.submit(changes.remove, print).result(5)
        finally:
            broken_off.set()
        with pytest.raises(NoBrokerError):
            adding.result(PATIENCE_S)


def test_a_page_and_the_watch_ask_at_once_whether_an_app_is_open(asked):
    app = App("lab", 8888)
    tunnel = BrokeredTunnel(asked, (SESSION, app, "", Path("/nowhere")))
    assert at_once(tunnel.is_open, tunnel.is_open) == {(True, True)}
