"""playbooks/drain.yml: check mode foretells what the run then changes."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.running.forked_ansible import LOCAL, ROOT, ansible

# As `muster agent show` and `muster agent drain` answer for an agent without sessions.
MUSTER = """#!{python}
import json, sys
words, before = sys.argv[1:], {before!r}
if "show" in words:
    print(json.dumps({{"id": "a1", "drain_reason": before, "sessions": []}}))
else:
    reason = words[words.index("--reason") + 1].strip()
    print(json.dumps([{{"id": "a1", "drain_reason": reason, "changed": reason != before, "sessions": []}}]))
"""


@pytest.mark.parametrize(
    ("before", "given", "changes"),
    [
        (None, {}, 1),
        ("new driver", {"drain_reason": " new driver"}, 0),
        ("new driver", {"drain_reason": "new disk"}, 1),
    ],
)
def test_check_mode_foretells_a_drain(tmp_path: Path, before, given, changes):
    muster = tmp_path / "muster"
    muster.write_text(MUSTER.format(python=sys.executable, before=before), encoding="utf-8")
    muster.chmod(0o755)
    plays = yaml.safe_load((ROOT / "playbooks/drain.yml").read_text(encoding="utf-8"))
    plays[0]["become"] = False
    (tmp_path / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    control = {"hosts": {"c1": {**LOCAL, "control_node_muster_executable": str(muster)}}}
    inventory = {"all": {"children": {"agents": {"hosts": {"a1": LOCAL}}, "control": control}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    words = ("-i", tmp_path / "hosts.yml", "-e", json.dumps({"drain_agents": "a1", **given}), tmp_path / "play.yml")
    for mode in (["--check"], []):
        done = ansible("ansible-playbook", *mode, *words)
        assert done.returncode == 0, done.stdout
        assert sum(map(int, re.findall(r"changed=(\d+)", done.stdout))) == changes, done.stdout
