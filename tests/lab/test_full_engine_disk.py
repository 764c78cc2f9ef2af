"""An engine's disk that is full while a container starts on an overlay: the overlay can be removed in the end."""

import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.lab.chaos.engine_disk import fill_engine_disk, free_engine_disk, give_engine_a_small_disk, take_engine_disk
from tests.lab.host import ROOT
from tests.lab.lab import Lab
from tests.waiting import eventually

MANAGER, HOST = "lab-1", "lab-2"
IMAGE = "muster/default:latest"
# On some releases /tmp is a file system of its own, into which `docker cp` does not write.
_CODE = "/var/lib/agent-code"
_REMOVE = f"""
import sys
sys.path.insert(0, "{_CODE}")
from muster_agent.engine.api import EngineApi, EngineError
from muster_agent.engine.removal import remove_container
try:
    remove_container(EngineApi(), sys.argv[1])
except EngineError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


@pytest.fixture
def _small_disk(lab: Lab) -> Iterator[None]:
    """Give the host's engine a small disk, and the host the code that runs on agents."""
    agent_code = ROOT / "plugins" / "module_utils" / "muster_agent"
    lab.run(HOST, "mkdir", "--parents", _CODE)
    subprocess.run(["docker", "cp", agent_code, f"{HOST}:{_CODE}"], capture_output=True, check=True)
    give_engine_a_small_disk(lab, HOST)
    try:
        yield
    finally:
        free_engine_disk(lab, HOST)
        take_engine_disk(lab, HOST)
        lab.run(HOST, "rm", "--recursive", _CODE)


@pytest.mark.usefixtures("_small_disk")
def test_a_container_that_could_not_start_for_a_full_disk_holds_no_overlay_once_it_is_removed(lab: Lab) -> None:
    """Docker 20.10 forgets the attachment: the swarm takes the overlay for in use until the engine is started again.

    Docker 28.5 lets go of the overlay at once.
    """
    network = container = f"full-{uuid.uuid4().hex[:12]}"
    lab.run(MANAGER, "docker", "network", "create", "--driver", "overlay", "--attachable", network)
    try:
        on_network = ("--name", container, "--network", network, "--entrypoint", "sleep")
        # The engine's part of the swarm is back a moment after the engine.
        _eventually_runs(lab, HOST, "docker", "create", *on_network, IMAGE, "60")
        fill_engine_disk(lab, HOST)
        started = lab.run(HOST, "docker", "start", container, check=False)
        assert "no space left on device" in started.err
        held = lab.run(HOST, "python3", "-c", _REMOVE, container, check=False)
        forgets = lab.run(HOST, "docker", "version", "--format", "{{.Server.Version}}").out.startswith("20.10.")
        early = "it is not to be removed before its engine lets go of the overlay"
        assert held.err.startswith("HeldError: ") if forgets else held.code == 0, early
        free_engine_disk(lab, HOST)
        lab.run(HOST, "python3", "-c", _REMOVE, container)
        assert lab.run(HOST, "docker", "ps", "--all", "--quiet", "--filter", f"name={container}").out == ""
    finally:
        lab.run(HOST, "docker", "rm", "--force", container, check=False)
        _eventually_runs(lab, MANAGER, "docker", "network", "rm", network)


def _eventually_runs(lab: Lab, host: str, *command: str) -> None:
    eventually(lambda: lab.run(host, *command, check=False), lambda done: done.code == 0)
