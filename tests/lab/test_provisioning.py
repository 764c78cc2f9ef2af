"""What `playbooks/site.yml` makes of the lab's hosts."""

import subprocess

import pytest

from tests.lab.bring_up import changes, provision
from tests.lab.lab import Lab

pytestmark = pytest.mark.timeout(900)


def on_all(lab: Lab, *command: str) -> dict[str, str]:
    return {host.name: lab.run(host.name, *command).out.strip() for host in lab.hosts}


def test_all_hosts_hold_the_same_image_and_the_same_runtime(lab: Lab) -> None:
    images = on_all(lab, "docker", "image", "inspect", "--format", "{{.Id}}", "muster/default:latest")
    assert len(set(images.values())) == 1, images
    runtimes = on_all(lab, "sh", "-c", "cd /opt/muster/runtime && find -type f -exec sha256sum {} + | sort")
    assert len(set(runtimes.values())) == 1


def test_a_hosts_package_lists_decide_only_its_own_runtime(lab: Lab) -> None:
    """A host that claims newer package lists than all others makes nobody take its sshd."""
    first, *others = (host.name for host in lab.hosts)
    version = lab.run(first, "cat", "/opt/muster/runtime/VERSION").out
    lists = "/var/lib/apt/lists"
    lab.run(first, "sh", "-ec", f"touch -d 2037-01-01 {lists}/*_Packages*; echo evil > /opt/muster/runtime/VERSION")
    try:
        done = provision("--tags", "session_runtime", stdout=subprocess.PIPE)
    finally:
        lab.run(first, "sh", "-ec", f"touch {lists}/*_Packages*")
    assert done.returncode == 0, done.stdout
    assert changes(done) == {first: 1, **dict.fromkeys(others, 0)}
    assert {lab.run(host.name, "cat", "/opt/muster/runtime/VERSION").out for host in lab.hosts} == {version}


def test_a_host_that_lost_image_and_runtime_gets_the_same_again(lab: Lab) -> None:
    first, *_, last = (host.name for host in lab.hosts)
    image = lab.run(first, "docker", "image", "inspect", "--format", "{{.Id}}", "muster/default:latest").out
    version = lab.run(first, "cat", "/opt/muster/runtime/VERSION").out
    lab.run(last, "docker", "image", "rm", "muster/default:latest")
    lab.run(last, "rm", "-r", "/opt/muster")
    only = ("--tags", "session_runtime,images")

    foretold = provision(*only, "--check", stdout=subprocess.PIPE)
    assert f"copied from {first}" in foretold.stdout
    assert lab.run(last, "ls", "/opt").out == ""

    done = provision(*only, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stdout
    assert changes(done) == changes(foretold) == {**{host.name: 0 for host in lab.hosts}, last: 2}
    assert lab.run(last, "docker", "image", "inspect", "--format", "{{.Id}}", "muster/default:latest").out == image
    assert lab.run(last, "cat", "/opt/muster/runtime/VERSION").out == version
    assert lab.run(last, "find", "/var/tmp", "-name", "muster-*").out == ""
