"""Measure the time of a pass, against the number of agents that it visits and of those without news.

    .venv/bin/python bench/pass.py [--touched 1,10,50,200] [--idle 0,200,1000,5000] [--runs 5] [--json]

Run as root on a machine that `playbooks/site.yml` has provisioned. The agents are stand-ins: names in an inventory that
all mean this machine, each with a cluster of its own on it. So the real playbooks and modules do their whole work on
the real engine. There are no containers, since their time is the engine's (bench/launch.py measures it).

- touched: a session is placed on each of N agents and ended; the pass visits them and records N ends.
- observed: one observation of N agents without anything to do.
- idle: a pass that visits one agent while N others have nothing to do, as a daemon makes it that has made one before;
  and the time of the first decision, which reads all agents.

The stand-ins share this machine's cores with the control node, so the seconds of `touched` and `observed` include the
agents' own work. Their CPU time is counted apart: `control_ms_each` is what the control node uses for one agent.
"""

import argparse
import json
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.support.stand_ins import CpuGroups, StandIns, remove_traces, write_inventory
from muster.ansible_gateway.playbook import Inventory
from muster.ansible_gateway.templates import Templates
from muster.core.launch.manifest import LaunchPolicy
from muster.core.lifecycle import transitions
from muster.core.model.session import Allocation
from muster.core.scheduling.closures import could_hold
from muster.core.turn.ledger import TurnRules
from muster.daemon import PLAYS_AHEAD
from muster.keys import make_key_pair
from muster.service.queue.worker import QueueWorker, WorkerDependencies
from muster.service.secrets.secrets import Secrets
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session

if TYPE_CHECKING:
    from muster.core.turn.facts import Fact

CLUSTER = f"bench-{secrets.token_hex(3)}"
_TO_START_PLAYS_S = 1.0


class Bench:
    """A control node with stand-ins, and with a store on a file system in memory."""

    def __init__(self, directory: Path, agents: int, groups: CpuGroups) -> None:
        self.names = [f"agent-{number:04}" for number in range(agents)]
        inventory = directory / "inventory.yml"
        write_inventory(inventory, self.names, groups.interpreter, CLUSTER)
        self.store = Store(f"sqlite:///{directory / 'muster.db'}")
        self._gateway = StandIns(Inventory(inventory), CLUSTER, ahead=PLAYS_AHEAD)
        self.inbox: SimpleQueue[Fact] = SimpleQueue()
        self.worker = QueueWorker(
            WorkerDependencies(
                store=self.store,
                gateway=self._gateway,
                pull_image=_no_pull,
                render=Templates().render,
                make_key_pair=make_key_pair,
                launch_policy=LaunchPolicy(cluster=CLUSTER),
                start=lambda run: Thread(target=run, daemon=True).start(),
                with_policy=lambda snapshot: snapshot,
                secrets=Secrets(self.store.secrets, directory / "secrets.key"),
                rules=TurnRules(lost_after_s=3600, slow_after_s=3600, could_hold=could_hold),
            ),
            self.inbox.put,
        )
        self.store.agents.save([make_agent(name) for name in self.names])
        self._sessions = 0

    def end_a_session_on(self, names: list[str]) -> None:
        for name in names:
            self._sessions += 1
            session = replace(make_session(self._sessions), submitted_at=time.time())
            self.store.add([session])
            event = transitions.transition(
                session,
                transitions.SessionState.SCHEDULED,
                "placed",
                time.time(),
                placed_mode="single-node",
                kernels={session.id: {"allocation": Allocation(name)}},
            )
            self.store.apply([event])
            self.store.apply([transitions.end_by_user(self.store.get([session.id])[session.id], "bench", time.time())])

    def close(self) -> None:
        self._gateway.close()
        self.store.close()

    def work(self) -> None:
        """Make passes until nothing is left to do."""
        self.worker.decide()
        while not self.worker.is_idle:
            facts = [self.inbox.get(timeout=300)]
            while not self.inbox.empty():
                facts.append(self.inbox.get())
            self.worker.take(facts)
            self.worker.decide()
        if self.worker.failure is not None or self.worker.work.problems:
            raise SystemExit(f"a visit failed: {self.worker.failure or self.worker.work.problems}")


