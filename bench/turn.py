"""Measure the control node's own part of a turn of the queue: read the store, decide, write. No agent is visited.

    .venv/bin/python -m bench.turn [--waiting 100000] [--agents 5000] [--runs 5] [--database URL] [--json]

Every agent is full, so that all sessions wait. Then, in each run, one thing changes, as by another process:

- `submit`: one more session is queued;
- `cancel`: one session in the middle of the queue is ended by its owner;
- `nothing`: only time passes.

`first` is the worker's first turn, which reads everything. Seconds by the wall clock and of CPU of this process, and
its memory. SQLite lies on a file system in memory; `--database` measures a PostgreSQL server, which must be empty.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from muster.core.launch.manifest import LaunchPolicy
from muster.core.lifecycle import transitions
from muster.core.model.session import Session
from muster.core.scheduling.closures import could_hold
from muster.core.turn.ledger import TurnRules
from muster.service.queue.worker import QueueWorker, WorkerDependencies
from muster.service.secrets.secrets import Secrets
from muster.store.store import Store
from tests.simulated.gateway import SimulatedGateway
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import fake_key_pair

if TYPE_CHECKING:
    from muster.core.turn.facts import Fact

_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Taken:
    """The time of one turn."""

    wall_s: float
    cpu_s: float


@contextmanager
def worker_of(waiting: int, agents: int, database: str | None) -> Iterator[tuple[QueueWorker, Store, list[Session]]]:
    """Yield a worker, another process' view of its store, and the sessions that wait."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-", dir="/dev/shm") as directory:
        url = database or f"sqlite:///{directory}/muster.db"
        others, own = Store(url), Store(url)
        now = time.time()
        queue = filled(others, waiting, agents, now)
        inbox: SimpleQueue[Fact] = SimpleQueue()
        shell = WorkerDependencies(
            store=own,
            gateway=SimulatedGateway(),
            pull_image=lambda *_: None,
            render=lambda *_: "",
            make_key_pair=fake_key_pair,
            launch_policy=LaunchPolicy(),
            start=lambda _run: None,
            with_policy=lambda snapshot: snapshot,
            secrets=Secrets(own.secrets, Path(directory) / "secrets.key"),
            rules=TurnRules(lost_after_s=1e9, slow_after_s=1e9, could_hold=could_hold),
        )
        try:
            yield QueueWorker(shell, inbox.put), others, queue
        finally:
            own.close()
            others.close()


def filled(store: Store, waiting: int, agents: int, now: float) -> list[Session]:
    """Fill a store with agents that are full, and return the sessions that wait: of seven shapes and twenty users."""
    names = [f"agent-{number:05}" for number in range(agents)]
    store.agents.save([replace(make_agent(name, cpus=8), observed_at=now) for name in names])
    queue = [_session(number, now) for number in range(waiting)]
    # They leave one CPU of eight, and those that wait request two.
    running = [placed_on(_session(waiting + number, now, cpu=7.0), name) for number, name in enumerate(names)]
    for sessions in (queue, running):
        for start in range(0, len(sessions), _AT_ONCE):
            store.add(sessions[start : start + _AT_ONCE])
    return queue


def _session(number: int, now: float, cpu: float = 2.0) -> Session:
    shape = {"cpu": cpu, "mem": f"{1 + number % 7}G" if cpu == 2.0 else "1G"}
    made = make_session(number + 1, name=f"train-{number}", owner=f"user-{number % 20}", command="true", **shape)
    return replace(made, submitted_at=now - 1_000_000 + number)


def timed(work: Callable[[], object]) -> Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


def measured(waiting: int, agents: int, runs: int, database: str | None) -> dict[str, list[Taken]]:
    with worker_of(waiting, agents, database) as (worker, others, queue):
        taken = {"first": [timed(worker.decide)]}
        for case in ("submit", "cancel", "nothing"):
            taken[case] = []
            for run in range(runs):
                if case == "submit":
                    others.add([_session(waiting + agents + 1 + run, time.time())])
                elif case == "cancel":
                    ended = others.get([queue[len(queue) // 2 + run].id])
                    others.apply([transitions.end_by_user(session, "", time.time()) for session in ended.values()])
                taken[case].append(timed(worker.decide))
        return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--agents", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--database", metavar="URL")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [
        {
            "case": case,
            "median_s": round(statistics.median(one.wall_s for one in taken), 3),
            "median_cpu_s": round(statistics.median(one.cpu_s for one in taken), 3),
            "runs_s": [round(one.wall_s, 3) for one in taken],
        }
        for case, taken in measured(given.waiting, given.agents, given.runs, given.database).items()
    ]
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{os.cpu_count()} cores, {platform.platform()}, medians of {given.runs} runs, {mib} MiB at the most")
    for row in rows:
        print(f"{row['case']:>8}  {row['median_s']:>7.3f} s  {row['median_cpu_s']:>7.3f} s of CPU  {row['runs_s']}")


if __name__ == "__main__":
    main()
