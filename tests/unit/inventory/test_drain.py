"""playbooks/drain.yml: what it makes of its variables, and that check mode foretells what the run then changes."""

import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.done import Done
from tests.running.forked_ansible import LOCAL, ROOT, ansible

# As `muster agent show` and `muster agent drain` answer. A wait is in vain.
MUSTER = """#!{python}
import json, sys
words, before, sessions = sys.argv[1:], {before!r}, {sessions!r}
sessions = [{{"name": name, "state": "RUNNING"}} for name in sessions]
if "--wait" in words:
    sys.exit("muster: still waiting for s1 on a1; --end-sessions ends them")
if "show" in words:
    print(json.dumps({{"id": words[2], "drain_reason": before, "sessions": sessions}}))
else:
    reason = words[words.index("--reason") + 1].strip()
    with open({record!r}, "a") as record:
        print(words[2], reason, file=record)
    print(json.dumps([{{"id": words[2], "drain_reason": reason, "changed": reason != before, "sessions": sessions}}]))
"""


@dataclass(frozen=True)
class Drain:
    """The playbook, and a `muster` that does nothing."""

    directory: Path

    def run(self, *arguments: str, before: str | None = None, sessions: Sequence[str] = ()) -> Done:
        muster = self.directory / "muster"
        record = str(self.directory / "drained")
        text = MUSTER.format(python=sys.executable, before=before, sessions=list(sessions), record=record)
        muster.write_text(text, encoding="utf-8")
        muster.chmod(0o755)
        plays = yaml.safe_load((ROOT / "playbooks/drain.yml").read_text(encoding="utf-8"))
        plays[0]["become"] = False
        (self.directory / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
        control = {"hosts": {"c1": {**LOCAL, "control_node_muster_executable": str(muster)}}}
        agents = {"hosts": dict.fromkeys(("a1", "gpu-01", "gpu-02"), LOCAL)}
        inventory = {"all": {"children": {"agents": agents, "control": control}}}
        (self.directory / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
        done = ansible("ansible-playbook", "-i", self.directory / "hosts.yml", *arguments, self.directory / "play.yml")
        return Done(done.returncode, done.stdout, done.stderr)

    def drained(self) -> list[str]:
        """Return each agent that was drained, with its reason."""
        record = self.directory / "drained"
        return record.read_text(encoding="utf-8").splitlines() if record.exists() else []


@pytest.fixture
def drain(tmp_path: Path) -> Drain:
    return Drain(tmp_path)


@pytest.mark.parametrize(
    ("before", "given", "changes"),
    [
        (None, {}, 1),
        ("new driver", {"drain_reason": " new driver"}, 0),
        ("new driver", {"drain_reason": "new disk"}, 1),
    ],
)
def test_check_mode_foretells_a_drain(drain, before, given, changes):
    variables = json.dumps({"drain_agents": "a1", **given})
    for mode in (["--check"], []):
        done = drain.run(*mode, "-e", variables, before=before)
        assert done.code == 0, done.out
        assert sum(map(int, re.findall(r"changed=(\d+)", done.out))) == changes, done.out


def test_the_manuals_command_gives_its_reason_as_a_whole(drain):
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    (line,) = re.findall(
        r"^ansible-playbook -i INVENTORY (playbooks/drain\.yml -e drain_agents=gpu-01,.*)$", text, re.MULTILINE
    )
    _, *arguments = shlex.split(line)
    assert drain.run(*arguments).code == 0
    assert drain.drained() == ["gpu-01 new driver", "gpu-02 new driver"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"drain_agents": 5}, "drain_agents: 5 is neither a name nor a list; name agents, as in -e drain_agents=a1,"),
        ({"drain_agents": "a1,b1"}, "drain_agents: b1 is no host of the group `agents`; name agents,"),
        ({"drain_agents": ""}, "drain_agents: it is missing; name agents,"),
        ({"drain_wait": "ture"}, "drain_wait: 'ture' is neither true nor false; write true or false"),
        ({"drain_end_sessions": ""}, "drain_end_sessions: '' is neither true nor false; write true or false"),
        ({"drain_timeout_s": "2m"}, "drain_timeout_s: 2m is no number of seconds; write one such as 600"),
        ({"drain_timeout_s": -3}, "drain_timeout_s: -3 is no number of seconds; write one such as 600"),
        ({"drain_reason": ["disks"]}, "drain_reason: ['disks'] is not text; put it in quotes"),
    ],
)
def test_a_variable_that_cannot_be_is_refused_before_anything_is_drained(drain, given, problem):
    done = drain.run("-e", json.dumps({"drain_agents": "a1", **given}))
    assert done.code != 0
    assert problem in done.out
    assert drain.drained() == []


def test_a_wait_in_vain_fails_with_one_line_and_the_variable_that_helps(drain):
    done = drain.run("-e", "drain_agents=a1", "-e", "drain_wait=yes", sessions=["s1"])
    assert done.code != 0
    (line,) = (line for line in done.out.splitlines() if line.startswith("[ERROR]"))
    assert line.endswith("still waiting for s1 on a1; -e drain_end_sessions=true ends them")
    assert "stdout_lines" not in done.out


def test_check_mode_says_that_sessions_would_be_ended(drain):
    end = ("--check", "-e", "drain_agents=a1", "-e", "drain_end_sessions=true")
    assert "a1 would be drained; on it: s1, which would be ended" in drain.run(*end, sessions=["s1"]).out
    assert 'a1 would be drained; on it: nothing"' in drain.run(*end).out
