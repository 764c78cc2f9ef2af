"""Opening an app from the pages: the right to do so, its address, and its end."""

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Event, Semaphore
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from muster.core.model.session import SessionState
from muster.core.model.token import Scope
from muster.core.values.errors import BadInputError, MusterError
from muster.service.owned_reach import OwnedReach
from muster.web.app import make_app
from muster.web.opened_apps import gateway as app_gateway
from muster.web.opened_apps.server import AppAddresses
from muster.web.server import ServerOptions
from tests.command_line import muster
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.unit.running_sessions import running_session
from tests.unit.web.opened_apps.upstream_app import Loop, Upstream, serving, way
from tests.waiting import PATIENCE_S, eventually

HERE = "muster.example:8080"
APPS = {
    "apps": [{"name": "lab", "port": 8888, "command": "serve", "url": "/lab"}],
    "publish": ["web=8080", "more=9090"],
}
PORTS = 2


def free_ports() -> range:
    """Return two neighbouring ports that are free, and that no other test process takes at the same moment."""
    for first in range(21000 + os.getpid() % 500 * 7, 30000, 7):
        with ExitStack() as stack:
            try:
                for port in range(first, first + PORTS):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return range(first, first + PORTS)
    raise AssertionError("no free ports")


@pytest.fixture
def ways(monkeypatch, tmp_path) -> Iterator[list]:
    """Yield the tunnels to opened apps, which lead to one that runs here. Each notes when it is closed."""
    made = []
    loop = Loop()

    def opened(_backend, session, app):
        new: Any = way(session, app, tmp_path / "app")
        new.closed = Event()
        new._ending.callback(new.closed.set)
        made.append(new)
        return new

    monkeypatch.setattr(OwnedReach, "open_app_tunnel", opened)
    with serving(loop, Upstream(), tmp_path / "app"):
        yield made
    loop.end()


@pytest.fixture
def app(service, ways, monkeypatch):
    del ways
    monkeypatch.setattr(app_gateway, "CHECK_S", 0.1)
    return make_app(service.service, apps=AppAddresses("127.0.0.1", free_ports()))


@pytest.fixture
def session(service):
    """Return ada's running session with apps."""
    made = replace(running_session(1, "a1", name="hers", **APPS), owner="ada")
    service.store.add([made])
    service.store.agents.save([make_agent("a1")])
    return made


def open_app(client, session="hers", app="lab"):
    return client.post(f"/sessions/{session}/apps/{app}/open", headers={"Host": HERE}, follow_redirects=False)


def entrance(answer) -> str:
    """Return the URL that the browser is sent to, by this machine's address."""
    assert answer.status_code == 200, answer.text
    url = answer.headers["refresh"].removeprefix("0; url=")
    assert f'href="{url}"' in answer.text.replace("&#34;", '"')
    assert url.startswith("http://muster.example:")
    return url.replace("muster.example", "127.0.0.1")


def port_of(url: str) -> int:
    return httpx.URL(url).port


def is_over(port: int) -> bool:
    """Return once nothing listens at the port any more."""

    def is_refused() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 30).close()
        except ConnectionRefusedError:
            return True
        return False

    return eventually(is_refused)


def test_an_app_is_opened_at_a_port_of_its_own_by_a_ticket(browser, session, service):
    opened = open_app(browser("ada"))
    url = entrance(opened)
    assert opened.headers["cross-origin-opener-policy"] == "same-origin"
    with httpx.Client() as other:
        entered = other.get(url)
        assert entered.status_code == 303
        assert entered.headers["location"] == f"http://muster.example:{port_of(url)}/lab"
        assert other.get(f"http://127.0.0.1:{port_of(url)}/x").json()["target"] == "/x?"
    lines = (service.settings.state_dir / "audit.log").read_text().splitlines()
    noted = [line for line in map(json.loads, lines) if line["path"].endswith("/open")]
    assert [(line["user"], line["sessions"], line["status"]) for line in noted] == [("ada", [session.id], 200)]


@pytest.mark.usefixtures("session")
def test_an_app_is_opened_once_for_each_browser(browser, ways):
    ada, elsewhere = browser("ada"), browser("ada", name="elsewhere")
    first, again = entrance(open_app(ada)), entrance(open_app(ada))
    assert port_of(first) == port_of(again)
    assert first != again
    assert port_of(entrance(open_app(elsewhere))) != port_of(first)
    assert len(ways) == 2


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize(
    ("user", "scope", "name", "status", "text"),
    [
        ("eve", Scope.USER, "lab", 404, "there is no session"),
        ("ada", Scope.READ, "lab", 403, "may only read"),
        ("ada", Scope.USER, "nope", 404, "session hers has no app &#39;nope&#39;; it has lab, web, more"),
    ],
)
def test_an_app_is_opened_by_nobody_else(browser, ways, user, scope, name, status, text):
    refused = open_app(browser(user, scope), app=name)
    assert refused.status_code == status
    assert text in refused.text
    assert ways == []


@pytest.mark.usefixtures("session")
def test_an_app_is_opened_by_the_pages_own_secret_only(browser, ways):
    ada = browser("ada")
    ada.headers["X-CSRF-Token"] = "0" * 64
    assert open_app(ada).status_code == 403
    ada.cookies.clear()
    assert open_app(ada).status_code == 303
    assert ways == []


