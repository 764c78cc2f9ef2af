"""Generations of manifests: agents obey the newest, also of a control node that does not know how far they were."""

import pytest

from muster.core.model.session import SessionState
from tests.strategies.values import NOW

S = SessionState


@pytest.mark.parametrize("ahead_s", [3_600, 300 * 86_400])
def test_a_control_node_behind_its_agents_gives_out_newer_numbers_than_they_know(node, agents, ahead_s):
    """Its database was restored, or begun anew, and its clock is behind what it was then."""
    accepted = int((NOW + ahead_s) * 1000)
    agents[0].generation = accepted
    sessions = [node.submit(cpu=2) for _ in range(2)]
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 2
    assert {node.session(session).generation for session in sessions} == {accepted + 1}


def test_an_agent_that_claims_an_absurd_generation_takes_no_numbers_from_the_others(node, agents):
    agents[0].says = lambda said: {**said, "report": {**said["report"], "generation": 1 << 60}}
    sessions = [node.submit(cpu=2) for _ in range(2)]
    node.run()
    assert [node.state(session) for session in sessions] == [S.RUNNING] * 2
    assert agents[1].generation < int((NOW + 60) * 1000)
