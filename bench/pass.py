"""Measure the time of a pass, against the number of agents that it visits and of those without news.

    .venv/bin/python bench/pass.py [--touched 1,10,50,200] [--idle 0,200,1000,5000] [--runs 5] [--json]

Run as root on a machine that `playbooks/site.yml` has provisioned. The agents are stand-ins: names in an inventory that
all mean this machine, each with a cluster of its own on it. So the real playbooks and modules do their whole work on
the real engine. There are no containers, since their time is the engine's (bench/launch.py measures it).

- touched: a session is placed on each of N agents and ended; the pass visits them and records N ends.
- observed: one observation of N agents without anything to do.
- idle: a pass that visits one agent while N others have nothing to do, as a daemon makes it that has made one before;
  and the time of the first decision, which reads all agents.

The stand-ins share this machine's cores with the control node: `touched` and `observed` include the agents' own work.
"""

import argparse
import json
import os
import platform
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.ansible_gateway.gateway import AnsibleGateway
from muster.ansible_gateway.templates import Templates
from muster.contract.manifest import Manifest
from muster.core.launch.manifest import LaunchPolicy
from muster.core.lifecycle import transitions
from muster.core.lifecycle.answer import AnswerHandler
from muster.core.lifecycle.ledger import TurnRules
from muster.core.model.session import Allocation
from muster.daemon import PLAYS_AHEAD
from muster.keys import make_key_pair
from muster.service.queue.worker import QueueWorker, WorkerDependencies
from muster.service.secrets.secrets import Secrets
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session

if TYPE_CHECKING:
    from muster.core.lifecycle.facts import Fact

CLUSTER = f"bench-{secrets.token_hex(3)}"
STATE = Path("/var/lib/muster/agent")
_TO_START_PLAYS_S = 1.0


class StandIns:
    """The real gateway, with a cluster of its own for each agent, since all of them share one engine."""

    def __init__(self, inventory: Path) -> None:
        self._gateway = AnsibleGateway(inventory, CLUSTER, ahead=PLAYS_AHEAD)
        self.close = self._gateway.close

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        self._gateway.observe(agent_ids, on_answer, without)

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        own = {key: manifest.model_copy(update={"cluster": f"{CLUSTER}-{key}"}) for key, manifest in manifests.items()}
        self._gateway.converge(own, on_answer)


class Bench:
    """A control node with stand-ins, and with a store on a file system in memory."""

    def __init__(self, directory: Path, agents: int) -> None:
        self.names = [f"agent-{number:04}" for number in range(agents)]
        hosts = {name: {"ansible_connection": "local", "ansible_host": "127.0.0.1"} for name in self.names}
        inventory = directory / "inventory.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": {"agents": {"hosts": hosts}}}}))
        self.store = Store(f"sqlite:///{directory / 'muster.db'}")
        self._gateway = StandIns(inventory)
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
                rules=TurnRules(lost_after_s=3600, slow_after_s=3600),
            ),
            self.inbox.put,
        )
        self.store.save_agents([make_agent(name) for name in self.names])
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


def bench_touched(directory: Path, touched: int) -> dict[str, float]:
    bench = Bench(directory, touched)
    bench.end_a_session_on(bench.names)
    touched_s = seconds(bench.work)
    left = [session for session in bench.store.search() if session.state != "TERMINATED"]
    if left:
        raise SystemExit(f"{len(left)} sessions did not end")
    bench.worker.observe_all()
    observed_s = seconds(bench.work)
    bench.close()
    return {"touched": touched_s, "observed": observed_s}


def bench_idle(directory: Path, idle: int) -> dict[str, float]:
    bench = Bench(directory, idle + 1)
    decision_s = seconds(bench.worker.decide)
    bench.end_a_session_on(bench.names[:1])
    bench.work()
    # From here on it is at work, as a daemon is: it has loaded Ansible, and keeps plays that wait.
    time.sleep(_TO_START_PLAYS_S)
    bench.end_a_session_on(bench.names[:1])
    touched_one_s = seconds(bench.work)
    bench.close()
    return {"touched_one": touched_one_s, "decision": decision_s}


def rounds(kind: Callable[[Path, int], dict[str, float]], counts: list[int], runs: int) -> dict[int, dict[str, Any]]:
    """Run the counts in turns, so that the machine's noise falls on all of them."""
    figures: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    for number in range(runs):
        for count in counts:
            with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="muster-bench-") as directory:
                for name, value in kind(Path(directory), count).items():
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
    try:
        result = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "runs": given.runs,
            "touched": rounds(bench_touched, [int(n) for n in given.touched.split(",")], given.runs),
            "idle": rounds(bench_idle, [int(n) for n in given.idle.split(",")], given.runs),
        }
    finally:
        for path in STATE.glob(f"{CLUSTER}-*"):
            shutil.rmtree(path)
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
