"""A host of which something cannot be read says in one line what that is."""

import json

import pytest
from ansible.module_utils.testing import patch_module_args

from tests.hostile.odd_engine import odd_engine
from tests.modules.agent_code import agent_observer, agent_report, engine_api

SWARM = {"LocalNodeState": "inactive", "NodeID": "", "ControlAvailable": False}
ELSEWHERE = "/no/such/directory/of/docker"
INFO = {
    "DockerRootDir": ELSEWHERE,
    "ServerVersion": "20.10",
    "Driver": "overlay2",
    "SecurityOptions": [],
    "Swarm": SWARM,
    "OperatingSystem": "",
    "KernelVersion": "",
    "Architecture": "x86_64",
    "NCPU": 1,
    "MemTotal": 1,
}
PROBLEM = f"this agent cannot be read: {ELSEWHERE}: No such file or directory"


@pytest.fixture(autouse=True)
def _engine_with_its_data_in_a_place_of_its_own(tmp_path, monkeypatch):
    """Let there be an engine that sees other mounts than the host does."""
    with odd_engine(tmp_path) as server:
        server.body = b"[]"
        server.bodies["/info"] = json.dumps(INFO).encode()
        for module in (agent_report, agent_observer):
            monkeypatch.setattr(module, "EngineApi", lambda: engine_api.EngineApi(server.path))
        yield


def test_the_module_names_it(capsys):
    with patch_module_args({"cluster": "no-such-cluster"}), pytest.raises(SystemExit):
        agent_report.main()
    assert json.loads(capsys.readouterr().out)["msg"] == PROBLEM


def test_the_program_that_stays_names_it():
    assert agent_observer._said({"cluster": "no-such-cluster", "folders_root": None}) == {"failed": PROBLEM}
