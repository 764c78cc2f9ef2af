"""Whatever an agent may say by the contract, and the inventory of it, each database takes: nobody's work stops."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from muster.core.model.session import Result, SessionState
from tests.simulated.control_node import ControlNode, an_agent

S = SessionState
Said = dict[str, Any]


@pytest.fixture
def node(url, tmp_path):
    made = ControlNode(tmp_path, an_agent("a1", cpus=1), an_agent("a2", cpus=1), url=url)
    yield made
    made.store.close()


def of_its_kernels(**facts: object) -> Callable[[Said], Said]:
    def say(said: Said) -> Said:
        said["report"]["kernels"] = [{**kernel, **facts} for kernel in said["report"]["kernels"]]
        return said

    return say


@pytest.mark.parametrize(
    "facts",
    [
        {"container_id": "c" * 1024},
        {"container_id": "c" * 64},
        {"state": "s" * 32},
        {"state": "s" * 16},
        {"state": "exited", "exit_code": (1 << 32) - 1},
        {"state": "exited", "exit_code": -(1 << 31)},
        {"address": "f" * 45},
        {"signals": 1 << 60, "signal_receivers": 1 << 60},
    ],
    ids=lambda facts: "-".join(f"{name}-{str(value)[:12]}" for name, value in facts.items()),
)
def test_the_farthest_that_an_agent_may_say_stops_nobody_elses_sessions(node, facts):
    odd, other = node.gateway.agents.values()
    sessions = [node.submit(), node.submit()]
    node.run()
    (others,) = (session for session in sessions if node.session(session).agents == (other.id,))
    odd.says = of_its_kernels(**facts)
    node.run()
    node.end(others)
    node.run()
    assert node.state(others) is S.TERMINATED


def test_an_exit_code_without_a_sign_is_that_of_the_same_bits(node):
    odd, _ = node.gateway.agents.values()
    session = node.submit(command="false", agents=[odd.id])
    node.run()
    odd.says = of_its_kernels(state="exited", exit_code=(1 << 32) - 1)
    node.run()
    ended = node.session(session)
    assert (ended.result, ended.exit_code) == (Result.FAILURE, -1)


def test_a_number_of_the_inventory_that_is_none_is_a_text(node):
    """YAML has .inf and .nan; JSON has no such numbers, and PostgreSQL refuses them."""
    node.gateway.agents["a1"].inventory = {"labels": {"limit": math.inf, "sizes": [1.5, math.nan]}, "rack": "r1"}
    session = node.submit(agents=["a2"])
    node.run()
    assert node.state(session) is S.RUNNING
    (odd, _) = node.store.agents.all()
    assert odd.inventory["labels"] == {"limit": "inf", "sizes": [1.5, "nan"]}
    assert odd.inventory["rack"] == "r1"