def _no_pull(*_: object) -> None:
    raise SystemExit("no session of this benchmark needs an image")


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 4)


class Spent:
    """What some work took: seconds by the clock, and CPU milliseconds for each agent."""

    def __init__(self, groups: CpuGroups, agents: int) -> None:
        self._groups, self._number = groups, agents

    def by(self, name: str, work: Callable[[], object]) -> dict[str, float]:
        control, agents = self._groups.control_s, self._groups.agents_s
        took = seconds(work)
        control, agents = self._groups.control_s - control, self._groups.agents_s - agents
        each = {"control_ms_each": 1000 * control / self._number, "agent_ms_each": 1000 * agents / self._number}
        return {name: took, **{f"{name}_{key}": round(value, 2) for key, value in each.items()}}


def bench_touched(directory: Path, touched: int, groups: CpuGroups) -> dict[str, float]:
    bench = Bench(directory, touched, groups)
    # As a daemon that is at work: it has loaded Ansible, and keeps plays that wait.
    bench.end_a_session_on(bench.names[:1])
    bench.work()
    time.sleep(_TO_START_PLAYS_S)
    spent = Spent(groups, touched)
    bench.end_a_session_on(bench.names)
    figures = spent.by("touched", bench.work)
    left = [session for session in bench.store.search() if session.state != "TERMINATED"]
    if left:
        raise SystemExit(f"{len(left)} sessions did not end")
    bench.worker.observe_all()
    figures |= spent.by("observed", bench.work)
    bench.close()
    return figures


def bench_idle(directory: Path, idle: int, groups: CpuGroups) -> dict[str, float]:
    bench = Bench(directory, idle + 1, groups)
    decision_s = seconds(bench.worker.decide)
    bench.end_a_session_on(bench.names[:1])
    bench.work()
    # From here on it is at work, as a daemon is: it has loaded Ansible, and keeps plays that wait.
    time.sleep(_TO_START_PLAYS_S)
    bench.end_a_session_on(bench.names[:1])
    touched_one_s = seconds(bench.work)
    bench.close()
    return {"touched_one": touched_one_s, "decision": decision_s}


def rounds(
    kind: Callable[[Path, int, CpuGroups], dict[str, float]], counts: list[int], runs: int, groups: CpuGroups
) -> dict[int, dict[str, Any]]:
    """Run the counts in turns, so that the machine's noise falls on all of them."""
    figures: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    for number in range(runs):
        for count in counts:
            with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="muster-bench-") as directory:
                found = kind(Path(directory), count, groups)
                for name, value in found.items():
                    figures[count].setdefault(name, []).append(value)
            print(f"round {number + 1}: {kind.__name__} {count} done", file=sys.stderr)
    return {
        count: {name: {"median": statistics.median(v), "min": min(v), "max": max(v)} for name, v in values.items()}
        for count, values in figures.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--touched", default="1,10,50,200", metavar="N,N")
    parser.add_argument("--idle", default="0,200,1000,5000", metavar="N,N")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="muster-bench-") as directory:
        # The same for all rounds: the fork server of the first one stays where it was started.
        groups = CpuGroups(CLUSTER, Path(directory))
        try:
            touched = [int(n) for n in given.touched.split(",") if n]
            idle = [int(n) for n in given.idle.split(",") if n]
            result = {
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "runs": given.runs,
                "touched": rounds(bench_touched, touched, given.runs, groups),
                "idle": rounds(bench_idle, idle, given.runs, groups),
            }
        finally:
            groups.close()
            remove_traces(CLUSTER)
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for kind in ("touched", "idle"):
        print(f"{kind} agents, seconds: median (min to max) of {given.runs}")
        for count, figures in result[kind].items():
            parts = [f"{name} {f['median']:.3f} ({f['min']:.3f} to {f['max']:.3f})" for name, f in figures.items()]
            print(f"  {count:>5}  " + "   ".join(parts))


if __name__ == "__main__":
    main()
