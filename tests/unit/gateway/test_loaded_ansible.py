"""Playbooks in forks of a process that has loaded Ansible: like `ansible-playbook`, and none knows of another."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.ansible_gateway.loaded_ansible import LoadedAnsible
from muster.shipped_files import ansible_root
from tests.waiting import PATIENCE_S, eventually

PLAYBOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.assert:
        that: "{{ verdict }}"
        success_msg: "{{ lookup('ansible.builtin.env', 'WHO') }} in {{ playbook_dir }}"
"""
OF_A_MODULE = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.ping:
"""
WAITING = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.raw: "touch {{ began }}; while [ ! -e {{ go_on }} ]; do sleep 0.02; done; touch {{ finished }}"
"""
STARTS_AND_WAITS = """
import subprocess, sys
from muster.ansible_gateway.loaded_ansible import LoadedAnsible
subprocess.run([*LoadedAnsible().command(), *sys.argv[1:]])
"""
# As the gateway does, it names the configuration: it is read once, so it must not depend on a directory.
ENVIRONMENT = {
    "ANSIBLE_CONFIG": str(ansible_root() / "ansible.cfg"),
    "ANSIBLE_LOCALHOST_WARNING": "0",
    "ANSIBLE_INVENTORY_UNPARSED_WARNING": "0",
    "ANSIBLE_NOCOLOR": "1",
}


@pytest.fixture
def playbook(tmp_path):
    """Return a playbook in the directory, to be named relative to it."""
    (tmp_path / "playbook.yml").write_text(PLAYBOOK, encoding="utf-8")
    return "playbook.yml"


def run(command: list[str], *arguments: str, cwd: Path, who: str = "nobody") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, "WHO": who},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def fork_servers(of: int) -> list[int]:
    """Return the process ids of the fork servers that a process has started.

    A server that was started this moment may be missing: the kernel shows its command line a little later.
    """
    found = []
    for process in Path("/proc").iterdir():
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if process.name.isdigit() and parent == of and b"fork_server" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


@pytest.fixture(scope="module")
def loaded_ansible() -> LoadedAnsible:
    return LoadedAnsible()


@pytest.mark.parametrize("arguments", [("-e", "verdict=true"), ("-e", "verdict=false"), ("--no-such-option",)])
def test_a_playbook_says_and_returns_what_ansible_playbook_does(playbook, tmp_path, loaded_ansible, arguments):
    done = run(loaded_ansible.command(), playbook, *arguments, cwd=tmp_path)
    expected = run([str(Path(sys.executable).parent / "ansible-playbook")], playbook, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_each_playbook_has_its_own_environment_and_directory_and_ansible_is_loaded_once(playbook, tmp_path):
    before = fork_servers(os.getpid())
    ansible = LoadedAnsible()
    said = []
    for who in ("ada", "bob"):
        (tmp_path / who).mkdir()
        shutil.copy(tmp_path / playbook, tmp_path / who)
        said.append(run(ansible.command(), playbook, "-e", "verdict=true", cwd=tmp_path / who, who=who).stdout)
    for who, words in zip(("ada", "bob"), said, strict=True):
        assert f"{who} in {tmp_path / who}" in words
    assert len(fork_servers(os.getpid())) == len(before) + 1


def test_another_server_follows_one_that_was_killed(playbook, tmp_path):
    before = set(fork_servers(os.getpid()))
    ansible = LoadedAnsible()
    ansible.command()
    eventually(lambda: bool(set(fork_servers(os.getpid())) - before))
    (server,) = set(fork_servers(os.getpid())) - before
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    assert run(ansible.command(), playbook, "-e", "verdict=true", cwd=tmp_path).returncode == 0


def test_another_server_follows_one_whose_socket_is_gone(playbook, tmp_path):
    ansible = LoadedAnsible()
    Path(ansible.command()[-1]).unlink()
    assert run(ansible.command(), playbook, "-e", "verdict=true", cwd=tmp_path).returncode == 0


def test_the_server_ends_with_its_process_and_the_playbook_that_has_begun_is_finished(tmp_path):
    playbook = tmp_path / "waiting.yml"
    playbook.write_text(WAITING, encoding="utf-8")
    began, go_on, finished = (tmp_path / name for name in ("began", "go_on", "finished"))
    variables = [f"-e{path.name}={path}" for path in (began, go_on, finished)]
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS, str(playbook), *variables],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        eventually(began.exists)
        (server,) = fork_servers(process.pid)
        process.kill()
    eventually(lambda: not Path(f"/proc/{server}").exists())
    go_on.touch()
    eventually(finished.exists)


def test_a_module_is_packed_once_for_all_playbooks(tmp_path, monkeypatch):
    (tmp_path / "playbook.yml").write_text(OF_A_MODULE, encoding="utf-8")
    monkeypatch.setenv("ANSIBLE_DEBUG", "1")
    ansible = LoadedAnsible()
    first, second = (run(ansible.command(), "playbook.yml", cwd=tmp_path) for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert "ANSIBALLZ: Creating module" in first.stdout
    assert "ANSIBALLZ: Creating module" not in second.stdout
    assert "ANSIBALLZ: using cached module" in second.stdout
