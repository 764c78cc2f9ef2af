"""The log in a dialog: its controls, its text, its file, and who may see them."""

import gzip
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from muster.core.model.session import KernelLog, SessionState
from muster.core.model.token import Scope
from muster.core.spec.apps import AppSpec
from muster.core.values.errors import AgentUnreachableError
from muster.service.owned_reach import OwnedReach
from muster.web.streams import log_stream
from tests.strategies.sessions import make_session, placed_on
from tests.waiting import PATIENCE_S

HTMX = {"HX-Request": "true"}
KERNELS = "/sessions/train/kernels"


@pytest.fixture
def train(service) -> str:
    """Return the id of ada's session of two kernels that runs, with an app and a port of its program's own."""
    session = make_session(
        1, name="train", cluster_size=2, apps=[AppSpec(name="board", command="serve", port=6006)], publish=[8000]
    )
    service.store.add([placed_on(session, "a1")])
    return session.id


@pytest.fixture
def ended(service) -> str:
    """Return the id of ada's session that has ended and left a log."""
    session = replace(make_session(2, name="done"), state=SessionState.CANCELLED)
    service.store.add([session])
    service.store.keep_logs([KernelLog(session.id, "main1", gzip.compress(b"one\n\x1b[31mtwo\x1b[0m\nthree\n"))])
    return session.id


@pytest.fixture
def engine(monkeypatch):
    """Let the engine's log go on until it is stopped. Yields the noted requests, that event, and that of a reader."""
    requests, stop, is_read = [], threading.Event(), threading.Event()

    class Pieces:
        def __iter__(self):
            yield b"first\n"
            lines = 0
            while not stop.wait(0.001):
                yield b"more\n"
                lines += 1
                # No more than half of these wait for the reader, who therefore has the first one.
                if lines == 2 * log_stream._MAX_QUEUED:
                    is_read.set()

        def close(self):
            stop.set()

    @contextmanager
    def log(self, reference, kernel, wanted):
        self.find(reference)
        requests.append((kernel, wanted))
        yield Pieces()

    monkeypatch.setattr(OwnedReach, "log", log)
    yield requests, stop, is_read
    stop.set()


def test_the_dialog_offers_the_kernels_and_the_apps_that_have_logs(browser, train):
    ada = browser("ada")
    dialog = ada.get(f"{KERNELS}/sub1/log-dialog", headers=HTMX).text
    assert "<html" not in dialog
    offered = re.findall(r'<option value="(/sessions/[^"]+)"([^>]*)>([^<]+)<', dialog)
    base = f"/sessions/{train}/kernels"
    assert [(value, shown) for value, _, shown in offered] == [
        (f"{base}/main1/log", "main1"),
        (f"{base}/sub1/log", "sub1"),
        (f"{base}/main1/log?app=board", "app board"),
    ]
    assert [shown for _, given, shown in offered if "selected" in given] == ["sub1"]
    assert 'id="log-follow" checked' in dialog
    assert f'href="{base}/sub1/log?download=1"' in dialog
    # Without htmx the answer is a whole page.
    assert "<html" in ada.get(f"{KERNELS}/sub1/log-dialog").text


@pytest.mark.usefixtures("ended")
def test_the_log_of_an_ended_session_is_not_followed(browser):
    dialog = browser("ada").get("/sessions/done/kernels/main1/log-dialog", headers=HTMX).text
    assert "muster-log" in dialog
    assert "log-follow" not in dialog


@pytest.mark.usefixtures("ended")
def test_the_text_and_the_file(browser):
    ada = browser("ada", Scope.READ)
    text = ada.get("/sessions/done/kernels/main1/log", params={"tail": 1})
    assert (text.text, text.headers["content-type"]) == ("three\n", "text/plain; charset=utf-8")
    assert "content-disposition" not in text.headers
    file = ada.get("/sessions/done/kernels/main1/log?download=1&tail=1")
    # The whole, as it was written.
    assert file.content == b"one\n\x1b[31mtwo\x1b[0m\nthree\n"
    assert file.headers["content-disposition"] == 'attachment; filename="done-main1.log"'


def test_a_file_is_named_after_the_app_and_after_nothing_that_was_made_up(browser, train, engine):
    requests, stop, _ = engine
    stop.set()
    ada = browser("ada")
    names = {}
    for app in ("board", 'x";evil'):
        file = ada.get(f"/sessions/{train}/kernels/main1/log", params={"download": True, "follow": True, "app": app})
        names[app] = file.headers["content-disposition"]
    assert names["board"] == 'attachment; filename="train-board.log"'
    assert names['x";evil'] == 'attachment; filename="train-main1.log"'
    assert [wanted.follow for _, wanted in requests] == [False, False]


