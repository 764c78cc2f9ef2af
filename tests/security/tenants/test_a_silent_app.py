"""A tenant's app that says nothing: who follows its log and leaves costs the server nothing from then on.

The broker has so many connections, and no more. Who follows a log that is silent, again and again, would use them up.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from muster.core.spec.apps import AppSpec
from muster.engine import agent_engine
from muster.engine.tunnel import EngineTunnel
from muster.service.reach.logs import LogRequest
from tests.hostile.odd_engine import OddEngine, odd_engine
from tests.security.clients.taken_over_server import brokered_server, token
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.unit.web.conftest import ServedNode
from tests.waiting import PATIENCE_S, eventually


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
    service.store.save_agents([make_agent("a1", inventory={"connection": "local"})])
    app = AppSpec(name="board", command="serve", port=6006)
    session = placed_on(make_session(1, name="lab", apps=[app]), "a1")
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
