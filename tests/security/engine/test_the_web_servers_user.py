"""Somebody who took over the web server: what its process may do on the control node, whose root started it."""

import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.control_node import SMALL, ControlNode
from tests.modules.agent_code import ROOT
from tests.running.forked_cli import ForkedMuster
from tests.servers.certificate import make_certificate
from tests.servers.web_server import Server, web_server

# What it tries in the server's place; each line of its answer is a deed and what came of it.
PROBE = """
import ctypes, json, os, pwd, signal, socket, subprocess, sys
from pathlib import Path
from muster.web.separation import landlock
from muster.web.separation.confinement import give_up_rights

state, port = Path(sys.argv[1]), int(sys.argv[2])
secret = os.environ["DATABASE_PASSWORD"]
give_up_rights(pwd.getpwnam("nobody"))

def connected(family, address):
    with socket.socket(family) as one:
        one.connect(address)

deeds = {
    "read the secrets' key": lambda: (state / "secrets.key").read_bytes(),
    "read the ssh key": lambda: (state / "id_ed25519").read_bytes(),
    "read the database": lambda: (state / "muster.db").read_bytes(),
    "read the audit log": lambda: (state / "audit.log").read_bytes(),
    "add to the audit log": lambda: (state / "audit.log").open("a"),
    "list the state directory": lambda: os.listdir(state),
    "read the settings": lambda: (state.parent / "muster.yml").read_bytes(),
    "read root's keys": lambda: os.listdir("/root/.ssh"),
    "speak to the engine": lambda: connected(socket.AF_UNIX, "/var/run/docker.sock"),
    "become root": lambda: os.setuid(0),
    "take a group": lambda: os.setgroups([0]),
    "end the broker": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "read the broker": lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1),
    "read what was in its environment": lambda: os.environ["DATABASE_PASSWORD"],
}
with_landlock = {
    1: {
        "start a program": lambda: subprocess.run(["/bin/true"], check=True),
        "look around": lambda: os.listdir("/var/lib"),
        "leave a file in shared memory": lambda: open("/dev/shm/muster-web-was-here", "w"),
    },
    4: {"connect to a port": lambda: connected(socket.AF_INET, ("127.0.0.1", port))},
    6: {"end another process of its user": lambda: os.kill(int(sys.argv[3]), signal.SIGTERM)},
}
for version, more in with_landlock.items():
    if landlock._version() >= version:
        deeds |= more
came_of_it = {}
for name, deed in deeds.items():
    try:
        deed()
        came_of_it[name] = "done"
    except (OSError, KeyError) as error:
        came_of_it[name] = type(error).__name__
print(json.dumps(came_of_it))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ControlNode]:
    """Makes a control node with keys, a database and an audit log, in directories that everybody may enter."""
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    made = ControlNode(tmp_path / "node", "e2e-webuser")
    made.config.chmod(0o640)
    made.run("token", "create", "first", "--user", "ada", "--quiet")
    made.run("secret", "set", "key", stdin="hush")
    # The first submit makes the ssh key.
    made.submit(*SMALL, "--hold", "--command", "true")
    yield made
    made.remove_traces()


@pytest.fixture
def server(node: ControlNode, tmp_path: Path) -> Iterator[Server]:
    with web_server(node, tmp_path) as made:
        yield made


def status_of(process: int) -> dict[str, str]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def servers_process(directory: Path) -> int:
    """Return the number that the broker logs."""
    (line,) = [line for line in (directory / "web.log").read_text().splitlines() if "the web server is process" in line]
    return int(line.partition("process ")[2].partition(",")[0])


def test_nothing_is_open_to_who_took_it_over(node, server):
    # It reads until its end of the pipe is closed, whatever becomes of this test.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user="nobody") as other:
        done = subprocess.run(
            [sys.executable, "-c", PROBE, node.directory / "state", server.url.rpartition(":")[2], str(other.pid)],
            env={**os.environ, "DATABASE_PASSWORD": "hush", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            check=True,
        )
        assert other.poll() is None
    came_of_it = json.loads(done.stdout)
    assert "become root" in came_of_it
    assert {name: result for name, result in came_of_it.items() if result == "done"} == {}
    assert set(came_of_it.values()) <= {"PermissionError", "KeyError"}


def test_its_process_has_no_rights(server, tmp_path):
    process = servers_process(tmp_path)
    status = status_of(process)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert "0" not in status["Uid"].split() + status["Gid"].split() + status["Groups"].split()
    assert status["NoNewPrivs"] == "1"
    # Root's files: no process of its user reads its memory.
    assert Path(f"/proc/{process}/mem").stat().st_uid == 0
    opened = {str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir()}
    assert [path for path in opened if str(server.node.directory) in path] == []


def test_it_serves_by_tls_with_a_key_that_it_may_not_read(node, tmp_path):
    certificate = make_certificate(tmp_path)
    assert certificate.key.stat().st_mode & 0o077 == 0
    broker = ForkedMuster(("web", "--port", "0", *certificate.options), node.environment, tmp_path / "web.log")
    while "serving at" not in (tmp_path / "web.log").read_text():
        assert broker.poll() is None
    (url,) = re.findall(r"serving at (https://127\.0\.0\.1:\d+)", (tmp_path / "web.log").read_text())
    assert httpx.get(f"{url}/healthz", verify=certificate.trust()).status_code == 200
    broker.terminate()
    assert broker.wait() == 0


def test_the_two_end_together(node, tmp_path):
    with_broker = ForkedMuster(("web", "--port", "0"), node.environment, tmp_path / "web.log")
    while "serving at" not in (tmp_path / "web.log").read_text():
        assert with_broker.poll() is None
    process = servers_process(tmp_path)
    os.kill(process, 9)
    assert with_broker.wait() == 128 + 9


def test_the_server_ends_with_a_broker_that_was_killed(node, tmp_path):
    broker = ForkedMuster(("web", "--port", "0"), node.environment, tmp_path / "web.log")
    while "serving at" not in (tmp_path / "web.log").read_text():
        assert broker.poll() is None
    process = os.pidfd_open(servers_process(tmp_path))
    broker.kill()
    broker.wait()
    # It is readable from its end on.
    assert select.select([process], [], [], 60)[0] == [process]
    os.close(process)


def test_what_it_does_stands_in_the_audit_log(node, tmp_path):
    with web_server(node, tmp_path) as server:
        with server.client(server.token("ada")) as client:
            spec = {"cpu": 1, "mem": "64M", "command": "true", "name": "noted"}
            assert client.post("/sessions", json=spec).status_code == 201
            assert client.delete("/sessions/noted").status_code == 200
        assert httpx.get(f"{server.url}/api/v1/sessions").status_code == 401

    def noted(name: str) -> list[tuple[str | None, int]]:
        lines = [json.loads(line) for line in (node.directory / "state" / name).read_text().splitlines()]
        return [(line["user"], line["status"]) for line in lines if line["source"] == "server"]

    assert noted("audit.log") == [("ada", 201), ("ada", 200)]
    assert noted("audit-strangers.log") == [(None, 401)]
