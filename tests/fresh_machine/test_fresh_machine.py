"""The README's two commands on a machine that has nothing: a bare Debian with systemd, made here, run as a container.

What a user's network needs is given as a user would give it: the proxy's certificate in the trust store, pip's and the
proxy's variables in the environment. The tests of this file run in their order on one machine.
"""

import os
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.host import ROOT, bare_root, docker, remove_host, run_host, wait_until_booted

MACHINE = "muster-fresh-machine"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PLAYBOOK = "LC_ALL=C.UTF-8 .venv/bin/ansible-playbook --inventory inventory/local.yml playbooks/site.yml"

pytestmark = pytest.mark.timeout(2400)


def users_environment() -> list[str]:
    """Return a user's own variables for pip and a proxy, without any that name wheels on this machine."""
    names = [name for name in os.environ if name.startswith("PIP_") and name != "PIP_FIND_LINKS"]
    names += [name for name in os.environ if name.lower() in {"http_proxy", "https_proxy", "no_proxy"}]
    return [argument for name in sorted(names) for argument in ("--env", name)]


class Machine:
    def run(self, command: str, *, check: bool = True) -> str:
        return docker(
            "exec", *users_environment(), "--workdir", "/root/muster", MACHINE, "bash", "-c", command, check=check
        )  # fmt: skip


def checkout_archive() -> bytes:
    """Return the files of the working tree, without what git ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    present = b"\0".join(name for name in listing.split(b"\0") if name and (ROOT / name.decode()).exists())
    tar = ["tar", "--create", "--null", "--files-from=-", "--owner=0", "--group=0"]
    return subprocess.run(tar, cwd=ROOT, input=present, stdout=subprocess.PIPE, check=True).stdout


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    remove_host(MACHINE)  # of a run that was killed
    run_host(MACHINE, bare_root(), "--volume", f"{CA_BUNDLE}:{CA_BUNDLE}:ro")
    try:
        wait_until_booted(MACHINE)
        docker(
            "exec",
            "--interactive",
            MACHINE,
            "sh",
            "-c",
            "mkdir /root/muster && tar -xC /root/muster",
            stdin=checkout_archive(),
        )
        yield Machine()
    finally:
        remove_host(MACHINE)


def recap(output: str) -> dict[str, int]:
    counts = re.search(r"^localhost\s*:(.*)$", output, re.MULTILINE)
    assert counts, output[-3000:]
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", counts[1])}


def test_the_demo_runs_to_its_end(machine: Machine) -> None:
    output = machine.run("./dev demo")
    lines = output.splitlines()
    assert "BACKENDAI_CLUSTER_HOSTS=main1,sub1,sub2" in lines
    assert "BACKENDAI_CLUSTER_HOST=main1" in lines
    for sub in ("sub1", "sub2"):
        assert lines[lines.index(f"$ muster exec demo -- ssh {sub} hostname") + 1] == sub
    assert "./dev clean-demo" in output
    assert re.search(r"\bdemo\b.*\bRUNNING\b", machine.run("muster ls"))
    # Below /root, where its user may not look, the server would end again and again.
    assert "Install Muster where all users can read it" in re.sub(r"\s+", " ", output)
    assert machine.run("systemctl is-active muster muster-web", check=False) == "active\ninactive"


def test_the_demo_runs_again_and_provisioning_changes_nothing(machine: Machine) -> None:
    output = machine.run("./dev demo")
    counts = recap(output)
    assert (counts["changed"], counts["failed"]) == (0, 0)
    assert "$ muster exec demo -- ssh sub2 hostname\nsub2" in output


def test_provisioning_says_what_the_daemon_cannot_do(machine: Machine) -> None:
    """The daemon has root's ssh keys, not those of the user who provisions: all looked well without a word."""
    inventory = (
        "{all: {children: {control: {hosts: {localhost: {ansible_connection: local}}}, agents: {hosts: AGENTS}}}}"
    )
    agents = "{localhost: {ansible_connection: local}, far: {ansible_host: 127.0.0.1, ansible_port: 1}}"
    machine.run(f"echo '{inventory.replace('AGENTS', agents)}' >/root/two.yml")
    provide = PLAYBOOK.replace("inventory/local.yml", "/root/two.yml") + " --tags control_node --limit localhost"
    output = re.sub(r"\s+", " ", machine.run(provide))
    assert "`muster doctor` on localhost finds:" in output
    assert re.search(r"agent far: unreachable: [^;]*Connection refused[^;]*; mend it, then run `muster pass`", output)


def test_clean_demo_leaves_nothing(machine: Machine) -> None:
    machine.run("./dev clean-demo")
    assert machine.run("docker ps --all --quiet") == ""
    assert machine.run("docker network ls --quiet --filter label=muster.cluster") == ""
    assert machine.run("docker image ls --quiet muster/default") == ""
    left = machine.run(
        "ls -d /etc/muster /var/lib/muster /run/muster /opt/muster /srv/muster /var/log/muster 2>/dev/null", check=False
    )
    assert left == ""
    assert machine.run("systemctl list-unit-files --no-legend 'muster*'", check=False) == ""
    assert machine.run("find /etc /usr/local -name '*muster*'") == ""


def test_check_mode_tells_the_truth_where_nothing_is_installed(machine: Machine) -> None:
    machine.run(
        "systemctl stop docker docker.socket containerd;"
        "DEBIAN_FRONTEND=noninteractive apt-get purge -y docker.io containerd mmdebstrap python3-apt openssh-client;"
        "rm -rf /etc/docker /var/lib/apt/lists/*"
    )
    before = machine.run("dpkg -l; ls -lR /etc /opt /srv")
    output = machine.run(PLAYBOOK + " --check --diff")
    counts = recap(output)
    assert counts["failed"] == 0
    for promise in (
        "docker.io",
        "/etc/docker/daemon.json",
        "muster/default:latest would be made",
        "a first runtime would be built",
    ):
        assert promise in output
    assert machine.run("dpkg -l; ls -lR /etc /opt /srv") == before
