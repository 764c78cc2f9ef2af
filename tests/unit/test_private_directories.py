"""Private directories are gone when their process is, however that ended."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from muster import private_directories
from muster.private_directories import private_directory
from tests.waiting import eventually

HOLDS = """
import sys
from muster.private_directories import private_directory
with private_directory() as directory:
    (directory / "id_ed25519").write_text("secret")
    print(directory, flush=True)
    sys.stdin.read()
"""
OBSERVES = """
import sys
from contextlib import contextmanager
from pathlib import Path
from muster.ansible_gateway import gateway
private_directory = gateway.private_directory

@contextmanager
def shown():
    with private_directory() as directory:
        print(directory, flush=True)
        yield directory

gateway.private_directory = shown
gateway.AnsibleGateway(gateway.Inventory(Path(sys.argv[1])), "muster").observe((), print)
"""
# An agent whose module takes its time.
PYTHON = """#!/bin/sh
touch {began}
while [ ! -e {go_on} ]; do sleep 0.02; done
echo '{{}}'
"""


@pytest.fixture
def holder():
    """Yield a process with a private directory, and the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_files_of_a_killed_process_are_removed_by_the_next_visit(holder):
    process, directory = holder
    process.kill()
    process.wait()
    assert (directory / "id_ed25519").exists()
    with private_directory() as own:
        assert not directory.exists()
        assert own.stat().st_mode & 0o777 == 0o700
    assert not own.exists()


def test_files_of_a_living_process_stay(holder):
    process, directory = holder
    with private_directory():
        assert (directory / "id_ed25519").exists()
    process.stdin.close()
    process.wait()
    assert not directory.exists()


def test_another_users_files_stay(holder, monkeypatch):
    process, directory = holder
    process.kill()
    process.wait()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        private_directories.remove_leftovers()
    assert directory.exists()
    private_directories.remove_leftovers()
    assert not directory.exists()


@pytest.mark.parametrize("name", ["muster-bench-x1y2z3a4", "muster-app-x1y2z3a4", "other-x1y2z3a4"])
def test_nothing_else_is_taken_for_a_leftover(tmp_path, monkeypatch, name):
    monkeypatch.setattr(private_directories, "_parent", lambda: tmp_path)
    (tmp_path / name).mkdir()
    (tmp_path / "muster-x1y2z3a4").write_text("a file", encoding="utf-8")
    (tmp_path / "muster-x1y2z3a5").symlink_to(tmp_path / name)
    before = set(tmp_path.iterdir())
    private_directories.remove_leftovers()
    assert set(tmp_path.iterdir()) == before


def test_a_parent_that_may_be_written_but_not_listed_will_do(tmp_path, monkeypatch):
    def unlisted(_self):
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", unlisted)
    with private_directory(tmp_path, ".copy-") as own:
        assert own.parent == tmp_path


def test_a_file_system_without_locks_will_do_and_keeps_what_is_left(tmp_path, monkeypatch):
    def unlocked(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unlocked)
    left = tmp_path / ".copy-x1y2z3a4"
    left.mkdir()
    with private_directory(tmp_path, ".copy-") as own:
        assert set(tmp_path.iterdir()) == {own, left}


def test_files_of_a_playbook_outlive_its_killed_control_node_and_no_more(tmp_path):
    began, go_on = tmp_path / "began", tmp_path / "go_on"
    python = tmp_path / "python"
    python.write_text(PYTHON.format(began=began, go_on=go_on), encoding="utf-8")
    python.chmod(0o755)
    hosts = {"far": {"ansible_connection": "local", "ansible_python_interpreter": str(python)}}
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}), encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", OBSERVES, str(inventory)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        directory = Path(process.stdout.readline().strip())
        eventually(began.exists)
        process.kill()
    with private_directory():
        assert directory.exists()
    go_on.touch()

    def is_gone():
        with private_directory():
            return not directory.exists()

    eventually(is_gone)
