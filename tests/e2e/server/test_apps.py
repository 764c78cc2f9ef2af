"""Apps in main1: started with it, guarded by a token, opened through a tunnel, and nowhere else."""

import json
import shlex
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import docker
import pytest

from tests.control_node import SMALL, ControlNode
from tests.servers.opened_app import get, opened

# A site-defined app. It serves its user's name to requests with its token, and its health to all.
GUARDED = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/health" or self.path.endswith("token=" + os.environ["MUSTER_APP_TOKEN"])
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(os.popen("hostname; whoami").read().encode() if known else b"no")
print("it serves", flush=True)
http.server.HTTPServer(("127.0.0.1", int(os.environ["MUSTER_APP_PORT"])), Handler).serve_forever()
"""
APPS = {
    "guarded": {
        "command": f"exec python3 -c {shlex.quote(GUARDED)}",
        "port": 18080,
        "health": "/health",
        "url": "/?token={token}",
        "token": True,
    }
}
SERVE = "mkdir -p www && echo mine >www/index.html && exec python3 -m http.server -d www 18081"
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 18083), float(sys.argv[2]))"
UNTIL_S = 120


@pytest.fixture(scope="module")
def apps_node(new_node) -> ControlNode:
    """Return a control node whose queue is worked by hand. Each pass probes the apps."""
    return new_node(apps=APPS)


@pytest.fixture(scope="module")
def lab(apps_node) -> str:
    """Start a session with apps: a serving one, a missing one, one that ends, another kernel's, one on a free port."""
    spec = {
        "cluster_size": 2,
        "apps": [
            "guarded",
            "ttyd",
            {"name": "broken", "port": 18082, "command": "echo it is broken >&2; exit 3"},
            {"name": "open", "port": 18083, "command": 'exec python3 -m http.server "$MUSTER_APP_PORT"'},
        ],
        "publish": ["web=18081"],
    }
    file = apps_node.directory / "lab.yml"
    file.write_text(json.dumps(spec))
    apps_node.submit("--cpu", "0.3", "--mem", "128M", "--shm", "16M", "--name", "lab", "-f", str(file))
    apps_node.run("pass")
    return apps_node.reaches("lab", "RUNNING")["name"]


