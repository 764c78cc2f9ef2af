"""Tasks in threads of their play: what they say and do is what they would in processes of Ansible's own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from muster.ansible_gateway.loaded_ansible import LoadedAnsible
from tests.unit.gateway.test_loaded_ansible import ENVIRONMENT
from tests.waiting import PATIENCE_S, eventually

HOSTS = [f"h{number:02}" for number in range(30)]
EACH_SAYS_ITS_NAME = """
- hosts: all
  gather_facts: false
  vars:
    said: "{{ inventory_hostname | of_site(number) }}"
  tasks:
    - ansible.builtin.raw: "echo {{ said }}; exit {{ (number == 7) | int }}"
      when: number != 8
    - ansible.builtin.debug:
        msg: "{{ said }}"
"""
TOO_LONG = """
- hosts: h00,h01
  gather_facts: false
  tasks:
    - ansible.builtin.raw: "{{ 'sleep 3600.1 & exec sleep 3600.2' if number == 0 else 'echo done' }}"
      timeout: "{{ (number == 0) | int }}"
"""
LEAVES = """
- hosts: h00
  gather_facts: false
  tasks:
    - ansible.builtin.raw: "{{ 'echo' | leave }}"
"""
# It takes long to load, so that all hosts ask for it meanwhile.
FILTERS = """
import sys, time
time.sleep(0.5)

class FilterModule:
    def filters(self):
        return {"of_site": lambda name, number: f"{name} of {number}", "leave": lambda value: sys.exit(3)}
"""
Ran = Callable[[str], tuple[int, list[str]]]


def playbooks(directory: Path, command: list[str]) -> Ran:
    """Return a function that runs a playbook by the command: its code, and what it says. That of hosts has no order."""

    def run(playbook: str) -> tuple[int, list[str]]:
        (directory / "playbook.yml").write_text(playbook, encoding="utf-8")
        done = subprocess.run(
            [*command, "-i", "hosts.ini", "playbook.yml"],
            cwd=directory,
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, sorted((done.stdout + done.stderr).splitlines())

    return run


@pytest.fixture
def directory(tmp_path):
    hosts = "".join(f"{name} ansible_connection=local number={number}\n" for number, name in enumerate(HOSTS))
    (tmp_path / "hosts.ini").write_text(f"[all]\n{hosts}", encoding="utf-8")
    (tmp_path / "filter_plugins").mkdir()
    (tmp_path / "filter_plugins" / "of_site.py").write_text(FILTERS, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def loaded_ansible() -> LoadedAnsible:
    return LoadedAnsible()


@pytest.fixture
def by_us(directory, loaded_ansible) -> Ran:
    """Runs playbooks as visits run."""
    return playbooks(directory, loaded_ansible.command())


@pytest.fixture
def by_ansible(directory) -> Ran:
    return playbooks(directory, [str(Path(sys.executable).parent / "ansible-playbook")])


def processes(directory: Path, argument: str) -> list[int]:
    """Return the processes in this directory with this argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if argument.encode() in arguments and (process / "cwd").readlink() == directory:
                found.append(int(process.name))
    return found


def test_many_hosts_say_what_they_say_by_ansible_itself(by_us, by_ansible):
    code, lines = by_us(EACH_SAYS_ITS_NAME)
    assert (code, lines) == by_ansible(EACH_SAYS_ITS_NAME)
    assert sum(re.search(r"msg: h\d\d of \d+$", line) is not None for line in lines) == len(HOSTS) - 1


def test_a_task_that_takes_too_long_fails_alone_and_its_program_ends(by_us, by_ansible, directory):
    code, lines = by_us(TOO_LONG)
    eventually(lambda: not processes(directory, "3600.2"))
    assert any("Timed out after 1 second(s)." in line for line in lines)
    assert any(line.startswith("h01 ") and "ok=1" in line for line in lines)
    assert (code, lines) == by_ansible(TOO_LONG)
    # What was left in the background, and what Ansible itself leaves.
    for process in processes(directory, "3600.1") + processes(directory, "3600.2"):
        os.kill(process, signal.SIGKILL)


def test_a_worker_that_dies_breaks_the_play_off(by_us, by_ansible):
    code, lines = by_us(LEAVES)
    assert code == by_ansible(LEAVES)[0] != 0
    assert any("A worker was found in a dead state" in line for line in lines)
