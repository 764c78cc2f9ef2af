"""One agent's answer that the contract does not allow is that agent's problem: everybody else's work goes on."""

from typing import Any

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.session import SessionState
from tests.simulated.control_node import an_agent

S = SessionState
Said = dict[str, Any]


def without_a_field(said: Said) -> Said:
    del said["report"]["mem_bytes"]
    return said


def of_another_type(said: Said) -> Said:
    return {**said, "report": [said["report"]]}


def with_connection_variables(said: Said) -> Said:
    said["report"]["attributes"] = {"connection": "local", "ssh_args": "-oProxyCommand=touch /tmp/x"}
    return said


def too_large(said: Said) -> Said:
    said["report"]["hostname"] = "x" * 1_000_000
    return said


def without_outcomes(said: Said) -> Said:
    return {"report": said["report"]}


def of_a_stranger(said: Said) -> Said:
    stranger = {"id": "00000099-0000-4000-8000-000000000000", "outcome": "stopped", "error": None, "permanent": False}
    return {**said, "sessions": [*said.get("sessions", ()), stranger]}


def of_nothing(said: Said) -> Said:
    return dict.fromkeys(said)


ALWAYS = (without_a_field, of_another_type, with_connection_variables, too_large, of_nothing)


def problems(node) -> dict[str, str]:
    return {agent.id: agent.problem for agent in node.store.snapshot(node.now).agents}


@pytest.mark.parametrize("says", ALWAYS)
def test_a_malformed_report_is_its_agents_problem_and_nobody_elses(control_node, agents, says):
    liar, honest = agents
    spare = an_agent("a3", cpus=1)
    node = control_node(liar, honest, spare)
    runs = node.submit(cluster_size=4, cluster_mode="multi-node")
    node.run()
    liar.says = says
    work = node.run()
    assert work.problems.keys() == {liar.id}
    assert work.problems[liar.id].startswith("its answer is refused: report")
    assert "\n" not in work.problems[liar.id]
    assert problems(node)[honest.id] == ""
    assert node.state(runs) is S.RUNNING
    node.end(runs)
    node.run()
    other = node.submit()
    node.run()
    assert node.session(other).agents == (spare.id,)
    assert node.state(other) is S.RUNNING
    liar.says = lambda said: said
    node.run()
    assert problems(node) == {liar.id: "", honest.id: "", spare.id: ""}
    assert node.state(runs) is S.TERMINATED


@pytest.mark.parametrize("says", [without_outcomes, of_a_stranger])
def test_answers_about_sessions_outside_the_manifest_are_refused(node, agents, says):
    liar, honest = agents
    liar.says = lambda said: says(said) if "sessions" in said else said
    sessions = [node.submit(cpu=2), node.submit(cpu=2)]
    work = node.run()
    assert "its answer is refused: answer" in work.problems.get(liar.id, "") or problems(node)[liar.id] == ""
    states = {node.session(session).agents: node.state(session) for session in sessions}
    assert states[honest.id,] is S.RUNNING
    assert S.RUNNING not in {state for ids, state in states.items() if ids != (honest.id,)}


def test_an_agents_answer_about_anothers_kernel_is_ignored(node, agents):
    """It claims that a gang's kernel on the other agent has ended."""
    gang = node.submit(cluster_size=4, cluster_mode="multi-node")
    node.run()
    liar, honest = agents
    (victim, *_) = honest.of_session(gang.id)

    def claiming(said: Said) -> Said:
        claim = next(entry for entry in said["report"]["kernels"] if entry["session_id"] == gang.id)
        ended = {"kernel_id": victim.kernel_id, "name": victim.name, "state": "exited", "exit_code": 1}
        said["report"]["kernels"].append({**claim, "container_id": "claimed", **ended})
        return said

    liar.says = claiming
    node.run()
    liar.says = lambda said: said
    node.run()
    assert node.state(gang) is S.RUNNING
    assert [agent.state for agent in node.store.snapshot(node.now).agents] == [AgentState.ALIVE] * 2