def until(node: ControlNode, session: str, states: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the session's apps once they are in these states."""
    deadline = time.monotonic() + UNTIL_S
    while True:
        apps = {app["name"]: app for app in node.show(session)["apps"]}
        if states.items() <= {name: app["state"] for name, app in apps.items()}.items():
            return apps
        assert time.monotonic() < deadline, apps
        node.run("pass")


def test_an_app_runs_in_main1_alone_and_show_tells_how_it_fares(apps_node, lab):
    states = {"guarded": "healthy", "ttyd": "missing", "broken": "unhealthy", "open": "healthy"}
    apps = until(apps_node, lab, states)
    assert "not found" in apps["ttyd"]["reason"]
    assert apps["broken"]["reason"] == "it ended with exit code 3: it is broken"
    assert apps_node.show(lab)["state"] == "RUNNING"
    shown = apps_node.run("show", lab).out
    assert f"Open one with `muster open {lab} APP`." in shown
    counts = {
        kernel: int(apps_node.exec(f"{lab}:{kernel}", "sh", "-c", "ps ax | grep -c '[d]o_GET'", check=False).out)
        for kernel in ("main1", "sub1")
    }
    assert counts["main1"] >= 1
    assert counts["sub1"] == 0
    assert "app-" not in apps_node.exec(f"{lab}:sub1", "ls", "/run/muster").out
    assert apps_node.run("logs", lab, "--app", "guarded").out.startswith("it serves\n")
    assert "it serves" not in apps_node.run("logs", lab).out


def test_open_makes_a_tunnel_and_prints_the_url_with_the_token(apps_node, lab):
    until(apps_node, lab, {"guarded": "healthy"})
    with opened(apps_node, lab, "guarded") as url:
        assert url.startswith("http://127.0.0.1:18080/?token=")
        assert get(url) == (200, "main1\nwork\n")
        assert get(url[:-1]) == (403, "")
        taken = apps_node.run("open", lab, "guarded", "--port", "18080", check=False)
        assert (taken.code, taken.err) == (
            2,
            "muster: --port: port 18080 is in use on this machine; choose another, or leave it out\n",
        )
        with opened(apps_node, lab, "guarded") as second:
            assert second.rpartition("?")[2] == url.rpartition("?")[2]
            assert get(second)[0] == 200
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_the_token_is_only_in_main1(apps_node, lab):
    token = apps_node.run("open", lab, "guarded", "--print", "--json").json()["url"].rpartition("=")[2]
    assert len(token) == 48
    container = apps_node.show(lab)["kernels"][0]["container_id"]
    assert token not in json.dumps(docker.from_env().api.inspect_container(container))
    assert token.encode() not in (apps_node.directory / "state" / "muster.db").read_bytes()
    assert token not in apps_node.run("show", lab, "--json").out
    commands = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert token not in commands


def test_a_published_port_is_opened_once_its_program_serves(apps_node, lab):
    serving = threading.Thread(target=apps_node.exec, args=(lab, "sh", "-c", SERVE), kwargs={"check": False})
    serving.start()
    until(apps_node, lab, {"web": "healthy"})
    with opened(apps_node, lab, "web", "--port", str(free_port())) as url:
        assert get(url) == (200, "mine\n")
    apps_node.exec(lab, "pkill", "-f", "[w]ww 18081")
    serving.join(60)
    until(apps_node, lab, {"web": "starting"})


def test_the_printed_command_is_for_another_machine(apps_node, lab):
    command, url = apps_node.run("open", lab, "guarded", "--port", "1234", "--print").out.splitlines()
    assert command.startswith("ssh -N -L 127.0.0.1:1234:127.0.0.1:18080 -p ")
    assert url.startswith("http://127.0.0.1:1234/?token=")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nope",), "session lab has no app 'nope'; it has guarded, ttyd, broken, open, web"),
        ((), "session lab has several apps; name one of guarded, ttyd, broken, open, web"),
    ],
)
def test_an_unknown_app_is_refused_with_the_names_of_the_known_ones(apps_node, lab, arguments, line):
    done = apps_node.run("open", lab, *arguments, check=False)
    assert (done.code, done.err) == (2, f"muster: {line}\n")


def test_a_missing_app_cannot_be_opened(apps_node, lab):
    until(apps_node, lab, {"ttyd": "missing"})
    done = apps_node.run("open", lab, "ttyd", check=False)
    assert done.code == 1
    assert done.err.startswith("muster: app ttyd of session lab is missing: ")


def test_apps_of_a_batch_session_end_with_its_command_and_no_other_sessions_reach_them(apps_node, lab):
    until(apps_node, lab, {"open": "healthy"})
    address = apps_node.show(lab)["kernels"][0]["address"]
    apps_node.exec(f"{lab}:sub1", "python3", "-c", REACH, "main1", "60")
    until_it_serves = "until wget -q -O /dev/null http://127.0.0.1:18080/health 2>/dev/null; do sleep 0.2; done"
    strangers = f"python3 -c {shlex.quote(REACH)} {address} 3 2>/dev/null && echo reached || echo refused"
    command = f"{until_it_serves}; echo it was there; {strangers}"
    name = apps_node.submit(*SMALL, "--app", "guarded", "-c", command)
    deadline = time.monotonic() + UNTIL_S
    while (session := apps_node.show(name))["state"] != "TERMINATED":
        assert time.monotonic() < deadline, session
        apps_node.run("pass")
    assert (session["result"], apps_node.run("logs", name).out) == ("SUCCESS", "it was there\nrefused\n")
    assert [(app["name"], app["state"]) for app in session["apps"]] == [("guarded", None)]
    done = apps_node.run("open", name, check=False)
    assert (done.code, done.err) == (
        1,
        f"muster: session {name} is TERMINATED; apps can be opened of sessions that are RUNNING\n",
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
