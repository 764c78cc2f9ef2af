"""What `playbooks/site.yml` makes of the lab's hosts."""

import pytest

from tests.lab.bring_up import changes, provision_again
from tests.lab.lab import Lab

pytestmark = pytest.mark.timeout(900)


def on_all(lab: Lab, *command: str) -> set[str]:
    """Return what a command says on the hosts: one thing where they are alike."""
    return {lab.run(host.name, *command).out.strip() for host in lab.hosts}


def test_hosts_that_lost_image_or_runtime_get_the_same_again(lab: Lab) -> None:
    first, second, last = (host.name for host in lab.hosts)
    image = lab.run(first, "docker", "image", "inspect", "--format", "{{.Id}}", "muster/default:latest").out.strip()
    version = lab.run(first, "cat", "/opt/muster/runtime/VERSION").out.strip()
    for host in (second, last):
        lab.run(host, "docker", "image", "rm", "muster/default:latest")
    lab.run(last, "rm", "-r", "/opt/muster")
    roles = "session_runtime,images"

    foretold = provision_again(roles, "--check")
    assert f"copied from {first}" in foretold.stdout
    assert lab.run(last, "ls", "/opt").out == ""

    done = provision_again(roles)
    assert done.returncode == 0, done.stdout
    assert changes(done) == changes(foretold) == {first: 0, second: 1, last: 2}
    assert on_all(lab, "docker", "image", "inspect", "--format", "{{.Id}}", "muster/default:latest") == {image}
    assert on_all(lab, "cat", "/opt/muster/runtime/VERSION") == {version}
    # Each host builds its own, of which all come out alike.
    assert len(on_all(lab, "sh", "-c", "cd /opt/muster/runtime && find -type f -exec sha256sum {} + | sort")) == 1
    assert on_all(lab, "find", "/var/tmp", "-name", "muster-*") == {""}
