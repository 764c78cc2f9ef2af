"""Changes of running sessions: renames, restarts, and the deliveries about them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import docker
import pytest

from tests.control_node import SMALL, ControlNode

# One write for each message: those of two sessions may come at once.
HOOK = """#!/bin/sh
message=$(cat)
printf '%s\\n' "$message" >> {directory}/received
"""


class Listener:
    """A web server that keeps what it is sent; it answers `refuses` requests with 503 first."""

    def __init__(self, refuses: int = 0) -> None:
        listener = self
        self.received: list[dict[str, Any]] = []
        self.refuses = refuses
        self.changed = threading.Condition()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with listener.changed:
                    refused = listener.refuses > 0
                    listener.refuses -= refused
                    if not refused:
                        listener.received.append(body)
                    listener.changed.notify_all()
                self.send_response(503 if refused else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/told"

    def states(self, *, until: str) -> list[object]:
        with self.changed:
            assert self.changed.wait_for(lambda: any(m["to"] == until for m in self.received), 60), self.received
            return [message["to"] for message in self.received]


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    listening = Listener(refuses=1)
    yield listening
    listening.server.shutdown()
    listening.server.server_close()


@pytest.fixture(scope="module")
def hooked(new_node, tmp_path_factory) -> ControlNode:
    hooks = tmp_path_factory.mktemp("hooks")
    node = new_node(hooks_dir=str(hooks), callback_hosts=["127.0.0.1"])
    (hooks / "note").write_text(HOOK.format(directory=node.directory))
    (hooks / "note").chmod(0o755)
    node.start_daemon()
    return node


@pytest.fixture(scope="module")
def pair(hooked, listener) -> str:
    """Return a gang of two with a callback."""
    return hooked.start("--name", "pair", "--cluster-size", "2", "--callback", listener.url)


def containers(node: ControlNode) -> dict[str, str]:
    found = docker.from_env().containers.list(filters={"label": f"muster.cluster={node.cluster}"})
    return {container.labels["muster.kernel-name"]: container.id for container in found}


def test_a_restart_brings_fresh_containers_of_the_same_kernels_at_the_same_place(hooked, pair):
    before, first = hooked.show(pair), containers(hooked)
    hooked.exec(pair, "touch", "/tmp/mine")
    done = hooked.run("restart", pair, "--wait", "--json")
    after = done.json()[0]
    assert (after["state"], after["id"]) == ("RUNNING", before["id"])
    same = [[(kernel["id"], kernel["agent"]) for kernel in shown["kernels"]] for shown in (before, after)]
    assert same[0] == same[1]
    second = containers(hooked)
    assert set(second) == {"main1", "sub1"}
    assert not set(first.values()) & set(second.values())
    assert hooked.exec(pair, "test", "-e", "/tmp/mine", check=False).code == 1
    assert hooked.exec(pair, "ssh", "sub1", "hostname").out == "sub1\n"


def test_a_renamed_session_is_found_by_its_new_name_alone(hooked, pair):
    session_id = hooked.show(pair)["id"]
    hooked.run("rename", pair, "duo")
    assert hooked.show("duo")["id"] == session_id
    assert hooked.run("show", "pair", check=False).code == 2
    other = hooked.submit(*SMALL, "--name", "other", "--hold")
    taken = hooked.run("rename", other, "duo", check=False)
    assert (taken.code, "already called duo" in taken.err) == (2, True)
    assert hooked.run("rename", other, "a b", check=False).code == 2
    assert hooked.run("restart", other, check=False).code == 1
    hooked.run("rename", "duo", pair)


def test_a_session_that_waits_starts_as_it_was_updated(hooked):
    sweep = hooked.submit(*SMALL, "--name", "sweep", "--cpu", "10000", "--env", "LR=1", "-c", "exit 3")
    updated = hooked.run(
        "update", sweep, "--cpu", "0.1", "--env", "LR=0.1", "--cluster-size", "2", "--", "echo $LR"
    ).out
    assert updated == "sweep: command; cluster_size none → 2; cpu 10000 → 0.1; env LR\n"
    hooked.run("wait", sweep, timeout=120)
    shown = hooked.show(sweep)
    assert (shown["result"], [kernel["name"] for kernel in shown["kernels"]]) == ("SUCCESS", ["main1", "sub1"])
    assert hooked.run("logs", sweep).out == "0.1\n"
    assert hooked.run("update", sweep, "--cpu", "1", check=False).code == 1


def test_callback_and_hook_get_every_change_in_order(hooked, pair, listener):
    hooked.run("terminate", pair, "--wait")
    story = [line for line in hooked.show(pair)["story"] if line["from"] != line["to"]]
    states = [line["to"] for line in story]
    assert states.count("RUNNING") == 2
    assert listener.states(until="TERMINATED") == states
    numbers = [message["number"] for message in listener.received]
    assert numbers == sorted(set(numbers))
    first = listener.received[0]
    assert (first["session"], first["id"], first["from"], first["to"]) == (
        pair,
        hooked.show(pair)["id"],
        None,
        "PENDING",
    )
    # The story says once that it was refused.
    notes = [line["reason"] for line in hooked.show(pair)["story"] if "callback failed" in line["reason"]]
    assert notes == ["callback failed: 127.0.0.1 answered with status 503"]
    received = [json.loads(line) for line in (hooked.directory / "received").read_text().splitlines()]
    assert [message["to"] for message in received if message["id"] == first["id"]] == states