def test_an_app_of_a_session_that_does_not_run_is_not_opened(browser, service, ways):
    waiting = replace(make_session(2, name="waits", **APPS), owner="ada")
    service.store.add([waiting])
    refused = open_app(browser("ada"), "waits")
    assert refused.status_code == 409
    assert "apps can be opened of sessions that are RUNNING" in refused.text
    assert ways == []


@pytest.mark.usefixtures("session")
def test_a_tunnel_that_cannot_be_opened_is_reported_and_takes_no_port(browser, monkeypatch):
    ada = browser("ada")

    def fails(*_asked):
        raise MusterError("session hers cannot be reached by ssh: no route")

    with monkeypatch.context() as broken:
        broken.setattr(OwnedReach, "open_app_tunnel", fails)
        assert "cannot be reached by ssh: no route" in open_app(ada).text
    assert [open_app(ada, app=name).status_code for name in ("lab", "web")] == [200, 200]


@pytest.mark.usefixtures("session")
def test_ports_and_a_users_share_of_them_come_to_an_end(browser, monkeypatch, ways):
    ada = browser("ada")
    assert [open_app(ada, app=name).status_code for name in ("lab", "web")] == [200, 200]
    full = open_app(ada, app="more")
    assert (full.status_code, "all 2 ports for apps are in use" in full.text) == (429, True)
    assert ways[-1].closed.wait(PATIENCE_S)
    monkeypatch.setattr(app_gateway, "MAX_PER_USER", 2)
    full = open_app(ada, app="more")
    assert (full.status_code, "you have 2 apps open" in full.text) == (429, True)
    assert open_app(ada).status_code == 200


def sign_out(ada, _service, _session, _monkeypatch, _way):
    assert ada.post("/sign-out", follow_redirects=False).status_code == 303


def revoke(_ada, service, _session, _monkeypatch, _way):
    service.store.tokens.remove("ada-user-pages")


def terminate(_ada, service, session, _monkeypatch, _way):
    service.service.commands.terminate([session.id], "ada")


def leave_idle(_ada, _service, _session, monkeypatch, _way):
    monkeypatch.setattr(app_gateway, "IDLE_S", 0.0)


def lose_the_way(_ada, _service, _session, _monkeypatch, opened):
    opened._tunnel.poll = lambda: 255


@pytest.mark.parametrize("ends", [sign_out, revoke, terminate, leave_idle, lose_the_way])
def test_an_opened_app_closes_when_nobody_may_use_it(browser, service, session, ways, monkeypatch, ends):
    ada = browser("ada")
    url = entrance(open_app(ada))
    ends(ada, service, session, monkeypatch, ways[0])
    assert is_over(port_of(url))
    assert ways[0].closed.wait(PATIENCE_S)


@pytest.mark.usefixtures("session")
def test_no_request_waits_for_the_answer_whether_an_app_is_still_open(browser, ways):
    ada = browser("ada")
    port = port_of(entrance(open_app(ada)))
    questions, answer = Semaphore(0), Event()

    def is_open() -> bool:
        questions.release()
        return answer.wait(PATIENCE_S)

    ways[0].is_open = is_open
    with ThreadPoolExecutor(2) as pool:
        again = pool.submit(open_app, ada)
        try:
            # One of the watch over all apps, one of this request.
            assert all(questions.acquire(timeout=5) for _ in range(2))
            assert pool.submit(ada.get, "/healthz").result(5).status_code == 200
        finally:
            answer.set()
        assert port_of(entrance(again.result(PATIENCE_S))) == port


def test_a_session_that_starts_anew_is_opened_anew(browser, service, session, ways):
    ada = browser("ada")
    before = port_of(entrance(open_app(ada)))
    service.service.commands.restart([session.id], "ada")
    assert is_over(before)
    assert ways[0].closed.wait(PATIENCE_S)
    assert service.store.find(session.id).state is not SessionState.RUNNING


@pytest.mark.usefixtures("session")
def test_the_servers_end_is_every_apps_end(app, service, ways):
    _, secret = service.service.tokens.create("laptop", "ada", Scope.USER, None)
    with TestClient(app) as ada:
        ada.post("/sign-in", data={"token": secret}, follow_redirects=False)
        ada.headers["X-CSRF-Token"] = hashlib.sha256(f"csrf {ada.cookies['muster']}".encode()).hexdigest()
        port = port_of(entrance(open_app(ada)))
        assert not ways[0].closed.is_set()
    assert ways[0].closed.is_set()
    assert is_over(port)


@pytest.mark.usefixtures("session")
def test_without_ports_the_pages_say_what_to_do_instead(browser, app):
    ada = browser("ada")
    app.state.app_gateway = None
    refused = open_app(ada)
    assert refused.status_code == 409
    assert "this server opens no apps in the browser; ask an administrator" in refused.text


@pytest.mark.parametrize("text", ["8100", "8100-", "-8100", "8200-8100", "0-5", "8100-70000", "a-b", "8100-8199-8200"])
def test_a_range_of_ports_is_the_first_and_the_last(text):
    done = muster("web", f"--app-ports={text}")
    assert (done.code, done.err) == (
        2,
        f"muster: --app-ports: {text!r} is no range of ports; write the first and the last, such as 8100-8199\n",
    )


def test_the_servers_own_port_is_for_no_app():
    with pytest.raises(BadInputError, match=r"^--app-ports: 8100 is the server's own port"):
        ServerOptions("127.0.0.1", 8100, app_ports=range(8100, 8200)).check()
