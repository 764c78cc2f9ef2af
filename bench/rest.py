"""Measure the daemon at rest: its CPU with a long queue and many agents, and how soon it knows what happens on one.

    .venv/bin/python -m bench.rest [--agents 1000] [--waiting 100000] [--window 60] [--intervals 3600,30] [--runs 5]

Run as root on a machine that `playbooks/site.yml` has provisioned. The daemon is the real one in a process of its own,
with a database on a file system in memory, and the agents are stand-ins (bench/support/stand_ins.py). All but one are
drained, and a session runs on that one, so that all others wait. For each interval between two observations of all
agents (`observe_interval_s`), in this order:

- `daemon`: its process; `control`: with all that it starts but the agents' modules; percent of a core over the window;
- `known`: the container of the session that runs is killed; seconds until the store says so, median of `--runs`.

An interval beyond the window shows what the daemon costs between two observations.
"""

import argparse
import json
import logging
import os
import platform
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import yaml

import muster.daemon
import muster.service.control_node
from bench.support.stand_ins import CpuGroups, StandIns, cluster_of, remove_traces, write_inventory
from muster.core.agents.agent import Agent
from muster.core.model.session import SessionState
from muster.engine.agent_engine import watch_deaths
from muster.engine.agent_program import AgentProgram
from muster.service.queue.observers import open_observer
from muster.service.wake import AGENTS, wake
from muster.settings import Settings, load_settings
from muster.store.store import Store
from tests.strategies.sessions import make_session

CLUSTER = f"rest-{secrets.token_hex(3)}"
IMAGE = "muster/default:latest"
# So that containers of another run, which have their names from these, are not in the way.
_FIRST = secrets.randbits(10) << 20
_AT_ONCE = 1000
_PATIENCE_S = 3600.0
_TICKS = os.sysconf("SC_CLK_TCK")
# After a change, the head of the queue is counted for twenty turns, each of which decides anew.
_TO_SETTLE_S = 90.0


def serve(config: Path) -> None:
    """Run the daemon with stand-ins: agents that have a cluster each, for visits, observers and watching deaths.

    SIGUSR1 lets it read the interval between observations again.
    """
    settings = load_settings(config)
    # Frozen, since no daemon of a site has such a signal.
    again = "observe_interval_s"
    signal.signal(signal.SIGUSR1, lambda *_: object.__setattr__(settings, again, getattr(load_settings(config), again)))
    logging.basicConfig(level=logging.INFO)

    def watch(agent: Agent, cluster: str, died: Callable[[str], None]) -> None:
        watch_deaths(agent, cluster_of(cluster, agent.id), died)

    def open_of(agent: Agent, cluster: str, folders_root: Path | None) -> AbstractContextManager[AgentProgram]:
        return open_observer(agent, cluster_of(cluster, agent.id), folders_root)

    muster.service.control_node.AnsibleGateway = StandIns
    muster.service.control_node.open_observer = open_of
    muster.daemon.watch_deaths = watch
    muster.daemon.run_daemon(settings)


