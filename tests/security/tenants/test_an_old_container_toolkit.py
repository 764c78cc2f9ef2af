"""A container toolkit that lets an image become root on its host: no session starts there, and people see why."""

from dataclasses import replace
from pathlib import Path

import pytest

from muster.cli.doctor import _agent
from muster.contract.report import Report
from muster.core.agents.agent import agent_from_report
from muster.core.turn.answer import AgentAnswer
from muster.settings import Settings
from tests.modules.agent_code import gpu_toolkit
from tests.strategies.agents import make_agent

HOST = make_agent(gpus=1)


def report(version: str | None, gpus: int = 1) -> Report:
    found = make_agent(gpus=gpus).report
    assert found is not None
    return found.model_copy(update={"gpu_toolkit": version})


@pytest.mark.parametrize("version", ["1.17.7", "1.16.2", "1.9.0", "0.1", "1.17", "x", "", "1.17.8-rc.1"])
def test_an_old_toolkit_is_the_agents_problem(version: str) -> None:
    agent = agent_from_report("one", report(version), {}, 0.0)
    assert not agent.takes_sessions
    assert "upgrade the package nvidia-container-toolkit" in agent.problem


@pytest.mark.parametrize("version", ["1.17.8", "1.17.10", "1.18.0", "2.0", None])
def test_a_newer_toolkit_and_one_without_a_version_are_no_problem(version: str | None) -> None:
    assert agent_from_report("one", report(version), {}, 0.0).problem == ""


def test_an_old_toolkit_matters_only_on_hosts_with_gpus() -> None:
    assert agent_from_report("one", report("1.0.0", gpus=0), {}, 0.0).problem == ""


def test_the_doctor_names_it_with_its_remedy() -> None:
    answer = replace(AgentAnswer("one"), report=report("1.17.7"))
    findings = {finding.check: finding for finding in _agent(answer, Settings(), is_alone=True)}
    found = findings["agent one: container toolkit"]
    assert (found.ok, found.remedy) == (False, "upgrade the package nvidia-container-toolkit")
    assert "1.17.7" in found.found


@pytest.mark.parametrize(
    ("programs", "version"),
    [
        ({"nvidia-ctk": "NVIDIA Container Toolkit CLI version 1.17.7\ncommit: abc"}, "1.17.7"),
        ({"nvidia-container-runtime-hook": "NVIDIA Container Runtime Hook version 1.13.5"}, "1.13.5"),
        ({"nvidia-ctk": "no idea", "nvidia-container-runtime-hook": "version: 1.12.0"}, "1.12.0"),
        ({"nvidia-ctk": "no idea"}, None),
        ({}, None),
    ],
)
def test_an_agent_tells_its_toolkits_version(tmp_path: Path, programs: dict[str, str], version: str | None) -> None:
    for name, output in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{output}'\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    assert gpu_toolkit.version(str(tmp_path)) == version
