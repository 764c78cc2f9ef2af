"""Systemd's slices of kernels: which of them a run may stop that no session of its cluster has."""

import pytest

from tests.modules.agent_code import kernel_cgroup

SLICE = "muster-lab1_5e55_1_main1.slice"
SYSTEMCTL = """#!/bin/sh
echo "$@" >>"$0.log"
"""


@pytest.fixture
def mount(tmp_path):
    return tmp_path / "cgroup"


@pytest.fixture
def systemctl(tmp_path, mount, monkeypatch):
    """Return a function that says what systemd was told."""
    program = tmp_path / "bin/systemctl"
    (mount / "muster.slice" / SLICE).mkdir(parents=True)
    program.parent.mkdir()
    program.write_text(SYSTEMCTL, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(kernel_cgroup, "KEY_ROOT", tmp_path / "keys")
    monkeypatch.setattr(kernel_cgroup, "hierarchies", lambda: kernel_cgroup.Hierarchies(None, None, True, (mount,)))

    def said():
        log = program.with_suffix(".log")
        return log.read_text(encoding="utf-8") if log.exists() else ""

    return said


@pytest.fixture
def stopped(systemctl):
    """Return a function that sweeps a cluster without sessions, and returns what systemd was told."""

    def sweep(cluster):
        kernel_cgroup.sweep(cluster, ())
        return systemctl()

    return sweep


def test_kernels_whose_names_differ_in_dashes_alone_end_without_each_other(systemctl, mount):
    """The roles `ab` and `a-b` of one session; a stopped slice takes all with it that runs in it."""
    one, other = (kernel_cgroup.Place("lab1", "5e55", "1", name).slice for name in ("ab1", "a-b1"))
    for name in (one, other):
        (mount / "muster.slice" / name).mkdir()
    kernel_cgroup.remove_groups("lab1", "5e55", "ab1")
    assert systemctl() == f"stop {one}\n"
    assert "-" not in other.removeprefix("muster-")
    kernel_cgroup.remove_groups("lab1", "5e55", "a-b1")
    assert systemctl() == f"stop {one}\nstop {other}\n"


def test_what_a_killed_run_left_is_stopped(stopped):
    assert stopped("lab1") == f"stop {SLICE}\n"


def test_what_may_be_another_clusters_runs_on(stopped, tmp_path):
    """A slice's name has no dashes, so it does not tell `lab1` from `lab-1`."""
    (tmp_path / "keys/lab-1/5e55").mkdir(parents=True)
    assert stopped("lab1") == ""


def test_another_cluster_whose_slices_begin_otherwise_changes_nothing(stopped, tmp_path):
    (tmp_path / "keys/lab-10/5e55").mkdir(parents=True)
    assert stopped("lab1") == f"stop {SLICE}\n"
