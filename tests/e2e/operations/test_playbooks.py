"""The same queue by ansible-playbook, and this machine's bootstrap."""

import json
import re

import pytest

from tests.control_node import ControlNode, provision

SESSION = {"name": "by-playbook", "cluster_size": 2, "cpu": 0.05, "mem": "64M", "shm": "16M"}


def changed(out: str) -> int:
    return sum(int(count) for count in re.findall(r"changed=(\d+)", out))


@pytest.fixture(scope="module")
def quiet_node(new_node) -> ControlNode:
    """Return a control node without a daemon: the playbooks work the queue."""
    return new_node()


def test_a_session_is_launched_once_and_ended_once(quiet_node):
    variables = ("-e", json.dumps({"session": SESSION}))
    dry = quiet_node.playbook("launch", *variables, "--check", "--diff")
    assert (dry.code, changed(dry.out) > 0) == (0, True), dry.out
    assert quiet_node.run("ls", "--json").json() == []

    first = quiet_node.playbook("launch", *variables)
    assert first.code == 0, first.out
    assert changed(first.out) > 0
    assert quiet_node.show("by-playbook")["state"] == "RUNNING"
    assert "main1 on localhost" in first.out
    second = quiet_node.playbook("launch", *variables)
    assert (second.code, changed(second.out)) == (0, 0), second.out

    other = quiet_node.playbook("launch", "-e", json.dumps({"session": {**SESSION, "cpu": 0.1}}))
    assert other.code != 0
    assert "cpu is 50m, declared is 100m" in other.out

    ended = quiet_node.playbook("terminate", "-e", "session=by-playbook")
    assert ended.code == 0, ended.out
    assert changed(ended.out) > 0
    assert quiet_node.show("by-playbook")["state"] == "TERMINATED"
    again = quiet_node.playbook("terminate", "-e", "session=by-playbook")
    assert (again.code, changed(again.out)) == (0, 0), again.out


def test_a_session_that_waits_is_launched_as_the_playbook_declares_it(quiet_node):
    name = quiet_node.submit("--cpu", "0.05", "--mem", "64M", "--env", "LR=1", "--name", "waits")
    before = quiet_node.show(name)
    variables = ("-e", json.dumps({"session": {**SESSION, "name": name}}), "--diff")
    dry = quiet_node.playbook("launch", *variables, "--check")
    assert (dry.code, changed(dry.out) > 0) == (0, True), dry.out
    assert re.search(r"-\s+cluster_size: null\n\+\s+cluster_size: 2\n", dry.out), dry.out
    assert quiet_node.show(name) == before
    done = quiet_node.playbook("launch", *variables)
    assert done.code == 0, done.out
    now = quiet_node.show(name)
    assert (now["id"], now["state"], len(now["kernels"]), now["spec"]["env"]) == (before["id"], "RUNNING", 2, {})
    assert changed(quiet_node.playbook("launch", *variables).out) == 0
    quiet_node.run("terminate", name)


def test_a_wrong_spec_fails_with_every_error(quiet_node):
    done = quiet_node.playbook("launch", "-e", json.dumps({"session": {"name": "x", "cpu": "many", "mem": "1Q"}}))
    assert done.code != 0
    assert "cpu: 'many' is not a number" in done.out
    assert "mem: '1Q' is not an amount of bytes" in done.out
    assert "Traceback" not in done.out + done.err


def test_the_queue_is_worked_by_a_playbook(quiet_node):
    name = quiet_node.submit("--cpu", "0.05", "--mem", "64M", "--name", "queued")
    assert quiet_node.show(name)["state"] == "PENDING"
    dry = quiet_node.playbook("process_queue", "--check")
    assert (dry.code, changed(dry.out)) == (0, 1), dry.out
    assert quiet_node.show(name)["state"] == "PENDING"
    assert quiet_node.playbook("process_queue").code == 0
    assert quiet_node.show(name)["state"] == "RUNNING"
    again = quiet_node.playbook("process_queue")
    assert (again.code, changed(again.out)) == (0, 0), again.out


def test_check_mode_foretells_no_change_where_all_is_provisioned():
    """That a second run changes nothing either is shown on the fresh machine, with the control node."""
    dry = provision("--check")
    assert (dry.code, changed(dry.out)) == (0, 0), dry.out


def test_settings_that_muster_could_not_read_are_refused_before_they_are_written():
    wrong = {"control_node_settings": {"nonsense": 1}, "images_catalog": [{"name": "x"}]}
    roles = ("--tags", "control_node", "--skip-tags", "docker_engine,session_firewall,session_runtime,images")
    dry = provision("--check", *roles, "-e", json.dumps(wrong))
    assert (dry.code, changed(dry.out)) == (2, 0), dry.out
    assert "localhost: control_node_settings.nonsense: there is no such field; use one of" in dry.out
    assert "and images_catalog[0]: x: neither reference nor versions is given; give the one reference" in dry.out


def test_the_doctor_finds_nothing_to_mend_where_passes_work_the_queue(quiet_node):
    quiet_node.run("pass")
    findings = {finding["check"]: finding["ok"] for finding in quiet_node.run("doctor", "--json", check=False).json()}
    assert [check for check, ok in findings.items() if not ok] == []
