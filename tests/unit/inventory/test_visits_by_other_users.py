"""Visits to an agent whose ssh user is not root: what visits do there, root alone may."""

import json
import re

import pytest

from tests.running.forked_ansible import ROOT, ansible


@pytest.mark.parametrize("playbook", ["observe", "converge", "folders"])
def test_a_visit_becomes_root_without_being_told_in_the_inventory(tmp_path, playbook):
    ssh = tmp_path / "ssh"
    script = f'echo "$@" >>{tmp_path}/log\nfor last; do :; done\nexec sh -c "$last"\n'
    ssh.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
    ssh.chmod(0o755)
    agent = {"ansible_host": "127.0.0.1", "ansible_user": "admin", "ansible_ssh_executable": str(ssh)}
    agent["ansible_become_exe"] = "no-such-sudo"
    inventory = {"agents": {"hosts": {"a1": agent}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory), encoding="utf-8")
    (tmp_path / "a1.json").write_text("{}", encoding="utf-8")
    given = {"manifest_dir": str(tmp_path), "folders_root": "/srv", "folders_state": "measured", "folders_entries": []}
    where = ("-i", tmp_path / "hosts.json", "-e", json.dumps(given))
    ansible("ansible-playbook", *where, ROOT / f"playbooks/{playbook}.yml")
    assert re.search("no-such-sudo .*-u root", (tmp_path / "log").read_text(encoding="utf-8"))
