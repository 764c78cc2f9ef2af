"""Ansible on running kernels, by the inventory plugin."""

import os
import re
import subprocess

import pytest
import yaml

from tests.control_node import ROOT, SCRIPTS, ControlNode
from tests.done import Done


@pytest.fixture(scope="module")
def sessions(node, busybox_image):
    """Return two sessions of two kernels, and one whose image holds nothing but a busybox."""
    names = [node.start("--cluster-size", "2") for _ in range(2)]
    names.append(node.start("--image", busybox_image))
    return names


def ansible(node: ControlNode, pattern: str, module: str, arguments: str) -> Done:
    inventory = node.directory / "muster_cluster.yml"
    inventory.write_text(yaml.safe_dump({"plugin": "muster_cluster", "config": str(node.config)}))
    done = subprocess.run(
        [SCRIPTS / "ansible", "-i", inventory, pattern, "-m", module, "-a", arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def answers(done: Done) -> dict[str, str]:
    """Return by host what the command printed."""
    assert done.code == 0, done.out + done.err
    return dict(re.findall(r"^(\S+) \| \S+ \| rc=0 >>\n(.*)$", done.out, re.MULTILINE))


def test_ansible_reaches_the_kernels_of_a_session_and_no_others(node, sessions):
    first, second, _ = sessions
    groups = [f"session_{name}".replace("-", "_") for name in (first, second)]
    done = ansible(node, groups[0], "ansible.builtin.command", "hostname")
    assert answers(done) == {f"{first}-main1": "main1", f"{first}-sub1": "sub1"}
    # Both have a sub1. Each must answer for itself, although Ansible keeps connections open.
    done = ansible(node, f"{':'.join(groups)}:&role_sub", "ansible.builtin.command", "printenv BACKENDAI_SESSION_NAME")
    assert answers(done) == {f"{first}-sub1": first, f"{second}-sub1": second}


def test_raw_works_in_any_image(node, sessions):
    bare = sessions[2]
    done = ansible(node, f"{bare}-main1", "ansible.builtin.raw", "hostname")
    assert (done.code, "main1" in done.out) == (0, True), done.out + done.err


def test_agents_are_hosts_too(node):
    done = ansible(node, "resource_group_default", "ansible.builtin.command", "true")
    assert list(answers(done)) == ["localhost"]
