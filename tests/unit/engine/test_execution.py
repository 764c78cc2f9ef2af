"""Programs in kernels, as an engine starts them: their output is whole, and may come late."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from muster.engine import agent_engine
from muster.engine.agent_engine import container_of
from muster.engine.execution import ContainerPrograms, Execution
from muster.engine.tunnel import EngineTunnel
from tests.hostile.odd_engine import OddEngine, odd_engine
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.waiting import eventually

AGENT = make_agent("a1", inventory={"connection": "local"})
KERNEL = replace(make_session(1).kernels[0], container_id="c1")
START = "/exec/e1/start"


@pytest.fixture
def engine(tmp_path, monkeypatch) -> Iterator[OddEngine]:
    with odd_engine(tmp_path) as server:
        monkeypatch.setattr(agent_engine, "_LOCAL_ENGINE", EngineTunnel(f"unix://{server.path}", str))
        server.bodies = {"/containers/c1/json": b'{"Id": "c1"}', "/exec": b'{"Id": "e1"}'}
        server.spoken = {START: b""}
        yield server


@contextmanager
def started() -> Iterator[Execution]:
    with container_of(AGENT, KERNEL) as container, ContainerPrograms(container).start(["any"]) as program:
        yield program


@pytest.mark.parametrize("size", [0, 1, 100, 5000, 1 << 20])
def test_output_that_comes_with_the_answers_head_is_not_lost(engine, size):
    said = (bytes(range(256)) * (size // 256 + 1))[:size]
    engine.spoken = {START: said}
    with started() as program, program.connection.makefile("rb") as output:
        assert output.read() == said


@pytest.mark.parametrize("said", [b"", b"at once"])
def test_a_program_may_be_silent_for_any_time(engine, said):
    engine.spoken = {START: said}
    with started() as program:
        assert program.connection.gettimeout() is None


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("said", [b"", b"at once"])
def test_nothing_of_a_program_stays_open_once_it_is_left(engine, said):
    engine.spoken = {START: said}
    before = open_files()
    with started():
        pass
    # The engine closes its own ends in its own time.
    eventually(open_files, lambda now: not now - before)
    # An answer whose stream was closed below it cannot close itself: from 3.13 on, Python says so of what is garbage.
    gc.collect()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def open_files() -> Counter[str]:
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the directory's own, which was read
            found[str(descriptor.readlink())] += 1
    return found
