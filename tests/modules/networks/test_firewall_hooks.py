"""Our rules are called before rules of others that accept packets, and `check` says when they are not."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.modules.agent_code import ROOT

CONFIGURATION: dict[str, object] = {"backend": "iptables", "agents": {}, "control": {}, "closed": [], "open": []}
CONFIGURATION |= {"peers": [], "swarm": False, "manager_port": 2377, "data_port": 4789}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def program() -> str:
    """Return the program as hosts get it. Ansible makes it in another process, which this one must not become."""
    make = "import sys; from tests.shipped_program import as_shipped; sys.stdout.write(as_shipped(sys.argv[1]))"
    path = "roles/session_firewall/files/muster_firewall.py"
    done = subprocess.run([sys.executable, "-c", make, path], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


@pytest.fixture
def run() -> Iterator[Run]:
    """Yield a function that runs a command in a network namespace of its own, which has no rules yet."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()

        def run_there(*command: str) -> subprocess.CompletedProcess[str]:
            there = ("nsenter", f"--net=/proc/{holder.pid}/ns/net", *command)
            return subprocess.run(there, capture_output=True, text=True, check=False)

        yield run_there
        holder.kill()


@pytest.fixture
def firewall(tmp_path: Path, program: str, run: Run) -> Run:
    """Return a function that runs `muster-firewall` there, where the rules have been applied once."""
    (tmp_path / "muster-firewall.json").write_text(json.dumps(CONFIGURATION))
    for path in ("/etc/muster-firewall.json", "/run/muster-firewall.lock"):
        program = program.replace(path, f"{tmp_path}/{path.rpartition('/')[2]}")

    def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-IS", "-c", program, *arguments)

    assert run_program("check").returncode == 1
    for _ in range(2):
        applied = run_program("apply")
        assert (applied.returncode, applied.stderr) == (0, "")
        assert run_program("check").stdout == ""
    return run_program


def rules_in(run: Run, table: str, chain: str) -> list[str]:
    return run("iptables", "--table", table, "--list-rules", chain).stdout.splitlines()[1:]


def put(run: Run, *rules: str) -> None:
    for rule in rules:
        done = run("iptables", "--wait", *rule.split())
        assert done.returncode == 0, done.stderr


SITE = ["-N site", "-N site-lan", "-A site-lan -s 10.0.0.0/8 -j ACCEPT", "-A site -j site-lan"]


@pytest.mark.parametrize(
    ("table", "chain", "rules"),
    [
        ("security", "FORWARD", ["-t security -I FORWARD -j ACCEPT"]),
        ("security", "FORWARD", ["-t security -I FORWARD -i eth0 -j RETURN"]),
        ("security", "FORWARD", [*(f"-t security {rule}" for rule in (*SITE, "-I FORWARD -j site"))]),
        ("filter", "INPUT", [*SITE, "-I INPUT -g site"]),
        ("filter", "DOCKER-USER", [*SITE, "-I DOCKER-USER -j site"]),
    ],
)
def test_a_rule_before_ours_that_accepts_is_told_and_put_behind_them(
    run: Run, firewall: Run, table: str, chain: str, rules: list[str]
) -> None:
    put(run, *rules)
    (call,) = (rule for rule in rules_in(run, table, chain) if "MUSTER" in rule)
    checked = firewall("check")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert checked.stdout.endswith(f"+ipv4 {'security ' if table == 'security' else ''}{call}\n")
    before = rules_in(run, table, chain)
    assert firewall("apply").returncode == 0
    assert rules_in(run, table, chain) == [call, *(rule for rule in before if rule != call)]
    assert firewall("check").returncode == 0


@pytest.mark.parametrize(
    "rules",
    [
        # Of the engine, at any moment.
        ["-I FORWARD -o docker0 -j ACCEPT", "-I FORWARD -j DOCKER-USER"],
        ["-I FORWARD -i docker0 -j ACCEPT"],
        # Refusals, and what only counts.
        ["-N site", "-A site -s 10.0.0.0/8 -j DROP", "-A site -j RETURN", "-I INPUT -j site"],
        ["-I INPUT -s 10.0.0.0/8", "-I INPUT -m comment --comment -j,ACCEPT -j DROP"],
    ],
)
def test_rules_that_let_nothing_past_ours_stay_as_they_are(run: Run, firewall: Run, rules: list[str]) -> None:
    put(run, *rules)
    before = run("iptables-save").stdout
    assert firewall("check").stdout == ""
    assert firewall("apply").returncode == 0
    assert without_comments(run("iptables-save").stdout) == without_comments(before)


def without_comments(saved: str) -> list[str]:
    """Return the lines of iptables-save without those that say when it ran."""
    return [line for line in saved.splitlines() if not line.startswith("#")]


def test_nothing_of_ours_stays_after_remove(run: Run, firewall: Run) -> None:
    assert firewall("remove").returncode == 0
    for program in ("iptables-save", "ip6tables-save"):
        assert "MUSTER" not in run(program).stdout
