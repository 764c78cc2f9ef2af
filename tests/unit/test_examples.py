"""The examples of workflow tools, without a cluster: tests/frameworks runs them on one."""

import importlib.util
import socket
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from muster.client import SessionState

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Muster:
    """A client whose one session runs until it was looked at so often."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def session(self, _: object) -> SimpleNamespace:
        self.looks -= 1
        state = SessionState.RUNNING if self.looks > 0 else SessionState.TERMINATED
        return SimpleNamespace(name="dask", state=state, reason="its command ended")


def served(listening: socket.socket, closed: int) -> None:
    """Close so many connections, as a tunnel does before the scheduler listens; greet on the next one."""
    for _ in range(closed):
        listening.accept()[0].close()
    with listening.accept()[0] as connection:
        connection.sendall(b"greeting")


def test_a_dask_cluster_is_there_when_its_scheduler_answers_through_the_tunnel(monkeypatch):
    dask = example("muster_dask")
    monkeypatch.setattr(dask, "_PAUSE_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        scheduler = threading.Thread(target=served, args=(listening, 2))
        scheduler.start()
        muster = Muster(looks=9)
        dask._wait_for_scheduler(muster, None, listening.getsockname()[1])
        scheduler.join()
    assert muster.looks == 7


def test_a_dask_cluster_whose_session_ends_first_is_an_error(monkeypatch):
    dask = example("muster_dask")
    monkeypatch.setattr(dask, "_PAUSE_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RuntimeError, match="session dask does not run: its command ended"):
        dask._wait_for_scheduler(Muster(looks=3), None, port)


def test_a_map_over_nothing_queues_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", ModuleType("cloudpickle"))
    executor = example("muster_map").Executor(None)
    assert executor.map_array(pow, [], []) == []
