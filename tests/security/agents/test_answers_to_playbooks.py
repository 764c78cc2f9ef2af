"""A host that was broken into answers a playbook without end: the control node keeps a bounded part of it."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running.forked_ansible import ansible

Play = Callable[[str, str], subprocess.CompletedProcess[str]]
# Ansible asks its ssh for an option first. The honest one has this machine for a host.
ENDLESS_SSH = r"""#!/bin/sh
[ "$#" -gt 2 ] || exit 0
exec 3<&0
cat <&3 >/dev/null &
exec yes "$(head -c 4000 /dev/zero | tr '\0' x)"
"""
HONEST_SSH = r"""#!/bin/sh
[ "$#" -gt 2 ] || exit 0
for last; do :; done
exec sh -c "$last"
"""
ENDLESS_SFTP = r"""#!/bin/sh
read -r _ _ target
exec cat /dev/zero >"$(echo "$target" | tr -d \')"
"""
MIB = 1 << 20


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Return what runs a task on a host that is reached by such programs."""
    for name, program in (("endless", ENDLESS_SSH), ("honest", HONEST_SSH), ("sftp", ENDLESS_SFTP)):
        (tmp_path / name).write_text(program, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "hosts").write_text(
        f"far ansible_host=192.0.2.1 ansible_sftp_executable={tmp_path}/sftp ansible_ssh_transfer_method=sftp\n",
        encoding="utf-8",
    )

    def run(ssh: str, task: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "play.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n    - {task}\n", "utf-8")
        monkeypatch.setenv("ANSIBLE_SSH_EXECUTABLE", str(tmp_path / ssh))
        return ansible("ansible-playbook", "-i", tmp_path / "hosts", tmp_path / "play.yml")

    return run


@pytest.mark.parametrize("task", ["raw: hostname", "ansible.builtin.setup:"])
def test_an_answer_without_end_is_broken_off(play: Play, task: str) -> None:
    done = play("endless", task)
    assert done.returncode in {2, 4}, done.stdout[-2000:] + done.stderr[-2000:]
    assert "a host's answer is longer than 16 MiB, and was broken off" in " ".join(done.stderr.split())


def test_an_archive_without_end_is_broken_off(play: Play, tmp_path: Path) -> None:
    target, source = tmp_path / "fetched", tmp_path / "archive"
    source.write_text("small", encoding="utf-8")
    done = play("honest", f"image_fetch: {{src: {source}, dest: {target}, flat: true, max_size: 1M}}")
    assert done.returncode == 2, done.stdout[-2000:] + done.stderr[-2000:]
    assert not target.exists() or target.stat().st_size <= MIB
