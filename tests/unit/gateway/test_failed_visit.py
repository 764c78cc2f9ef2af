"""What an agent says whose module ends with a failure: that it began nothing, or what it did before."""

import json
from typing import Any

import pytest
import yaml

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.playbook import Inventory
from muster.core.launch.manifest import LaunchPolicy, manifest
from muster.core.model.session import SessionState
from muster.core.turn.answer import AgentAnswer
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import fake_key_pair

STARTS = [placed_on(make_session(number), "a1", state=SessionState.PREPARING) for number in (1, 2)]
RELEASED = {"id": STARTS[0].id, "outcome": "released", "error": None, "permanent": False}
FAILED = {"id": STARTS[1].id, "outcome": "failed", "error": "it has no room", "permanent": False}


@pytest.fixture
def converged(tmp_path):
    """Converges an agent whose Python says this, whatever it is sent."""

    def converge(said: dict[str, Any] | str, **variables: Any) -> AgentAnswer:
        (tmp_path / "said").write_text(said if isinstance(said, str) else json.dumps(said), encoding="utf-8")
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\ncat >/dev/null\ncat {tmp_path / 'said'}\nexit 1\n", encoding="utf-8")
        python.chmod(0o755)
        hosts = {"a1": {"ansible_connection": "local", "ansible_python_interpreter": str(python), **variables}}
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}), encoding="utf-8")
        keys = {session.id: fake_key_pair(session.name) for session in STARTS}
        written = manifest(make_agent("a1"), STARTS, keys, 7, LaunchPolicy(), lambda name, _: name)
        answers: list[AgentAnswer] = []
        AnsibleGateway(Inventory(inventory), "muster").converge({"a1": written}, answers.append)
        (answer,) = answers
        assert answer.report is None
        assert answer.reached
        return answer

    return converge


def failure(**values: Any) -> dict[str, Any]:
    return {"failed": True, "msg": "the engine is gone", **values}


@pytest.mark.parametrize("attributes", ["north", ["rack"], 7, None])
def test_attributes_that_are_no_mapping_are_that_agents_problem(converged, attributes):
    assert "agent_attributes is no mapping" in converged(failure(), agent_attributes=attributes).problem


def test_a_manifest_that_is_refused_as_a_whole_began_nothing(converged):
    answer = converged(failure(nothing_begun=True))
    assert (answer.problem, answer.nothing_begun, answer.outcomes) == ("the engine is gone", True, {})


@pytest.mark.parametrize("said", [failure(), failure(nothing_begun="yes"), "Traceback: something broke\n"])
def test_a_module_that_broke_off_may_have_begun_anything(converged, said):
    assert not converged(said).nothing_begun


@pytest.mark.parametrize("entries", [[RELEASED, FAILED], [RELEASED], []])
def test_outcomes_count_although_the_module_failed_after_them(converged, entries):
    answer = converged(failure(sessions=entries, last_words=[], nothing_begun=True))
    assert (answer.problem, answer.nothing_begun) == ("the engine is gone", False)
    assert {key: (found.outcome, found.error) for key, found in answer.outcomes.items()} == {
        entry["id"]: (entry["outcome"], entry["error"]) for entry in entries
    }


@pytest.mark.parametrize(
    "entries", [[RELEASED, RELEASED], [{**RELEASED, "id": "another"}], [{**RELEASED, "outcome": "stopped"}], 7]
)
def test_outcomes_that_the_contract_does_not_allow_are_no_outcomes(converged, entries):
    answer = converged(failure(sessions=entries, last_words=[], nothing_begun=True))
    assert answer.problem.startswith("its answer is refused: answer")
    assert (answer.nothing_begun, answer.outcomes) == (False, {})
