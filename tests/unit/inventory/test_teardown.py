"""playbooks/teardown.yml: what it makes of its variables. molecule/teardown has what it removes."""

import json
from pathlib import Path

import pytest

from tests.running.forked_ansible import LOCAL, ROOT, ansible


@pytest.mark.parametrize("name", ["teardown_end_sessions", "teardown_engine", "teardown_record", "teardown_control"])
def test_what_is_neither_true_nor_false_is_refused_before_anything_is_looked_at(tmp_path: Path, name):
    inventory = {"all": {"children": {"agents": {"hosts": {"a1": LOCAL}}, "control": {"hosts": {"c1": LOCAL}}}}}
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory), encoding="utf-8")
    playbook = ROOT / "playbooks/teardown.yml"
    done = ansible("ansible-playbook", "-i", tmp_path / "hosts.yml", "-e", f"{name}=ture", "--check", playbook)
    assert done.returncode != 0
    assert f"{name}: 'ture' is neither true nor false; write true or false" in done.stdout
    assert done.stdout.count("TASK [") == 1
