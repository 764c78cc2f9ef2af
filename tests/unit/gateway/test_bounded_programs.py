"""The programs by which hosts are reached, as Ansible starts them."""

import os
import subprocess
import threading

from muster.ansible_gateway.bounded_programs import Allowance, bounded_pipes
from tests.waiting import PATIENCE_S, eventually


def test_a_program_has_not_ended_before_all_that_it_printed_can_be_read(monkeypatch):
    """Ansible reads what is there when an ssh has ended: why it was refused, or the module's result."""
    may_pass = threading.Event()
    monkeypatch.setattr(Allowance, "grants", lambda _allowance, _size: may_pass.wait(PATIENCE_S))
    with bounded_pipes(1 << 20):
        program = subprocess.Popen(["sh", "-c", "echo refused >&2; exit 255"], stderr=subprocess.PIPE)
    assert program.stderr is not None
    os.set_blocking(program.stderr.fileno(), False)
    assert program.wait(PATIENCE_S) == 255
    assert program.poll() is None
    may_pass.set()
    eventually(program.poll, lambda code: code == 255)
    assert program.stderr.read() == b"refused\n"


def test_a_program_has_ended_though_another_holds_its_output_open():
    """As a connection does that ssh leaves in the background."""
    with bounded_pipes(1 << 20):
        program = subprocess.Popen(["sh", "-c", "echo done; sleep 1000 & echo $! >&2"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)  # fmt: skip
    assert program.stdout is not None
    assert program.stderr is not None
    try:
        eventually(program.poll, lambda code: code == 0)
        assert program.stdout.readline() == b"done\n"
    finally:
        os.kill(int(program.stderr.readline()), 9)


def test_input_and_output_of_a_program_are_whole():
    with bounded_pipes(1 << 24):
        program = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    content = bytes(range(256)) * 20_000
    assert program.communicate(content) == (content, None)
    assert program.returncode == 0
