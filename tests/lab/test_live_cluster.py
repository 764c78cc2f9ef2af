"""What operators do to a cluster with sessions on it: provision again, drain, copy images, look into kernels."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.control_node import ROOT, SCRIPTS
from tests.done import Done
from tests.lab.bring_up import NETWORK, RUNTIME, changes, provision_again
from tests.lab.control_node import LabControlNode
from tests.lab.host import ADMINISTRATOR
from tests.lab.lab import Lab

pytestmark = pytest.mark.timeout(900)
LISTS = "/var/lib/apt/lists/*_Packages*"


@pytest.fixture
def gang(lab_node: LabControlNode):
    name = lab_node.start("--cluster-size", "3", "--cluster-mode", "multi-node", "--mem", "14G")
    yield name
    lab_node.run("terminate", name, "--wait")


def ansible(node: LabControlNode, inventory: Path, *arguments: str) -> Done:
    done = subprocess.run(
        [SCRIPTS / "ansible", "-i", inventory, *arguments],
        cwd=ROOT,
        env={**node.environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_new_runtime_disturbs_no_running_session_and_is_never_anothers(
    lab: Lab, lab_node: LabControlNode, gang: str
) -> None:
    """A host that claims newer package lists than all others makes nobody take its sshd."""
    first, second = (host.name for host in lab.hosts[:2])
    version = lab.run(first, "cat", f"{RUNTIME}/VERSION").out
    before = [kernel["container_id"] for kernel in lab_node.show(gang)["kernels"]]
    lab.run(first, "sh", "-ec", f"touch -d 2037-01-01 {LISTS}; echo evil >{RUNTIME}/VERSION")
    try:
        done = provision_again("docker_engine,overlay_network,session_runtime", "--limit", f"{first},{second}")
    finally:
        lab.run(first, "sh", "-ec", f"touch {LISTS}")
    assert done.returncode == 0, done.stdout
    assert changes(done) == {first: 1, second: 0}, done.stdout
    assert {lab.run(host.name, "cat", f"{RUNTIME}/VERSION").out for host in lab.hosts} == {version}
    assert lab_node.exec(gang, "ssh", "sub1", "ssh", "sub2", "hostname").out == "sub2\n"
    lab_node.run("pass", "--wait")
    assert [kernel["container_id"] for kernel in lab_node.show(gang)["kernels"]] == before


def test_ansible_reaches_the_kernels_on_every_host(lab_node: LabControlNode, gang: str) -> None:
    inventory = lab_node.directory / "muster_cluster.yml"
    inventory.write_text(f"plugin: muster_cluster\nconfig: {lab_node.config}\n")
    group = f"session_{gang.replace('-', '_')}"
    done = ansible(lab_node, inventory, group, "-m", "ansible.builtin.command", "-a", "hostname")
    assert done.code == 0, done.out + done.err
    assert sorted(done.out.split()[-1:]) == ["sub2"] or "sub2" in done.out
    assert all(f"{gang}-{kernel}" in done.out for kernel in ("main1", "sub1", "sub2"))


def test_a_command_that_is_killed_leaves_no_tunnel_behind(lab_node: LabControlNode, tmp_path: Path) -> None:
    name = lab_node.start()
    with subprocess.Popen(
        [SCRIPTS / "muster", "exec", name, "--", "sh", "-c", "echo begun; cat"],
        env={**lab_node.environment, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        command.kill()
    assert list(tmp_path.iterdir()) == []
    lab_node.run("terminate", name, "--wait")


def test_an_administrator_who_has_sudo_serves_as_well_as_root(lab: Lab, lab_node: LabControlNode) -> None:
    """Nobody put them into the group docker, and sshd opens sockets as the user who logged in."""
    assert NETWORK.user_of(lab.hosts[1]) == ADMINISTRATOR
    assert "docker" not in lab.run(lab.hosts[1].name, "id", "--name", "--groups", ADMINISTRATOR).out.split()
    name = lab_node.start("--agent", lab.hosts[1].name)
    assert lab_node.exec(name, "hostname").out == "main1\n"
    findings = {finding["check"]: finding for finding in lab_node.run("doctor", "--json", check=False).json()}
    assert [findings[f"agent {host.name}: engine by ssh"]["ok"] for host in lab.hosts] == [True, True, True]
    lab_node.run("terminate", name, "--wait")


def test_the_drain_playbook_empties_a_host_and_says_so_once(lab_node: LabControlNode) -> None:
    name = lab_node.start("--mem", "14G")
    (host,) = lab_node.show(name)["agents"]
    arguments = ("-e", f"drain_agents={host}", "-e", "drain_reason=disks", "-e", "drain_wait=true")
    first = lab_node.playbook("drain", *arguments, "-e", "drain_end_sessions=true")
    assert first.code == 0, first.out + first.err
    assert lab_node.show(name)["state"] == "TERMINATED"
    second = lab_node.playbook("drain", *arguments)
    assert "changed=0" in second.out
    lab_node.run("agent", "resume", host)


def test_an_image_without_a_registry_is_copied_to_the_agents_that_lack_it(lab: Lab, lab_node: LabControlNode) -> None:
    image = "muster-lab/only-here:1"
    lab.run("lab-1", "docker", "tag", "muster/default:latest", image)
    try:
        lab_node.run("pass", "--wait")
        copied = json.loads(lab_node.run("images", "sync", image, "--json").out)
        assert "lab-2" in json.dumps(copied)
        for host in lab.hosts:
            assert lab.run(host.name, "docker", "image", "inspect", "--format", "{{.Id}}", image).out
        name = lab_node.start("--image", image, "--cluster-size", "3", "--cluster-mode", "multi-node", "--mem", "14G")
        lab_node.run("terminate", name, "--wait")
    finally:
        for host in lab.hosts:
            lab.run(host.name, "docker", "image", "rm", image, check=False)
