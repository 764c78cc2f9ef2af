"""Our rules are called before any rule of others accepts a packet, and `check` says when they are not."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.modules.agent_code import ROOT

CONFIGURATION: dict[str, object] = {"backend": "iptables", "agents": {}, "control": {}, "closed": [], "open": []}
CONFIGURATION |= {"peers": [], "swarm": False, "manager_port": 2377, "data_port": 4789}
CALL = "-A FORWARD -j MUSTER-FORWARD"
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


def forward(run: Run) -> list[str]:
    return run("iptables", "--list-rules", "FORWARD").stdout.splitlines()[1:]


def put(run: Run, *rules: str) -> None:
    for rule in rules:
        done = run("iptables", "--wait", *rule.split())
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "rules",
    [
        ["-I FORWARD -j ACCEPT"],
        ["-I FORWARD -i eth0 -j RETURN"],
        ["-N site", "-N site-lan", "-A site-lan -s 10.0.0.0/8 -j ACCEPT", "-A site -j site-lan", "-I FORWARD -j site"],
        ["-N site", "-A site -j ACCEPT", "-I FORWARD -g site"],
        ["-A FORWARD -j DOCKER-USER", "-I FORWARD -j ACCEPT"],
    ],
)
def test_a_rule_before_ours_that_accepts_is_told_and_put_behind_them(run: Run, firewall: Run, rules: list[str]) -> None:
    put(run, *rules)
    checked = firewall("check")
    assert (checked.returncode, checked.stderr) == (1, "")
    assert f"+ipv4 {CALL}\n" in checked.stdout
    before = forward(run)
    assert firewall("apply").returncode == 0
    assert forward(run) == [CALL, *(rule for rule in before if rule != CALL)]
    assert firewall("check").returncode == 0


@pytest.mark.parametrize(
    "rules",
    [
        ["-A FORWARD -j ACCEPT"],
        # As an engine that starts later does.
        ["-I FORWARD -j ACCEPT", "-I FORWARD -j DOCKER-USER"],
        # Refusals, and what only counts.
        ["-N site", "-A site -s 10.0.0.0/8 -j DROP", "-A site -j RETURN", "-I FORWARD -j site"],
        ["-I FORWARD -s 10.0.0.0/8", "-I FORWARD -m comment --comment -j,ACCEPT -j DROP"],
    ],
)
def test_rules_that_let_nothing_past_ours_stay_as_they_are(run: Run, firewall: Run, rules: list[str]) -> None:
    put(run, *rules)
    before = forward(run)
    assert firewall("check").stdout == ""
    assert firewall("apply").returncode == 0
    assert forward(run) == before


def test_a_host_without_our_call_is_told_even_where_the_engines_chain_comes_first(run: Run, firewall: Run) -> None:
    put(run, "-D FORWARD -j MUSTER-FORWARD", "-A FORWARD -j DOCKER-USER")
    assert f"+ipv4 {CALL}\n" in firewall("check").stdout
    assert firewall("apply").returncode == 0
    assert firewall("check").returncode == 0
