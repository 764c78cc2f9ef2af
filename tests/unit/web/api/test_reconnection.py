"""Clients that wait while the server restarts."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI

from muster.client import Client, ServerError, SessionState
from muster.remote import reconnection
from tests.waiting import PATIENCE_S

SPEC = {"cpu": 1, "mem": "64M", "command": "true"}


@contextmanager
def served(app: FastAPI, path: Path) -> Iterator[None]:
    """Serve the API at a Unix socket for as long as the context lasts."""
    running = uvicorn.Server(uvicorn.Config(app, uds=str(path), log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield
    running.should_exit = True
    thread.join(30)
    path.unlink(missing_ok=True)


@pytest.fixture
def client(tmp_path, secret_of) -> Iterator[Client]:
    """Return a client at a socket. It has a token, since this app knows no Unix users."""
    with Client(f"unix:{tmp_path / 'api.sock'}") as made:
        made._backend._client._http.headers["Authorization"] = f"Bearer {secret_of('ada')}"
        yield made


def test_a_client_that_waits_goes_on_when_the_server_was_restarted(app, tmp_path, client, monkeypatch):
    monkeypatch.setattr(reconnection, "_RETRY_S", 0.01)
    ended: list[SessionState] = []
    first_answer = threading.Event()
    with served(app, tmp_path / "api.sock"):
        job = client.submit(SPEC)
        waits = threading.Thread(
            target=lambda: ended.append(client.wait(job, changed=lambda _now: first_answer.set()).state)
        )
        waits.start()
        assert first_answer.wait(PATIENCE_S)
    assert not ended
    with served(app, tmp_path / "api.sock"):
        client.cancel(job)
        waits.join(30)
    assert ended == [SessionState.CANCELLED]


def test_a_client_gives_up_when_the_server_stays_away(app, tmp_path, client, monkeypatch):
    monkeypatch.setattr(reconnection, "_RETRY_S", 0.01)
    backend = client._backend
    backend._reconnection = reconnection.Reconnection(backend._client, away_s=0.0)
    with served(app, tmp_path / "api.sock"):
        job = client.submit(SPEC)
    with pytest.raises(ServerError, match="cannot be reached"):
        list(backend.wait_for([job], lambda _session: False))
    backend._reconnection = reconnection.Reconnection(backend._client)
    with pytest.raises(TimeoutError):
        list(backend.wait_for([job], lambda _session: False, timeout_s=0.1))
