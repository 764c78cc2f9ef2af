"""The teardown's first step on the control node: agents are taken out of scheduling, whatever else is wrong."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hostile.odd_engine import odd_engine
from tests.running.forked_ansible import LOCAL, ROOT, ansible

END = ["--end-sessions", "--wait", "--timeout", "900"]


@pytest.fixture
def torn_down(tmp_path: Path):
    """Takes two agents out of scheduling, of which the control node knows one; returns what it was told."""
    log, muster, play = tmp_path / "log", tmp_path / "muster", tmp_path / "play.yml"
    log.touch()
    plays = yaml.safe_load((ROOT / "playbooks/teardown.yml").read_text(encoding="utf-8"))
    (drains,) = (one for one in plays if one["name"] == "Take the agents out of scheduling")
    drains["become"] = False
    drains["tasks"].append({"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on"}})
    play.write_text(yaml.safe_dump([drains]), encoding="utf-8")

    def run(control: dict[str, Any], *states: str, **variables: Any) -> tuple[list[list[str]], str]:
        sessions = [{"name": f"train-{state}", "state": state} for state in states]
        script = [
            f"#!{sys.executable}",
            "import json, sys",
            f"print(json.dumps(sys.argv[1:]), file=open({str(log)!r}, 'a'))",
            f"print({json.dumps([{'id': 'known', 'sessions': sessions}])!r})",
            "sys.exit(2 * ('unknown' in sys.argv))",
        ]
        muster.write_text("\n".join(script), encoding="utf-8")
        muster.chmod(0o755)
        groups = {
            "agents": {"hosts": {"known": LOCAL, "unknown": LOCAL}},
            "control": {"hosts": {"node": {**control, "control_node_muster_executable": str(muster)}}},
        }
        inventory = tmp_path / "inventory.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": groups}}), encoding="utf-8")
        done = ansible("ansible-playbook", "-i", inventory, "-e", json.dumps(variables), play)
        return sorted(map(json.loads, log.read_text(encoding="utf-8").splitlines())), done.stdout

    return run


def goes_on(said: str) -> bool:
    found = [f"{name} goes on" in said for name in ("known", "unknown")]
    assert found[0] == found[1], said
    return found[0]


def test_an_agent_that_the_control_node_does_not_know_keeps_none_in_scheduling(torn_down):
    drain = ["agent", "drain", "--json", "--reason", "torn down"]
    commands, said = torn_down(LOCAL, "RUNNING", teardown_end_sessions=True)
    ended = ["agent", "drain", "--reason", "torn down", *END, "known"]
    assert commands == sorted([[*drain, "known"], [*drain, "unknown"], ended])
    assert goes_on(said)


def test_agents_are_torn_down_where_the_control_node_is_gone(torn_down):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    commands, said = torn_down(away, teardown_end_sessions=True)
    assert commands == []
    assert goes_on(said)


@pytest.mark.parametrize(("state", "is_refused"), [("PREPARING", True), ("RUNNING", True), ("TERMINATING", False)])
def test_an_agent_on_which_a_session_is_being_launched_is_not_torn_down(torn_down, state, is_refused):
    """Its container was not there yet when the playbook looked for containers."""
    _, said = torn_down(LOCAL, state)
    assert goes_on(said) is not is_refused
    assert (f"known is given train-{state}" in " ".join(said.split())) is is_refused


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_host_leaves_its_swarm_if_the_role_was_run_there(tmp_path: Path, monkeypatch, is_ours):
    """A single agent is in no swarm of Muster's, and may be in one of the site's."""
    docker, mark = tmp_path / "bin/docker", tmp_path / "99-muster.conf"
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/log\n', encoding="utf-8")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    if is_ours:
        mark.touch()
    text = (ROOT / "roles/overlay_network/tasks/teardown.yml").read_text(encoding="utf-8")
    text = text.replace("/etc/sysctl.d/99-muster.conf", str(mark)).replace("/etc/modules-load.d", str(tmp_path))
    swarm = {"LocalNodeState": "active", "NodeID": "n1", "ControlAvailable": True}
    with odd_engine(tmp_path) as engine:
        engine.body = json.dumps({"Swarm": swarm}).encode()
        play = tmp_path / "play.yml"
        tasks = yaml.safe_load(text.replace("/var/run/docker.sock", engine.path))
        play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
        variables = {**LOCAL, "overlay_network_managers": ["host"]}
        done = ansible("ansible-playbook", "-i", "host,", "-e", json.dumps(variables), play)
    assert done.returncode == 0, done.stdout
    log = tmp_path / "log"
    commands = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    assert commands == (["swarm leave --force", "network rm docker_gwbridge"] if is_ours else [])
    assert not mark.exists()
