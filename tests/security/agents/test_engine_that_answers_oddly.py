"""A tenant's image name, or an image's file, makes the engine answer an agent's request wrongly.

The engine here is a server on a socket that says what a test wants; what asks is the agents' own client.
"""

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.odd_engine import OddEngine, odd_engine
from tests.modules.agent_code import engine_api

EngineError = engine_api.EngineError


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OddEngine]:
    with odd_engine(tmp_path) as server:
        yield server


@pytest.fixture
def engine(server: OddEngine) -> engine_api.EngineApi:
    return engine_api.EngineApi(server.path)


@pytest.mark.parametrize(
    "name",
    [
        "@/../../containers/json?all=1",
        "../containers/x",
        "a/../../containers/x",
        "a//b",
        "a/./b",
        "a/..",
        "..",
        "",
        "a b",
        "a?b",
        "a%2fb",
        "a\r\nHost: x",
        "a#b",
        "a@b/../c",
    ],
)
def test_a_name_that_is_no_images_never_reaches_the_engine(engine, server, name):
    with pytest.raises(EngineError) as refused:
        engine.image(name)
    assert refused.value.status == 404
    assert server.paths == []


@pytest.mark.parametrize(
    "name",
    [
        *("busybox", "muster/default:latest", "registry.example:5000/team/Image_1:v1.0", "a__b/c-d:1"),
        *(f"sha256:{'a' * 64}", f"lab/train@sha256:{'a' * 64}", f"lab/train:2@sha256:{'a' * 64}", "modtest-busybox:12"),
    ],
)
def test_a_name_that_is_one_does(engine, server, name):
    assert engine.image(name) == {}
    assert server.paths == [f"/v1.41/images/{name}/json"]


@pytest.mark.parametrize("status", [301, 302, 304, 100 + 199, 400, 404, 500])
def test_any_answer_but_success_is_an_error_of_the_request(engine, server, status):
    server.status, server.headers, server.body = status, {"Location": "/v1.41/containers/json"}, b"<html>moved</html>"
    with pytest.raises(EngineError) as refused:
        engine.image("busybox")
    assert refused.value.status == status
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff", b"[" * 100_000, b'{"Id": '])
def test_an_answer_that_is_no_json_is_an_error_of_the_request(engine, server, body):
    server.body = body
    with pytest.raises(EngineError) as refused:
        engine.image("busybox")
    assert str(refused.value) == "it answers /images/busybox/json with something that is no JSON"


def test_an_error_without_end_is_read_no_further_than_a_line_is_long(engine, server):
    server.status, server.body = 500, b"x" * (32 << 20)
    with pytest.raises(EngineError) as refused:
        engine.image("busybox")
    assert len(str(refused.value)) <= 64 << 10


def stat(size: int = 5, link: str = "") -> dict[str, str]:
    said = json.dumps({"name": "passwd", "size": size, "mode": 0o644, "linkTarget": link})
    return {"X-Docker-Container-Path-Stat": base64.b64encode(said.encode()).decode()}


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member, content in members:
            member.size = member.size or len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_a_file_is_read(engine, server):
    server.headers, server.body = stat(), archive((tarfile.TarInfo("passwd"), b"root:"))
    assert engine.read_file("c1", "/etc/passwd") == b"root:"


def test_a_file_that_fills_roots_memory_is_not_read(engine, server):
    server.headers = stat(link="/etc/huge")
    server.body = archive((tarfile.TarInfo("passwd"), bytes(64 << 20)))
    with pytest.raises(EngineError) as refused:
        engine.read_file("c1", "/etc/passwd")
    assert (refused.value.status, str(refused.value)) == (400, "/etc/passwd of the image is larger than 4 MiB")


def test_a_sparse_file_that_claims_to_be_huge_is_not_read(engine, server):
    sparse = tarfile.TarInfo("passwd")
    sparse.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 40),
                          "GNU.sparse.map": f"0,0,{1 << 40},0", "GNU.sparse.numblocks": "2"}  # fmt: skip
    server.headers, server.body = stat(), archive((sparse, b""))
    with pytest.raises(EngineError):
        engine.read_file("c1", "/etc/passwd")


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_member_that_is_no_file_reads_as_missing(engine, server, kind):
    member = tarfile.TarInfo("passwd")
    member.type, member.linkname = kind, "passwd"
    server.headers, server.body = stat(), archive((member, b""))
    assert engine.read_file("c1", "/etc/passwd") is None


def test_a_stat_that_says_nothing_is_an_error_of_the_request(engine, server):
    for headers in ({}, {"X-Docker-Container-Path-Stat": "%%%"}, {"X-Docker-Container-Path-Stat": "aGVsbG8="}):
        server.headers = headers
        with pytest.raises(EngineError):
            engine.read_file("c1", "/etc/passwd")
