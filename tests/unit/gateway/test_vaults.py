"""An inventory of which Ansible Vault has encrypted a part: by what the settings name, plays read it."""

import subprocess
import sysconfig
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from muster.core.values.errors import AnsibleFailedError
from tests.command_line import muster, write_settings
from tests.unit.gateway.test_plays_ahead import python_that_says

VAULT = str(Path(sysconfig.get_path("scripts")) / "ansible-vault")
REMEDY = "(see `vault_password_files` in the settings)"


def password_file(path: Path, password: str) -> Path:
    path.write_text(f"{password}\n", encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def passwords(tmp_path: Path) -> tuple[Path, Path]:
    """Return two files, each with a password."""
    return password_file(tmp_path / "one.pass", "one"), password_file(tmp_path / "two.pass", "two")


@pytest.fixture
def inventory(tmp_path: Path, passwords: tuple[Path, Path]) -> Path:
    """Return an inventory with two agents, the path of whose Python is a secret of each of the passwords."""
    one, two = passwords
    path = tmp_path / "inventory" / "hosts.yml"
    hosts = {"a1": {"ansible_connection": "local"}, "a2": {"ansible_connection": "local"}}
    for name in hosts:
        python_that_says(tmp_path / f"python-{name}", f"from {name}")
    (path.parent / "host_vars").mkdir(parents=True)
    path.write_text(yaml.safe_dump({"agents": {"hosts": hosts}}), encoding="utf-8")
    file = path.parent / "host_vars" / "a1.yml"
    file.write_text(f"ansible_python_interpreter: {tmp_path / 'python-a1'}\n", encoding="utf-8")
    subprocess.run([VAULT, "encrypt", "--vault-password-file", one, file], check=True, capture_output=True)
    command = [VAULT, "encrypt_string", "--vault-password-file", two, str(tmp_path / "python-a2")]
    secret = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (path.parent / "host_vars" / "a2.yml").write_text(f"ansible_python_interpreter: {secret}", encoding="utf-8")
    return path


def observed(inventory: Inventory, *agent_ids: str, ahead: int = 0) -> dict[str, str]:
    answers = []
    with closing(AnsibleGateway(inventory, "muster", ahead={"observe": ahead})) as gateway:
        for _ in range(1 + ahead):
            gateway.observe(agent_ids, answers.append)
    return {answer.agent_id: answer.problem for answer in answers}


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_files_decrypt_what_each_has_the_password_of(inventory, passwords, ahead):
    said = observed(Inventory(inventory, passwords), "a1", "a2", ahead=ahead)
    assert {name: problem.split(": ")[-1] for name, problem in said.items()} == {"a1": "from a1", "a2": "from a2"}


def test_a_program_may_say_the_password(inventory, passwords, tmp_path):
    program = tmp_path / "says"
    program.write_text(f"#!/bin/sh\ncat {passwords[0]}\n", encoding="utf-8")
    program.chmod(0o700)
    assert "from a1" in observed(Inventory(inventory, (program,)), "a1")["a1"]


@pytest.mark.parametrize("given", [(), ("wrong.pass",), ("missing.pass",)], ids=str)
def test_without_its_password_nobody_is_observed_and_the_setting_is_named(inventory, tmp_path, given):
    password_file(tmp_path / "wrong.pass", "wrong")
    with pytest.raises(AnsibleFailedError) as refused:
        observed(Inventory(inventory, tuple(tmp_path / name for name in given)), "a1")
    assert str(refused.value).endswith(REMEDY)


def test_a_value_that_cannot_be_read_is_a_problem_of_its_agent_alone(inventory, passwords):
    said = observed(Inventory(inventory, passwords[:1]), "a1", "a2")
    assert said["a1"].endswith("from a1")
    assert said["a2"].endswith(REMEDY)


def test_the_settings_name_the_files(inventory, passwords, tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "muster.yml"))
    paths = [str(path) for path in passwords]
    write_settings(tmp_path, {"inventory": str(inventory), "vault_password_files": paths})
    assert f"2 agents in {inventory}" in muster("doctor").out
    write_settings(tmp_path, {"inventory": str(inventory), "vault_password_files": [*paths, "three.pass"]})
    answer = muster("agents")
    assert answer.code == 2
    assert "vault_password_files" in answer.err
