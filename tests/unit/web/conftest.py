"""A control node's server in this process, and callers with tokens of each scope."""

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from muster.core.model.token import Scope
from muster.service.secrets.secrets import Secrets
from muster.service.service import Service
from muster.settings import Settings, load_settings
from muster.store.store import Store
from muster.web.app import make_app
from muster.web_settings import WebSettings
from tests.command_line import write_settings
from tests.waiting import eventually

Caller = Callable[..., TestClient]


@dataclass(frozen=True)
class ServedNode:
    """A control node's service layer, beside the store behind it, which tests fill and read."""

    store: Store
    settings: Settings
    service: Service

    @property
    def secrets(self) -> Secrets:
        return Secrets(self.store.secrets, self.settings.seal_key)

    def set_web(self, **values: object) -> None:
        """Set these of the server's settings, as if the file had them."""
        object.__setattr__(self.settings, "web", WebSettings(**values))


@pytest.fixture
def service(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedNode]:
    (tmp_path / "state").mkdir(mode=0o700)
    shutil.copy(empty_database, tmp_path / "state" / "muster.db")
    config = write_settings(tmp_path, {})
    monkeypatch.setenv("MUSTER_CONFIG", str(config))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SUDO_USER", "ada")
    settings = load_settings(config)
    store = Store(settings.database_url)
    yield ServedNode(store, settings, Service(store, settings))
    store.close()


@pytest.fixture
def app(service: ServedNode) -> FastAPI:
    return make_app(service.service)


@pytest.fixture
def secret_of(service: ServedNode) -> Callable[..., str]:
    """Return a token's secret for a user."""

    def make(user: str, scope: Scope = Scope.USER) -> str:
        name = f"{user}-{scope}"
        return service.service.tokens.create(name, user, scope, None)[1]

    return make


@pytest.fixture
def caller(app: FastAPI, secret_of: Callable[..., str]) -> Iterator[Caller]:
    """Yield clients that carry a token of such a user."""
    opened: list[TestClient] = []

    def make(user: str, scope: Scope = Scope.USER) -> TestClient:
        headers = {"Authorization": f"Bearer {secret_of(user, scope)}"}
        return _running(TestClient(app, headers=headers, raise_server_exceptions=False), opened)

    yield make
    if opened:
        opened[0].__exit__(None, None, None)


@pytest.fixture
def browser(app: FastAPI, service: ServedNode) -> Iterator[Callable[..., TestClient]]:
    """Yield clients that have signed in to the pages as such a user, and send what a page's htmx would send.

    Each has its token's `secret`, its `cookie` and its `csrf`.
    """
    opened: list[TestClient] = []

    def make(user: str, scope: Scope = Scope.USER, *, name: str | None = None, sign_in: bool = True) -> TestClient:
        _, secret = service.service.tokens.create(name or f"{user}-{scope}-pages", user, scope, None)
        client = _running(TestClient(app, raise_server_exceptions=False), opened)
        client.secret = secret
        if sign_in:
            client.post("/sign-in", data={"token": secret}, follow_redirects=False)
            client.cookie = client.cookies["muster"]
            # As pages have it. Reading it from one would be a tenth of the CPU of all tests of pages.
            client.csrf = hashlib.sha256(f"csrf {client.cookie}".encode()).hexdigest()
            client.headers["X-CSRF-Token"] = client.csrf
        return client

    yield make
    if opened:
        opened[0].__exit__(None, None, None)


def _running(client: TestClient, opened: list[TestClient]) -> TestClient:
    """Return the client, which starts the app if it is the test's first, and else shares the first one's event loop.

    A client with neither starts a thread with a loop of its own for each request.
    """
    if opened:
        client.portal = opened[0].portal
    else:
        client.__enter__()
    opened.append(client)
    return client


@pytest.fixture
def server(app: FastAPI) -> Iterator[str]:
    """Yield the URL of the server as it listens on a port of this machine."""
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    eventually(lambda: running.started)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join(30)