class Daemon:
    """A daemon that works a store of its own."""

    def __init__(self, directory: Path, groups: CpuGroups, agents: int) -> None:
        self.names = [f"agent-{number:04}" for number in range(agents)]
        self._directory = directory
        self._groups = groups
        write_inventory(directory / "inventory.yml", self.names, groups.interpreter, CLUSTER)
        self.settings = self._configured(3600.0)
        self.store = Store(self.settings.database_url)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when all agents have answered it and have an open observer.

        No other observation comes before that: plays over many stand-ins take longer than the interval.
        """
        self.settings = self._configured(3600.0)
        began = time.time()
        log = (self._directory / "daemon.log").open("ab")
        serving = [sys.executable, "-m", "bench.rest", "--serve", str(self._directory / "muster.yml")]
        self._process = subprocess.Popen(serving, stdout=log, stderr=log, env=self._groups.environment)
        self.wait_for(lambda: sum(agent.observed_at > began for agent in self.store.agents.all()) == len(self.names))
        self.wait_for(lambda: self._groups.on_agents >= len(self.names))

    def observe_each(self, interval_s: float) -> None:
        """Let it observe all agents now, and then each so many seconds."""
        self._configured(interval_s)
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(1)
        wake(self.settings, self.store, AGENTS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit((self._directory / "daemon.log").read_text()[-4000:])
            time.sleep(0.5)

    def fill(self, waiting: int) -> None:
        """Let one session run, and others wait for its place."""
        for name in self.names[1:]:
            self.store.agents.drain(name, "bench")
        (open_one,) = (agent for agent in self.store.agents.all() if agent.id == self.names[0])
        cpu = open_one.capacity.cpu / 1000
        now = time.time()
        for start in range(0, waiting + 1, _AT_ONCE):
            numbers = range(start, min(start + _AT_ONCE, waiting + 1))
            self.store.add([_session(number, cpu, now) for number in numbers])
        wake(self.settings, self.store)
        self.wait_for(lambda: self.running is not None)

    @property
    def running(self) -> str | None:
        """Return the id of the session that runs."""
        found = self.store.search(states=[SessionState.RUNNING])
        return found[0].id if found else None

    def used(self, window_s: float) -> dict[str, float]:
        """Return the percentages of a core that are used within a window from now on."""
        began, before = time.monotonic(), self._cpu_s()
        time.sleep(window_s)
        took, after = time.monotonic() - began, self._cpu_s()
        return {name: round(100 * (after[name] - before[name]) / took, 2) for name in after}

    def _cpu_s(self) -> dict[str, float]:
        process = self._process
        fields = Path(f"/proc/{process.pid if process else 0}/stat").read_text().rsplit(")", 1)[1].split()
        own = (int(fields[11]) + int(fields[12])) / _TICKS
        return {"daemon": own, "control": self._groups.control_s, "agents": self._groups.agents_s}

    def known_after(self) -> float:
        """Kill the container of the session that runs; return the seconds until the store says that it ended."""
        self.wait_for(lambda: self.running is not None)
        session_id = self.running or ""
        (container,) = docker.from_env().containers.list(filters={"label": f"muster.session={session_id}"})
        container.kill()
        killed = time.monotonic()
        while self.store.get([session_id])[session_id].state is SessionState.RUNNING:
            if time.monotonic() > killed + _PATIENCE_S:
                sys.exit(f"the end of session {session_id} was never known")
            time.sleep(0.01)
        return round(time.monotonic() - killed, 2)

    def close(self) -> None:
        self.stop()
        self.store.close()

    def _configured(self, observe_interval_s: float) -> Settings:
        config = self._directory / "muster.yml"
        values = {
            "cluster": CLUSTER,
            "state_dir": str(self._directory / "state"),
            "inventory": str(self._directory / "inventory.yml"),
            "catalog": str(self._directory / "images.yml"),
            "observe_interval_s": observe_interval_s,
            # Many stand-ins on one machine answer late.
            "slow_after_s": 3600,
            "lost_after_s": 7200,
            "stop_grace_s": 1,
        }
        config.write_text(yaml.safe_dump(values))
        return load_settings(config)


def _session(number: int, cpu: float, now: float) -> Any:  # noqa: ANN401 - a Session
    spec = {"image": IMAGE, "cpu": cpu, "mem": "64M", "shm": "16M", "command": "sleep infinity"}
    made = make_session(_FIRST + number, name=f"rest-{number}", owner=f"user-{number % 20}", **spec)
    return replace(made, submitted_at=now - 1_000_000 + number)


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="muster-bench-") as directory:
        groups = CpuGroups(CLUSTER, Path(directory))
        daemon = Daemon(Path(directory), groups, given.agents)
        rows = []
        try:
            daemon.start()
            daemon.fill(given.waiting)
            for interval in map(float, given.intervals.split(",")):
                daemon.observe_each(interval)
                time.sleep(_TO_SETTLE_S)
                row = {"interval_s": interval, **daemon.used(given.window)}
                known = [daemon.known_after() for _ in range(given.runs)]
                rows.append({**row, "known_s": statistics.median(known), "known_runs_s": known})
                print(rows[-1], file=sys.stderr)
        finally:
            daemon.close()
            _remove_containers()
            groups.close()
            remove_traces(CLUSTER)
        return rows


def _remove_containers() -> None:
    client = docker.from_env()
    for container in client.containers.list(all=True, filters={"label": "muster.cluster"}):
        if container.labels["muster.cluster"].startswith(CLUSTER):
            container.remove(force=True)
    for network in client.networks.list(filters={"label": "muster.cluster"}):
        if network.attrs["Labels"]["muster.cluster"].startswith(CLUSTER):
            network.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--window", type=float, default=60.0)
    parser.add_argument("--intervals", default="3600,30", metavar="S,S")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return
    rows = measured(given)
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{os.cpu_count()} cores, {platform.platform()}, {given.agents} agents, {given.waiting} waiting")
    for row in rows:
        print(
            f"interval {row['interval_s']:>6.0f} s  daemon {row['daemon']:>6.2f} %  control {row['control']:>6.2f} %"
            f"  agents' modules {row['agents']:>6.2f} %  known after {row['known_s']} s {row['known_runs_s']}"
        )


if __name__ == "__main__":
    main()
