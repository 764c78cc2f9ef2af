"""Measure the time, CPU time and memory of commands, each as a whole process, on stores of two sizes.

    .venv/bin/python -m bench.commands [--runs 7] [--waiting 5000] [--only NAME] [--alone] [--engine] [--json]

The commands take turns in each run, so that the machine's noise falls on all of them. Printed are the medians of the
wall time and the CPU time, child processes included, and the largest peak of memory. If a command server answers, as it
does beside a daemon, its work counts in the wall time only. With `--alone` the same commands also run without one.

- small: 3 agents, 20 sessions that wait, 5 that run and one that ended with a log.
- large: `--waiting` sessions that wait for 100 full agents.

With `--engine`, as root on a machine that `playbooks/site.yml` has provisioned: `muster exec S -- true` against
`docker exec`, with the daemon at work.
"""

import argparse
import gzip
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.cli.command_server import command_server
from muster.core.model.heartbeat import Heartbeat, Worker
from muster.core.model.session import KernelLog, SessionState
from muster.core.model.wait import Wait, WaitCode
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

MUSTER = str(Path(sys.executable).parent / "muster")
COMPLETING = {"_MUSTER_COMPLETE": "bash_complete", "COMP_WORDS": "muster re", "COMP_CWORD": "1"}
ARGUMENTS = ("--cpu", "1", "--mem", "1G")

STARTER = """
import os, sys, time
quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
began = time.monotonic()
process = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(process, 0)
print([status, time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss])
"""


@dataclass(frozen=True)
class Case:
    """A command with its environment and its limits."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    target_s: float | None
    target_mib: float | None = None


@dataclass(frozen=True)
class Taken:
    """The time and memory of one process; `cpu_s` includes its child processes."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def taken(case: Case) -> Taken:
    """Run a command once and return its time and memory. Ends the program if the command fails."""
    # Started by a small process, since a child's peak of memory begins with its parent's.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", STARTER, *case.command],
        env=case.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
    )
    status, wall_s, cpu_s, peak_kib = json.loads(done.stdout)
    if status:
        raise SystemExit(f"{' '.join(case.command)}: exit code {os.waitstatus_to_exitcode(status)}")
    return Taken(wall_s, cpu_s, peak_kib / 1024)


@contextmanager
def control_node(waiting: int, agents: int) -> Iterator[dict[str, str]]:
    """Yield the environment of a control node with a fresh heartbeat and a command server."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as directory:
        state = Path(directory) / "state"
        state.mkdir(mode=0o700)
        names = {"state_dir": "state", "inventory": "inventory.yml", "catalog": "images.yml"}
        config = Path(directory) / "muster.yml"
        paths = {key: str(Path(directory) / name) for key, name in names.items()}
        config.write_text(yaml.safe_dump({**paths, "unworked_after_s": 86400}), encoding="utf-8")
        store = Store(f"sqlite:///{state / 'muster.db'}")
        fill(store, waiting, agents)
        store.close()
        os.environ["MUSTER_CONFIG"] = str(config)
        with command_server() as compiled:
            compiled()
            yield dict(os.environ)


def without_server(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without a command server: it is found by the settings file, to which this names a link."""
    config = Path(environment["MUSTER_CONFIG"])
    other = config.with_name("same.yml")
    if not other.exists():
        other.symlink_to(config)
    return {**environment, "MUSTER_CONFIG": str(other)}


def fill(store: Store, waiting: int, agents: int) -> None:
    now = time.time()
    names = [f"agent-{number:03}" for number in range(agents)]
    store.agents.save([replace(make_agent(name, cpus=8), observed_at=now) for name in names])
    made = [_waiting(number, now) for number in range(waiting)]
    # They leave one CPU of eight, and waiting sessions request two.
    running = [placed_on(_waiting(waiting + number, now, cpu=7.0), name) for number, name in enumerate(names)]
    ended = replace(make_session(waiting + agents + 1, name="ended"), state=SessionState.TERMINATED, ended_at=now)
    for start in range(0, len(made), 1000):
        store.add(made[start : start + 1000])
    store.add([*running, ended])
    store.keep_logs([KernelLog(ended.id, "main1", gzip.compress(b"one line\n" * 1000))])
    waits = [Wait(WaitCode.BUSY, f"no room: {number} of 64 CPUs are free") for number in range(50)]
    store.save_waits({session.id: waits[number % len(waits)] for number, session in enumerate(made)})
    store.heartbeats.save(Heartbeat(now, Worker.DAEMON, platform.node(), os.getpid()))


def _waiting(number: int, now: float, cpu: float = 2.0):  # noqa: ANN202 - a session
    shape = {"cpu": cpu, "mem": f"{1 + number % 7}G"} if cpu == 2.0 else {"cpu": cpu, "mem": "1G"}
    made = make_session(number + 1, name=f"train-{number}", owner=f"user-{number % 20}", command="true", **shape)
    return replace(made, submitted_at=now - 10_000 + number)


