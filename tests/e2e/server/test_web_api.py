"""The server beside the daemon on a real engine: a program's way, and the command line's from elsewhere."""

from collections.abc import Iterator

import httpx
import pytest

from tests.control_node import ControlNode
from tests.servers.web_server import Server, web_server

SMALL = {"cpu": 0.05, "mem": "64M", "shm": "16M"}


@pytest.fixture(scope="module")
def server(node: ControlNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with web_server(node, tmp_path_factory.mktemp("web")) as made:
        yield made


def test_a_program_submits_watches_reads_and_ends_a_session(server):
    with server.client(server.token("ada")) as ada, ada.stream("GET", "/events") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith(": since ")
        spec = {**SMALL, "name": "by-api", "cluster_size": 2, "command": "echo it runs; sleep 1000"}
        answer = ada.post("/sessions", json=spec, headers={"Idempotency-Key": "once"})
        assert answer.status_code == 201, answer.text
        assert ada.post("/sessions", json=spec, headers={"Idempotency-Key": "once"}).json()["again"] is True
        states = []
        for line in lines:
            if line.startswith("data: "):
                states.append(httpx.Response(200, text=line[6:]).json()["to"])
            if "RUNNING" in states:
                break
        assert states[0] == "PENDING"
        with ada.stream("GET", "/sessions/by-api/kernels/main1/log", params={"follow": True}) as log:
            assert next(log.iter_lines()) == "it runs"
        assert ada.get("/sessions/by-api/kernels/sub1/log").status_code == 200
        with server.client(server.token("eve")) as eve:
            for path in ("", "/why", "/kernels/main1/log"):
                assert eve.get(f"/sessions/by-api{path}").status_code == 404
            assert eve.delete("/sessions/by-api").status_code == 404
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'muster_sessions{state="RUNNING"}' in metrics
        assert "muster_pass_duration_seconds_count" in metrics
        assert ada.delete("/sessions/by-api").json()["items"][0]["state"] == "TERMINATING"
        assert server.node.reaches("by-api", "TERMINATED")["owner"] == "ada"


def test_the_command_line_works_from_a_machine_that_is_no_control_node(server):
    token = server.token("bob", name="bob-laptop")
    small = ("--cpu", "0.05", "--mem", "64M", "--shm", "16M")
    done = server.remote(token, "submit", *small, "--name", "from-afar", "--wait", "--command", "echo hello; exit 3")
    assert done.code == 3, done.err
    assert server.remote(token, "logs", "from-afar").out == "hello\n"
    shown = server.remote(token, "show", "from-afar", "--json").json()
    assert (shown["owner"], shown["result"], shown["exit_code"]) == ("bob", "FAILURE", 3)
    assert shown == server.node.show("from-afar")
    assert [agent["state"] for agent in server.remote(token, "agents", "--json").json()] == ["ALIVE"]
    refused = server.remote(token, "pass")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    server.node.run("token", "revoke", "bob-laptop")
    assert server.remote(token, "ls").code == 1
