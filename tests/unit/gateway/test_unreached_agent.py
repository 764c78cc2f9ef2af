"""A host that ssh does not reach began nothing: its launches may start elsewhere at once."""

from pathlib import Path

import pytest

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from muster.contract.manifest import Manifest
from muster.core.launch.manifest import LaunchPolicy, manifest
from tests.strategies.agents import make_agent

# Port 1 of the loopback interface: refused at once, everywhere.
REFUSED = {"ansible_host": "127.0.0.1", "ansible_port": 1}
# The name is reserved for tests (RFC 6761).
UNKNOWN = {"ansible_host": "no-such-host.invalid"}


def nothing() -> Manifest:
    return manifest(make_agent("a1"), [], {}, 1, LaunchPolicy(), lambda _template, _variables: "")


@pytest.mark.parametrize("variables", [REFUSED, UNKNOWN])
def test_a_host_that_no_connection_came_to_began_nothing_of_its_manifest(tmp_path: Path, variables):
    lines = "".join(f"          {name}: {value}\n" for name, value in variables.items())
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(f"agents:\n  hosts:\n    a1:\n          ansible_connection: ssh\n{lines}")
    answers = []
    AnsibleGateway(Inventory(inventory), "muster").converge({"a1": nothing()}, answers.append)
    (answer,) = answers
    assert (answer.agent_id, answer.reached, answer.nothing_begun) == ("a1", False, True)
    assert "ssh: " in answer.problem
