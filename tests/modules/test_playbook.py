"""The modules as Ansible runs them: bundled with what they import, by the agent's own Python."""

import ast
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.modules.agent_code import ROOT
from tests.modules.cluster_on_host import session

AGENT_CODE = [
    *sorted((ROOT / "plugins/module_utils").rglob("*.py")),
    *sorted((ROOT / "library").glob("agent_*.py")),
]
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - agent_converge:
        manifest: "{{ lookup('ansible.builtin.file', manifest_file) }}"
      register: converged
    - agent_report:
        cluster: "{{ cluster }}"
      register: reported
    - assert:
        that:
          - converged.changed == (not ansible_check_mode and expect_change)
          - reported.inventory.resource_group == 'tried' and reported.inventory.address == 'agent'
          - converged.inventory == reported.inventory
          - reported.report.kernels | map('combine', meanwhile) == converged.report.kernels | map('combine', meanwhile)
      vars:
        meanwhile: {use: null}  # a kernel goes on using its host
"""


def _play(cluster, folder, sessions, *options, python=None, **variables):
    manifest_file = folder / "manifest.json"
    manifest_file.write_text(json.dumps(cluster.manifest(*sessions)))
    (folder / "play.yml").write_text(PLAY)
    variables |= {
        "ansible_connection": "local",
        "ansible_python_interpreter": python or sys.executable,
        "cluster": cluster.name,
        "manifest_file": str(manifest_file),
        "agent_attributes": {"resource_group": "tried", "address": "{{ inventory_hostname }}"},
    }
    return subprocess.run(
        [
            Path(sysconfig.get_path("scripts"), "ansible-playbook"),
            *("-i", "agent,", "-e", json.dumps(variables), *options, folder / "play.yml"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
    )


def test_plays_launch_a_gang_show_the_difference_keep_the_keys_secret_and_refuse_what_is_out_of_date(cluster, tmp_path):
    gang = session(["main1", "sub1"])
    done = _play(cluster, tmp_path, [gang], "--diff", "-vvv", expect_change=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{gang['network']['name']}-sub1" in done.stdout
    assert "running, generation 1" in done.stdout
    assert "PRIVATE KEY" not in done.stdout + done.stderr
    cluster.generation = 2
    again = _play(cluster, tmp_path, [gang], expect_change=False)
    assert again.returncode == 0, again.stdout + again.stderr
    cluster.generation = 1
    done = _play(cluster, tmp_path, [], expect_change=False)
    assert done.returncode == 2
    assert "this agent has accepted generation 2 already: the manifest is out of date" in done.stdout + done.stderr


def test_the_modules_run_on_the_oldest_python_that_an_agent_may_have(cluster, tmp_path):
    python = next(path for path in _pythons() if path.exists())
    done = _play(cluster, tmp_path, [session()], python=str(python), expect_change=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _pythons():
    """Yield Python 3.9 if the machine has one, otherwise its own: the syntax of 3.9 is checked everywhere."""
    yield Path("/usr/bin/python3.9")
    yield from Path.home().glob(".pyenv/versions/3.9.*/bin/python3.9")
    yield Path("/usr/bin/python3")


@pytest.mark.parametrize("path", AGENT_CODE, ids=lambda path: path.name)
def test_code_for_agents_has_the_syntax_of_the_oldest_python(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
