"""The lab itself: what system tests rely on when they cut hosts off and kill engines."""

import os
import subprocess

import pytest

from tests.lab.bring_up import INVENTORY, ROOT, SCRIPTS
from tests.lab.lab import Lab

pytestmark = pytest.mark.timeout(900)


def ping(pattern: str) -> subprocess.CompletedProcess[str]:
    """Ping hosts by a new connection: an open one would notice a cut only late."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}
    command = [SCRIPTS / "ansible", "--inventory", INVENTORY, pattern, "--module-name", "ansible.builtin.ping"]
    return subprocess.run(
        [*command, "--timeout", "5"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_ansible_reaches_every_host_by_ssh(lab: Lab) -> None:
    done = ping("agents")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(lab.hosts) == 3


def test_a_host_that_is_cut_off_answers_nobody_until_it_is_restored(lab: Lab) -> None:
    peer, cut = (host.name for host in lab.hosts[:2])
    address = lab.hosts[1].address
    knock = ("timeout", "3", "bash", "-c", f"</dev/tcp/{address}/22")
    with lab.cut_off(cut):
        assert "UNREACHABLE" in ping(cut).stdout
        assert lab.run(peer, *knock, check=False).code == 124, "no answer, rather than a refusal"
        assert lab.run(cut, "hostname").out.strip() == cut
    assert "SUCCESS" in ping(cut).stdout
    assert lab.run(peer, *knock).code == 0


def test_a_killed_engine_stays_dead_until_it_is_started(lab: Lab) -> None:
    host = lab.hosts[2].name
    lab.kill_engine(host)
    try:
        assert lab.run(host, "docker", "ps", check=False).code != 0
        assert lab.run(host, "systemctl", "is-active", "docker.service", check=False).out.strip() != "active"
    finally:
        lab.start_engine(host)
    assert lab.run(host, "docker", "ps").code == 0
