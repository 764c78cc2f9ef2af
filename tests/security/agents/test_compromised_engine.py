"""A compromised agent's Docker engine answers the control node's SDK with what no engine does.

Its socket is the attacker's server: the SDK that asks is the real one.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.engine import agent_engine
from muster.engine.agent_engine import engine_of, watch_deaths
from muster.engine.commit import CommittedAs, commit
from muster.engine.container_usage import container_usages
from muster.engine.images import pull
from muster.engine.tunnel import EngineTunnel
from tests.hostile.image_archives import archive
from tests.hostile.odd_engine import OddEngine, odd_engine
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session
from tests.strategies.values import new_id

AGENT = make_agent("a1", inventory={"connection": "local"})
STATS = {
    "memory_stats": {"usage": 5, "limit": 10},
    "cpu_stats": {"system_cpu_usage": 20, "cpu_usage": {"total_usage": 2}},
    "precpu_stats": {"system_cpu_usage": 10, "cpu_usage": {"total_usage": 1}},
    "pids_stats": {"current": 1},
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OddEngine]:
    with odd_engine(tmp_path) as server:
        monkeypatch.setattr(agent_engine, "_LOCAL_ENGINE", EngineTunnel(f"unix://{server.path}", str))
        yield server


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in STATS.items() if key != name}


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b"null",
        b"<html>",
        b"[" * 100_000,
        *(json.dumps(without(name)).encode() for name in STATS),
        json.dumps({**STATS, "memory_stats": {"usage": "\x1b[2J"}}).encode(),
        json.dumps({**STATS, "pids_stats": {"current": 10**30}}).encode(),
        json.dumps({**STATS, "networks": {"eth0": {"rx_bytes": -1, "tx_bytes": {}}}}).encode(),
    ],
)
def test_numbers_that_are_none_are_that_agents_problem(engine, said):
    engine.body = said
    with engine_of(AGENT) as client, pytest.raises(AgentUnreachableError) as refused:
        container_usages(AGENT, client, ["c1"])
    assert str(refused.value).startswith("agent a1: ")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "said",
    [
        b"[]",
        b'"x"',
        b'{"error": {"x": "\\u0000"}}',
        b'{"error": "\\u001b[2J\\u0000 denied"}',
        b'{"status": "Downloading", "id": {"x": 1}, "progressDetail": {"total": "x", "current": {}}}',
        b'{"status": "Downloading", "id": "l", "progressDetail": {"total": 5}}',
        b"[" * 100_000,
    ],
)
def test_a_pull_that_tells_nonsense_is_an_error_of_that_image(engine, said):
    engine.body = said
    with pytest.raises(ImageError) as refused:
        pull(AGENT, "lab/train:2", lambda _done, _total: None)
    assert str(refused.value).startswith("image lab/train:2 cannot be pulled on agent a1: ")
    assert str(refused.value).isprintable()


LAYER = "5" * 64
MANIFEST = json.dumps({"config": {"digest": "sha256:" + "4" * 64}, "layers": [{"digest": f"sha256:{LAYER}"}]}).encode()
CONTAINERDS = [["driver-type", "io.containerd.snapshotter.v1"]]
TOO_MUCH = "the agent's engine sends more than the image can have"
UNREADABLE = "the agent's engine keeps images in a way from which they cannot be committed"


@pytest.mark.parametrize(
    ("status", "files", "problem"),
    [
        ([], {"layer.tar": bytes(20 << 20)}, TOO_MUCH),
        ([], {"layer.tar": b"another"}, UNREADABLE),
        (CONTAINERDS, {}, UNREADABLE),
        (CONTAINERDS, {"1" * 64: MANIFEST}, UNREADABLE),
        (CONTAINERDS, {"1" * 64: MANIFEST, LAYER: gzip.compress(bytes(20 << 20))}, TOO_MUCH),
        (CONTAINERDS, {"1" * 64: MANIFEST, LAYER: gzip.compress(b"x" * 1000)[:-10]}, UNREADABLE),
        (CONTAINERDS, {"1" * 64: MANIFEST, LAYER: b"\x1f\x8b" + bytes(1000)}, UNREADABLE),
    ],
)
def test_a_commits_archive_of_anything_is_one_error_and_fills_no_disk(engine, tmp_path, status, files, problem):
    raw, container = "sha256:" + "1" * 64, {"Id": "c1", "Image": "sha256:" + "2" * 64, "Mounts": []}
    image = {"Id": raw, "Size": 10, "Config": {}, "RootFS": {"Layers": ["sha256:" + "3" * 64]}}
    engine.bodies = {
        "/containers/json": json.dumps([{"SizeRootFs": 10}]).encode(),
        "/containers/c1/json": json.dumps(container).encode(),
        "/images/json": b"[]",
        "/info": json.dumps({"DriverStatus": status}).encode(),
        "/commit": json.dumps({"Id": raw}).encode(),
        "/get": archive(files),
    }
    engine.body = json.dumps(image).encode()
    kernel = replace(make_session(1).kernels[0], container_id="c1")
    new = CommittedAs("lab/train:2", "ann", "", 0.0)
    with pytest.raises(ImageError) as refused:
        commit(AGENT, kernel, new, 1 << 20, tmp_path, lambda _done, _total: None)
    assert str(refused.value) == problem
    assert any(path.partition("?")[0].endswith(f"/images/{raw}") for path in engine.paths)


def test_a_commit_whose_answers_are_nonsense_is_an_error_of_that_agent(engine, tmp_path):
    engine.bodies = {"/containers/c1/json": b'{"Id": "c1"}', "/containers/json": b'[{"SizeRootFs": 10}]'}
    engine.body = b'{"Id": {}}'
    kernel = replace(make_session(1).kernels[0], container_id="c1")
    with pytest.raises(AgentUnreachableError, match="agent a1: its answer is no Docker engine's "):
        commit(AGENT, kernel, CommittedAs("lab/train:2", "ann", "", 0.0), 1 << 20, tmp_path, lambda _done, _total: None)


def test_only_ids_of_sessions_are_taken_of_its_events(engine):
    events = [
        {},
        {"Actor": None},
        {"Actor": {"Attributes": {"muster.session": ["x"]}}},
        {"Actor": {"Attributes": {"muster.session": "\x00"}}},
        {"Actor": {"Attributes": {"muster.session": "' or 1=1"}}},
        {"Actor": {"Attributes": {"muster.session": new_id(1)}}},
    ]
    engine.body = b"".join(json.dumps(event).encode() for event in events)
    died: list[str] = []
    with pytest.raises(AgentUnreachableError):
        watch_deaths(AGENT, "muster", died.append)
    assert died == [new_id(1)]


def test_its_own_words_bring_nothing_to_a_terminal_or_a_database():
    error = docker.errors.APIError("no", explanation="\x1b[2J\x00 gone\u202e " + "x" * 1_000_000)
    said = agent_engine.cause(error)
    assert said.isprintable()
    assert len(said) <= 2_000