@pytest.mark.parametrize("path", ["log-dialog", "log", "log?download=1"])
def test_another_users_log_is_not_there(browser, train, ended, path):
    eve = browser("eve")
    for session in ("train", train, ended):
        answer = eve.get(f"/sessions/{session}/kernels/main1/{path}")
        assert answer.status_code == 404
        assert "there is no session" in answer.text
        assert "two" not in answer.text
    assert browser("nobody", sign_in=False).get(f"{KERNELS}/main1/{path}", follow_redirects=False).status_code == 303


@pytest.mark.usefixtures("train")
def test_an_error_is_a_line_for_the_script_and_a_page_for_a_person(browser, monkeypatch):
    @contextmanager
    def log(*_arguments):
        raise AgentUnreachableError("agent a1 <does not answer>")
        yield

    monkeypatch.setattr(OwnedReach, "log", log)
    ada = browser("ada")
    log_answer = ada.get(f"{KERNELS}/main1/log")
    assert (log_answer.status_code, log_answer.text) == (503, "agent a1 <does not answer>")
    assert log_answer.headers["content-type"] == "text/plain; charset=utf-8"
    page = ada.get(f"{KERNELS}/main1/log?download=1")
    assert page.status_code == 503
    assert "agent a1 &lt;does not answer&gt;" in page.text
    assert ada.get(f"{KERNELS}/sub9/log-dialog").status_code == 404


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("ends", ["its token", "the sign-in"])
def test_a_log_stream_ends_when_its_reader_may_no_longer_read(browser, service, engine, monkeypatch, ends):
    monkeypatch.setattr(log_stream, "CHECK_S", 0.05)
    requests, stop, is_read = engine
    ada = browser("ada", name="mine")
    end = {
        "its token": lambda: service.store.tokens.remove("mine"),
        "the sign-in": lambda: service.service.tokens.sign_out(ada.cookie),
    }[ends]
    revoking = threading.Thread(target=lambda: (is_read.wait(PATIENCE_S), end()))
    revoking.start()
    # The log would never end by itself.
    assert ada.get(f"{KERNELS}/sub1/log?follow=true").text.startswith("first\n")
    revoking.join()
    assert stop.is_set()
    assert [(kernel, wanted.follow) for kernel, wanted in requests] == [("sub1", True)]


@pytest.mark.usefixtures("train")
def test_a_line_makes_the_reader_no_more_time(browser, service, monkeypatch):
    monkeypatch.setattr(log_stream, "CHECK_S", 0.5)
    looked_up = threading.Event()
    find = service.service.tokens.signed_in

    def signed_in(secret):
        looked_up.set()
        return find(secret)

    class Pieces:
        def __iter__(self):
            yield b"at once\n"
            service.store.tokens.remove("mine")
            looked_up.clear()
            give_up_at = time.monotonic() + PATIENCE_S
            # One after the other, without a pause in which nothing but the check could come.
            while not looked_up.wait(0.05) and time.monotonic() < give_up_at:
                yield b"again\n"
            yield b"too late\n"

        def close(self):
            looked_up.set()

    @contextmanager
    def log(*_request):
        yield Pieces()

    monkeypatch.setattr(OwnedReach, "log", log)
    monkeypatch.setattr(service.service.tokens, "signed_in", signed_in)
    lines = browser("ada", name="mine").get(f"{KERNELS}/main1/log?follow=true").text.splitlines()
    assert lines[0] == "at once"
    assert set(lines[1:]) <= {"again"}


@dataclass(frozen=True)
class Reader:
    user: str


@pytest.mark.usefixtures("train", "engine")
def test_the_number_of_logs_read_at_once_is_limited(browser, app):
    app.state.log_streams |= {Reader(str(number)) for number in range(log_stream.MAX_STREAMS)}
    log_answer = browser("ada").get(f"{KERNELS}/main1/log")
    assert (log_answer.status_code, log_answer.text) == (429, "200 logs are open; try again later")
    app.state.log_streams.clear()


def test_a_session_of_nasty_names_breaks_no_page(browser, service):
    nasty = replace(make_session(3), name='"><script>x</script>')
    service.store.add([nasty])
    text = browser("ada").get(f"/sessions/{nasty.id}/kernels/main1/log-dialog").text
    assert "<script>x" not in text
    assert "&lt;script&gt;x" in text
