"""An agent's modules get along with an engine that has dropped the version of the API that they prefer."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.hostile.odd_engine import odd_engine
from tests.modules.agent_code import engine_api


@pytest.fixture
def server(tmp_path):
    with odd_engine(tmp_path) as server:
        yield server


def test_an_engine_that_has_dropped_the_version_is_asked_by_its_oldest(server):
    # Docker 29.
    server.oldest_version = "1.44"
    server.body = b'{"Id": "c1"}'
    engine = engine_api.EngineApi(server.path)
    assert engine.create_container({"Image": "i"}, "name") == "c1"
    assert engine.container("c1") == {"Id": "c1"}
    assert [path.partition("/containers")[0] for path in server.paths] == ["/v1.44", "/v1.44"]
    assert engine.version == "1.44"


def test_an_engine_that_refuses_before_it_has_read_a_request_is_asked_again(server):
    server.oldest_version, server.body = "1.44", b'{"Id": "n1"}'
    # More than a socket holds, so that the rest of it finds nobody.
    labels = {"large": "x" * (4 << 20)}
    assert engine_api.EngineApi(server.path).create_network({"Labels": labels}) == "n1"


def test_requests_at_once_are_all_answered(server):
    server.oldest_version = "1.44"
    server.body = b"[]"
    engine = engine_api.EngineApi(server.path)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: engine.containers(), range(8))) == [[]] * 8


def test_an_engine_that_has_the_version_is_asked_by_it_at_once(server):
    engine = engine_api.EngineApi(server.path)
    engine.info()
    assert (server.paths, engine.version) == (["/v1.41/info"], "1.41")


@pytest.mark.parametrize("oldest", ["", "1.41", "2", "1.44/../.."])
def test_an_engine_that_names_no_version_of_use_is_named_once(server, oldest):
    server.status, server.body = 400, b'{"message": "client version 1.41 is too old"}'
    server.oldest_version = oldest
    engine = engine_api.EngineApi(server.path)
    with pytest.raises(engine_api.EngineError) as refused:
        engine.info()
    assert str(refused.value).startswith("client version 1.41 is too old")
    assert len(server.paths) <= 1
