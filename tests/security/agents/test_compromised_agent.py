"""What a compromised agent returns through the real Ansible: of the inventory's word nothing is its own."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from muster.contract.report import report_from_agent
from muster.contract.values import ContractError
from muster.core.agents.agent import agent_from_report
from muster.core.turn.answer import AgentAnswer
from muster.engine.agent_ssh import ssh_command
from tests.simulated.hosts import report_of
from tests.waiting import eventually

OWN = {
    "connection": "local",
    "address": "192.0.2.66",
    "port": "22\nProxyCommand touch /tmp/x",
    "user": "-oProxyCommand=touch /tmp/x",
    "ssh_args": "-oProxyCommand='touch /tmp/x'",
    "private_key_file": "/etc/shadow",
    "publish_address": "192.0.2.66",
    "resource_group": "mine",
}
LISTED = {
    "ansible_connection": "local",
    "ansible_host": "192.0.2.7",
    "ansible_port": 2022,
    "ansible_user": "admin",
    "ansible_ssh_common_args": "-o ForwardAgent=no",
    "publish_address": "{{ ansible_host }}",
    "resource_group": "{{ 'big' ~ '-mem' }}",
    "labels": {"disk": "{{ 'ssd' }}"},
}

MARKS = ("\x1b", "\x00", "\x9b", "\u202e", "\u2028", "\u2066", "\ud800")


@pytest.fixture
def observed(tmp_path):
    """Return a function that observes an agent whose Python is the attacker's: it answers all with a given text."""

    def observe(said: dict[str, Any] | str, then: str = "") -> AgentAnswer:
        (tmp_path / "said.json").write_text(said if isinstance(said, str) else json.dumps(said), encoding="utf-8")
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\ncat >/dev/null\ncat {tmp_path / 'said.json'}\n{then}\n", encoding="utf-8")
        python.chmod(0o755)
        hosts = {"far": {**LISTED, "ansible_python_interpreter": str(python)}}
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}), encoding="utf-8")
        answers: list[AgentAnswer] = []
        AnsibleGateway(Inventory(Path(inventory)), "muster").observe((), answers.append)
        (answer,) = answers
        return answer

    return observe


def test_connection_variables_of_an_agent_never_reach_ssh(observed):
    said = {
        "changed": False,
        "report": report_of("far"),
        "inventory": OWN,
        "attributes": OWN,
        "agent_attributes": OWN,
        "ansible_facts": {"agent_attributes": OWN, **{f"ansible_{name}": value for name, value in OWN.items()}},
        "add_host": {"host_name": "evil", "groups": ["agents"], "host_vars": {"ansible_connection": "local"}},
        "unreachable": True,
    }
    answer = observed(said)
    agent = agent_from_report(answer.agent_id, answer.report, answer.inventory, 0.0)
    assert agent.problem == ""
    assert (agent.resource_group, agent.labels) == ("big-mem", {"disk": "ssd"})
    assert agent.connection.publish_address == "192.0.2.7"
    command = ["ssh", "-o", "ForwardAgent=no", "-p", "2022", "-l", "admin", "192.0.2.7"]
    assert ssh_command(agent) == command
    assert not {str(value) for value in OWN.values()} & {str(value) for value in answer.inventory.values()} - {"local"}


def test_a_report_with_attributes_is_refused(observed):
    answer = observed({"changed": False, "report": {**report_of("far"), "attributes": OWN}})
    line = "its answer is refused: report.attributes: Extra inputs are not permitted"
    assert (answer.report, answer.problem, answer.reached) == (None, line, True)


def test_a_failure_is_reported_in_one_short_line(observed):
    answer = observed({"failed": True, "msg": "\x1b[2J" + "no\n" * 1_000_000})
    assert answer.report is None
    assert answer.problem.isprintable()
    assert len(answer.problem) < 2100


@pytest.mark.parametrize("depth", [*range(100, 1000, 100), 200_000])
def test_an_answer_that_is_nested_deeply_or_without_end_is_its_agents_problem(observed, depth):
    """What can be read may still be too deep to be handed on."""
    answer = observed('{"changed": false, "report": ' + "[" * depth + "]" * depth + "}")
    assert answer.report is None
    assert answer.problem.isprintable()


def test_an_answer_that_is_too_long_is_its_agents_problem(observed):
    answer = observed(json.dumps({"changed": False, "report": {**report_of("far"), "hostname": "x" * (33 << 20)}}))
    assert answer.report is None
    assert "the agent's answer is longer than 32 MiB" in answer.problem


@pytest.mark.parametrize("stream", ["", " >&2"])
def test_an_answer_without_end_is_broken_off_before_it_fills_the_memory(observed, tmp_path, stream):
    """Its program is ended with the bytes that it may say, and not with the time that it may take."""
    answer = observed("", f"echo $$ > {tmp_path}/pid; exec cat /dev/zero{stream}")
    assert answer.report is None
    assert "the agent's answer is longer than 32 MiB" in answer.problem
    program = Path("/proc") / (tmp_path / "pid").read_text().strip()
    eventually(lambda: not program.exists())


@pytest.mark.parametrize("mark", MARKS)
def test_a_name_with_what_would_change_a_terminal_or_break_a_database_is_refused(mark):
    with pytest.raises(ContractError, match=r"report\.hostname: ") as refused:
        report_from_agent({**report_of("far"), "hostname": f"far{mark}"})
    assert str(refused.value).isprintable()


def test_a_failure_shows_nothing_that_would_change_a_terminal(observed):
    answer = observed({"failed": True, "msg": "no".join(MARKS)})
    assert answer.problem.isprintable()
    assert not set(MARKS) & set(answer.problem)
