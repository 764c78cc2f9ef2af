"""A module's code goes to an agent once: later visits send its name, and fall back where the agent has lost it."""

import sys

import pytest

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from tests.modules.agent_code import kept_code

KEPT = kept_code.DIRECTORY


@pytest.fixture
def observe(tmp_path, cluster):
    inventory = tmp_path / "inventory.yml"
    agent = f"localhost: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}"
    inventory.write_text(f"agents: {{hosts: {{{agent}}}}}\n")
    gateway = AnsibleGateway(Inventory(inventory), cluster.name)

    def observed() -> str:
        """Return the hostname of the agent's report, or its problem."""
        answers = []
        gateway.observe([], answers.append)
        (answer,) = answers
        return answer.report.hostname if answer.report else answer.problem

    return observed


def kept() -> set[tuple[str, int]]:
    """Return the names of the files of code, and which files they are."""
    return {(file.name, file.stat().st_ino) for file in KEPT.iterdir()}


@pytest.fixture
def nothing_kept():
    for file in KEPT.glob("*"):
        file.unlink()


@pytest.mark.usefixtures("nothing_kept")
def test_the_first_visit_keeps_what_the_second_runs(observe):
    first = observe()
    kept_first = kept()
    assert kept_first
    assert observe() == first
    assert kept() >= kept_first


@pytest.mark.usefixtures("nothing_kept")
def test_code_that_was_damaged_is_sent_again(observe):
    first = observe()
    damaged = kept()
    for path in KEPT.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert observe() == first
    assert kept() - damaged
