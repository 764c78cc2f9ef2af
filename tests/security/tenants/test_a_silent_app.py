"""A tenant's kernel that says nothing: its app writes no line, or programs of Muster's are stopped in it.

The server has so many threads and the broker so many connections, and no more. Who follows a log that is silent, or
opens an app of such a kernel, again and again, would use them up.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from muster.core.spec.apps import AppSpec
from muster.engine import agent_engine
from muster.engine.tunnel import EngineTunnel
from muster.service.reach import app_tunnel
from muster.service.reach.logs import LogRequest
from tests.hostile.odd_engine import OddEngine, odd_engine
from tests.security.clients.taken_over_server import brokered_server, token
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.conftest import ServedNode
from tests.waiting import PATIENCE_S, eventually

APP = AppSpec(name="board", command="serve", port=6006, token=True, url="/?token={token}")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OddEngine]:
    """Yield an engine whose container runs programs that say nothing."""
    with odd_engine(tmp_path) as server:
        monkeypatch.setattr(agent_engine, "_LOCAL_ENGINE", EngineTunnel(f"unix://{server.path}", str))
        server.bodies = {"/containers/c1/json": b'{"Id": "c1"}', "/exec": json.dumps({"Id": "e1"}).encode()}
        server.silent = {"/exec/e1/start"}
        yield server


@pytest.fixture
def lab(service: ServedNode) -> str:
    """Return the name of ada's session with an app."""
    service.store.agents.save([make_agent("a1", inventory={"connection": "local"})])
    session = placed_on(make_session(1, name="lab", apps=[APP]), "a1")
    kernels = (replace(session.main, container_id="c1"), *session.kernels[1:])
    service.store.add([replace(session, kernels=kernels)])
    return session.name


def test_a_reader_who_leaves_a_silent_log_leaves_nothing_behind(service, secret_of, engine, lab):
    with brokered_server(service.service) as server:
        request = [lab, None, LogRequest(follow=True, app="board")]
        connection, _, _ = server.line.open("open.log", token(secret_of("ada")), request)
        eventually(lambda: any(path.endswith("/exec/e1/start") for path in engine.paths))
        assert brokers_connections()
        connection.close()
        assert engine.left.wait(PATIENCE_S)
        eventually(brokers_connections, lambda open_: not open_)


def brokers_connections() -> list[threading.Thread]:
    """Return the broker's threads, one for each connection of the server's that it has."""
    return [thread for thread in threading.enumerate() if thread.name == "broker"]


def test_the_token_of_an_app_that_main1_does_not_give_is_waited_for_no_longer_than_a_time(
    caller, engine, lab, monkeypatch
):
    monkeypatch.setattr(app_tunnel, "_TOKEN_TIMEOUT_S", 0.1)
    answer = caller("ada").get(f"/api/v1/sessions/{lab}/apps/board")
    assert (answer.status_code, answer.json()["detail"]) == (
        409,
        "the token of app board cannot be read in main1 of lab",
    )
    # Nothing is left waiting.
    assert engine.left.wait(PATIENCE_S)


def test_an_app_whose_token_main1_gives_has_it_in_its_url(caller, engine, lab):
    engine.silent = set()
    engine.bodies |= {"/exec/e1/json": b'{"ExitCode": 0}'}
    engine.spoken = {"/exec/e1/start": frame(2, b"oh\n") + frame(1, b"muster-") + frame(1, b"token\n")}
    answer = caller("ada").get(f"/api/v1/sessions/{lab}/apps/board")
    assert (answer.status_code, answer.json()["url"]) == (200, "/?token=muster-token")


def frame(stream: int, content: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(content).to_bytes(4) + content


def test_tokens_that_nobody_gives_keep_few_requests_waiting_and_none_of_others(caller, lab, service, monkeypatch):
    began, may_answer = threading.Semaphore(0), threading.Event()

    def output_of(*_program: object, **_limits: object) -> bytes:
        began.release()
        assert may_answer.wait(PATIENCE_S)
        return b"token\n"

    @contextmanager
    def container_of(*_kernel: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(app_tunnel, "output_of", output_of)
    monkeypatch.setattr(app_tunnel, "container_of", container_of)
    bobs = placed_on(make_session(2, name="of-bob", owner="bob", apps=[APP]), "a1")
    service.store.add([bobs])
    ada, bob = caller("ada"), caller("bob")
    statuses = []

    def opens(client: TestClient, name: str) -> None:
        statuses.append(client.get(f"/api/v1/sessions/{name}/apps/board").status_code)

    threads = [threading.Thread(target=opens, args=one) for one in ((ada, lab),) * 4]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert began.acquire(timeout=PATIENCE_S)
    refused = ada.get(f"/api/v1/sessions/{lab}/apps/board")
    assert refused.status_code == 409
    assert refused.json()["detail"] == "too many tokens of apps of yours are read; try again in a minute"
    threads.append(threading.Thread(target=opens, args=(bob, bobs.name)))
    threads[-1].start()
    assert began.acquire(timeout=PATIENCE_S)
    may_answer.set()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 5
