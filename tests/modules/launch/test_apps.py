"""Apps in main1, on the real engine: started once the gang is released, with health checks from outside."""

import json
import socket
import subprocess
import time
from typing import Any

import pytest

from muster.ansible_gateway.templates import Templates
from muster.contract.report import report_from_agent
from tests.modules.agent_code import app_health
from tests.modules.cluster_on_host import RUNTIME, session

# Busybox' own web server: it serves what lies in /tmp/www.
HTTPD = (
    'mkdir -p /tmp/www; echo $MUSTER_APP_NAME >/tmp/www/name; exec httpd -f -p "127.0.0.1:$MUSTER_APP_PORT" -h /tmp/www'
)
PATIENCE_S = 60


def with_apps(**commands):
    """Return a session of two kernels, main1 with an app of each command. A name gives its port and health path."""
    apps: list[dict[str, Any]] = [
        {"name": name, "port": 8000 + place, "health": "/name", "starts": command is not None}
        for place, (name, command) in enumerate(commands.items())
    ]
    started = [app for app in apps if app["starts"]]
    words = [f"{app['name']} {app['port']}" for app in started]
    entry = session(kernels=("main1", "sub1"))
    files = {app["name"]: {"content": commands[app["name"]] + "\n", "mode": "0400"} for app in started}
    entry["kernels"][0]["apps"] = apps
    entry["kernels"][0]["files"] = {
        **entry["kernels"][0]["files"],
        **{f"app-{name}": content for name, content in files.items()},
        "app-serves.token": {"content": "a-token", "mode": "0400"},
        "apps": {"content": Templates().render("apps", {"apps": words, "runtime_path": str(RUNTIME)}), "mode": "0444"},
    }
    return entry


def apps_of(report, name="main1"):
    return next(kernel["apps"] for kernel in report["kernels"] if kernel["name"] == name)


def until(cluster, reached):
    """Return main1's apps in the report once the condition holds."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not reached(apps := apps_of(cluster.report())):
        assert time.monotonic() < give_up_at, apps
        time.sleep(0.1)
    return apps


@pytest.fixture
def lab(cluster):
    """Return a session whose apps serve, are missing, end, fail at their health path, or are started by others."""
    entry = with_apps(
        serves=HTTPD,
        lacks="exec no-such-program",
        ends="echo I am broken >&2; exit 3",
        empty='mkdir -p /tmp/none; exec httpd -f -p "$MUSTER_APP_PORT" -h /tmp/none',
        loud="while echo 0123456789012345678901234567890123456789012345678901234567890123456789; do :; done",
        theirs=None,
    )
    result = cluster.converge(entry)
    assert [outcome["outcome"] for outcome in result["sessions"]] == ["released"]
    return entry


def test_the_report_tells_how_each_app_fares(cluster, lab):
    def settled(apps):
        codes = (apps["lacks"]["exit_code"], apps["ends"]["exit_code"])
        return apps["serves"]["healthy"] and None not in codes and "404" in apps["empty"]["problem"]

    apps = until(cluster, settled)
    assert apps["serves"] == {"healthy": True, "exit_code": None, "problem": ""}
    assert apps["lacks"]["exit_code"] == 127
    assert "not found" in apps["lacks"]["problem"]
    assert apps["ends"] == {"healthy": False, "exit_code": 3, "problem": "I am broken"}
    assert apps["empty"]["problem"] == "GET /name is answered with status 404"
    assert apps["theirs"] == {"healthy": False, "exit_code": None, "problem": "nothing answers at its port"}
    assert apps_of(cluster.report(), "sub1") == {}
    assert cluster.converge(lab)["changed"] is False

    # It listens inside main1's own network, which nobody else reaches.
    assert cluster.run_in(lab, "main1", "wget", "-q", "-O", "-", "http://127.0.0.1:8000/name") == "serves"
    main1 = next(entry for container, entry in cluster.containers().items() if container.endswith("main1"))
    (network,) = cluster.engine.container(main1["Id"])["NetworkSettings"]["Networks"].values()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((network["IPAddress"], 8000), timeout=30)
    assert "httpd" not in cluster.run_in(lab, "sub1", "ls", "/run/muster")
    assert "app-serves" not in cluster.run_in(lab, "sub1", "ls", "/run/muster")

    # No token where the engine or the container's list of processes shows it, no log where an image would keep it.
    assert "a-token" not in json.dumps(cluster.engine.container(main1["Id"]))
    assert "a-token" not in cluster.run_in(lab, "main1", f"{RUNTIME}/bin/ps", "-o", "args")
    changed = subprocess.run(["docker", "diff", main1["Id"]], capture_output=True, text=True, check=True).stdout
    assert not [
        line for line in changed.splitlines() if line.startswith(("A /run/muster-apps/", "C /run/muster-apps/"))
    ]

    # However much an app says, its log stays small.
    until(cluster, lambda _: cluster.run_in(lab, "main1", "ls", "/run/muster-apps").count("loud.log") == 2)
    sizes = cluster.run_in(lab, "main1", "sh", "-c", "stat -c %s /run/muster-apps/loud.log*").split()
    assert all(int(size) <= (1 << 20) + 4096 for size in sizes)


def test_the_health_of_an_ended_container_is_not_checked():
    container = {
        "Config": {"Labels": {"muster.apps": '[{"name": "a", "port": 1, "health": null, "starts": false}]'}},
        "State": {"Status": "exited", "Pid": 0},
    }
    assert app_health.probe_of(container) is None
    assert app_health.probe_of({"Config": {"Labels": {}}, "State": {"Status": "running", "Pid": 1}}) is None


def test_a_link_in_place_of_an_exit_code_leads_to_no_file_of_the_host(cluster):
    entry = with_apps(
        trap="cd /run/muster-apps && rm -f trap.log && ln -s /etc/shadow trap.log && echo 1 >trap.exit; sleep 99"
    )
    cluster.converge(entry)
    apps = until(cluster, lambda apps: apps["trap"]["exit_code"] == 1)
    assert apps["trap"]["problem"] == ""


@pytest.mark.parametrize("text", ["99999999999", "9" * 1000, "\u00b2", "-1"])
def test_what_is_no_exit_code_costs_its_host_no_report(cluster, text):
    """A tenant writes it in the place of one. A host whose report is refused is lost in time, with all its sessions."""
    entry = with_apps(evil=f"printf %s {text} >/run/muster-apps/evil.exit; echo >/tmp/ready; sleep 99", ends="exit 3")
    cluster.converge(entry)
    cluster.run_in(entry, "main1", "sh", "-c", "until [ -e /tmp/ready ]; do sleep 0.1; done")
    apps = until(cluster, lambda apps: apps and apps["ends"]["exit_code"] == 3)
    assert apps["evil"] == {"healthy": False, "exit_code": None, "problem": "nothing answers at its port"}
    report_from_agent(cluster.report())