def cases(small: Mapping[str, str], large: Mapping[str, str], waiting: int, *, alone: bool) -> list[Case]:
    short = [
        Case(" ".join(arguments), [MUSTER, *arguments], without_server(small), 0.12, 40)
        for arguments in (("version",), ("--help",), ("completion", "bash"))
    ]
    short.append(Case("completing a command", [MUSTER], {**without_server(small), **COMPLETING}, 0.12, 40))
    about_sessions = [
        (0.25, small, ("ls",)),
        (0.25, small, ("show", "train-3")),
        (0.25, small, ("agents",)),
        (0.25, small, ("logs", "ended")),
        (0.25, small, ("submit", *ARGUMENTS)),
        (0.5, large, ("why", f"train-{waiting // 2}")),
        (0.5, large, ("queue",)),
    ]
    for target_s, on, arguments in about_sessions:
        name = " ".join(arguments)
        short.append(Case(name, [MUSTER, *arguments], on, target_s))
        if alone:
            short.append(Case(f"{name}, no daemon", [MUSTER, *arguments], without_server(on), None))
    return short


@contextmanager
def running_session() -> Iterator[list[Case]]:
    """Yield `muster exec` and `docker exec` as cases, in a session on this machine."""
    from tests.control_node import ControlNode, provision  # noqa: PLC0415 - they need the engine

    done = provision()
    if done.code:
        raise SystemExit(done.out + done.err)
    with tempfile.TemporaryDirectory() as directory:
        node = ControlNode(Path(directory) / "node", f"bench-{secrets.token_hex(4)}", {"observe_interval_s": 60})
        node.start_daemon()
        try:
            name = f"bench-{secrets.token_hex(4)}"
            node.run("submit", "--name", name, "--cpu", "0.05", "--mem", "128M", "--wait")
            container = node.show(name)["kernels"][0]["container_id"]
            yield [
                Case("docker exec", ["/usr/bin/docker", "exec", "-i", container, "true"], os.environ, None),
                Case("exec S -- true", [MUSTER, "exec", name, "--", "true"], node.environment, None),
            ]
        finally:
            node.end_everything()
            node.stop_daemon()
            node.remove_traces()


def measured(all_cases: Sequence[Case], runs: int) -> dict[str, list[Taken]]:
    samples: dict[str, list[Taken]] = {case.name: [] for case in all_cases}
    for number in range(runs + 1):
        for case in all_cases:
            one = taken(case)
            if number:  # the first run warms caches
                samples[case.name].append(one)
        print(f"run {number} of {runs}", file=sys.stderr)
    return samples


def row(case: Case, samples: Sequence[Taken]) -> dict[str, object]:
    walls = [one.wall_s for one in samples]
    wall, peak = statistics.median(walls), max(one.peak_mib for one in samples)
    missed = (case.target_s and wall > case.target_s) or (case.target_mib and peak > case.target_mib)
    return {
        "command": case.name,
        "wall_s": round(wall, 3),
        "least_s": round(min(walls), 3),
        "most_s": round(max(walls), 3),
        "cpu_s": round(statistics.median(one.cpu_s for one in samples), 3),
        "peak_mib": round(peak, 1),
        "target": "-"
        if case.target_s is None
        else f"{case.target_s:g} s" + (f", {case.target_mib} MiB" * bool(case.target_mib)),
        "missed": bool(missed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--only", metavar="NAME", help="only commands whose line begins with NAME")
    parser.add_argument("--alone", action="store_true", help="also without a daemon")
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    # An installation has compiled modules. With this variable, each process would compile ours again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    load = os.getloadavg()[0]
    if given.engine:
        with running_session() as chosen:
            rows = [
                row(case, samples) for case, samples in zip(chosen, measured(chosen, given.runs).values(), strict=True)
            ]
    else:
        with control_node(20, 5) as small, control_node(given.waiting, 100) as large:
            chosen = [
                case
                for case in cases(small, large, given.waiting, alone=given.alone)
                if case.name.startswith(given.only or "")
            ]
            rows = [
                row(case, samples) for case, samples in zip(chosen, measured(chosen, given.runs).values(), strict=True)
            ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{os.cpu_count()} cores, load {load:.1f}, {platform.platform()}, medians of {given.runs} runs")
    print(f"{'command':<36}{'wall s':>8}{'least':>8}{'most':>8}{'CPU s':>8}{'MiB':>8}  target")
    for one in rows:
        figures = "".join(f"{one[key]:>8}" for key in ("wall_s", "least_s", "most_s", "cpu_s", "peak_mib"))
        print(f"{one['command']:<36}{figures}  {one['target']}{': missed' if one['missed'] else ''}")


if __name__ == "__main__":
    main()
