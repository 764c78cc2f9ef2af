"""Measure a whole decision: one `schedule()` call over a queue, in CPU seconds.

    .venv/bin/python bench/schedule.py [--case a-multi|a-single|b-multi|b-single|c|c-unchanged|d|e|f] [--json]
    .venv/bin/python bench/schedule.py --growth agents|queue|shapes|gangs|chains|users|preemption [--json]

Each case runs in a process of its own, which schedules a tiny queue first, so that the time to start Python and to load
the compiled code does not count. Without arguments every case runs, and then the growth.

- a-multi, a-single: 1,000 sessions of 4 kernels (4 cpu, 16 GiB, 1 GPU) fill 500 agents of 8 GPUs exactly.
- b-multi, b-single: 4,000 of them fill 2,000 agents exactly.
- c: 100,000 pending sessions of mixed shapes on 5,000 agents of 8 GPUs, far more than fit.
- c-unchanged: the next pass over such a queue, when all that fits has been placed and 100,000 sessions still wait.
- d: 1,000,000 sessions of one kernel on 5,000 agents.
- e: gangs of two kernels of 8 GPUs each, which fill 1,213 agents of 8 GPUs.
- f: 200,000 pending sessions of the same mixed shapes on 20,000 agents.

Growth schedules queues of several sizes, and fits the exponent of the CPU time against the size:

- agents: one queue on 250 to 4,000 agents;
- queue: 12,500 to 100,000 sessions on 1,000 agents;
- shapes: up to 10,000 sessions of which no two ask for the same, on 1,000 agents;
- gangs: 50 gangs of up to 1,000 kernels, on 1,000 agents;
- chains: up to 20,000 sessions in chains of 100, each of which starts when the one before has ended;
- users: 20,000 sessions of up to 5,000 users in the order `drf`, on 250 agents;
- preemption: a gang of 16 kernels of 8 GPUs for which some of up to 4,096 running sessions have to end.
"""

import argparse
import gc
import json
import math
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.core.agents.agent import Agent
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import Kernel, Session, kernel_count, kernels_of
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.committed import committed
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.schedule import schedule
from muster.core.spec.session_spec import SessionSpec
from muster.service.scheduler.plugins import load_order, load_placement
from tests.simulated.hosts import host_of
from tests.strategies.agents import observed

NOW = 1_763_724_000.0
_GIB = 1 << 30
_SPAN = {"cluster_mode": "multi-node"}
_QUARTER = {"cluster_size": 4, "cpu": 4, "mem": "16G", "gpu": 1}
# Weight and shape; an agent has 8 GPUs of 2 units, 64 cores and 512 GiB.
_MIXED: Sequence[tuple[int, dict[str, Any]]] = (
    (20, {"cpu": 2, "mem": "8G", "fgpu": 0.5, "time_limit": "1h"}),
    (10, {"cpu": 4, "mem": "16G", "fgpu": 1}),
    (20, {"cpu": 6, "mem": "32G", "gpu": 1, "time_limit": "4h"}),
    (10, {"cpu": 8, "mem": "64G", "gpu": 1}),
    (10, {"cluster_size": 2, "cpu": 8, "mem": "64G", "gpu": 2, **_SPAN}),
    (8, {"cluster_size": 4, "cpu": 8, "mem": "64G", "gpu": 1, "time_limit": "12h", **_SPAN}),
    (5, {"cluster_size": 8, "cpu": 16, "mem": "128G", "gpu": 4, "time_limit": "1-00:00:00", **_SPAN}),
    (5, {"cluster_size": 4, "cpu": 48, "mem": "384G", "gpu": 8, **_SPAN}),
    (7, {"cpu": 16, "mem": "64G"}),
    (5, {"cluster_size": 16, "cpu": 2, "mem": "4G", **_SPAN}),
)
"""Weight and shape of the sessions of case c."""


def agents(count: int, *, cpus: int = 64, mem: int = 512 * _GIB, units: int = 0) -> tuple[Agent, ...]:
    names = (f"gpu-{number:05}" for number in range(count))
    hardware: dict[str, Any] = {"cpus": cpus, "mem_bytes": mem, "gpus": 8, "units_per_gpu": units, "swarm": "manager"}
    return tuple(observed(name, *host_of(name, **hardware)) for name in names)


@cache
def _shape(text: str) -> tuple[SessionSpec, tuple[Kernel, ...]]:
    spec = SessionSpec.model_validate({"name": "bench", "image": "bench", **json.loads(text)})
    return spec, kernels_of(spec, tuple(map(str, range(kernel_count(spec)))), spec.image)


def session(number: int, request: dict[str, Any], owner: str = "ada") -> Session:
    """Return a session as the store would: no two sessions share a spec, a kernel or its slots."""
    spec, kernels = _shape(json.dumps(request, sort_keys=True))
    own = tuple(replace(k, id=f"{number:08x}-{k.rank:04x}", slots=replace(k.slots)) for k in kernels)
    return Session(own[0].id, f"s{number}", owner, spec.model_copy(), own, NOW - 3600 + number / 1000)


def alike(count: int, request: dict[str, Any]) -> list[Session]:
    return [session(number, request) for number in range(count)]


def mixed(count: int) -> list[Session]:
    random = Random(42)
    shapes = [shape for _, shape in _MIXED]
    weights = [weight for weight, _ in _MIXED]
    chosen = random.choices(shapes, weights, k=count)
    return [
        session(number, {**shape, "priority": random.choice((30, 50, 50, 50, 70))}, f"user{random.randrange(200)}")
        for number, shape in enumerate(chosen)
    ]


def all_unlike(count: int) -> list[Session]:
    return [session(number, {"cpu": 1 + number % 16, "mem": 4 * _GIB + number * (1 << 20)}) for number in range(count)]


def chains(count: int) -> list[Session]:
    """Return sessions in chains of 100: each depends on the one before it."""
    made: list[Session] = []
    for number in range(count):
        after = {"after_ok": [made[-1].id]} if number % 100 else {}
        made.append(session(number, {"cpu": 2, "mem": "8G", **after}))
    return made


def _of_users(users: int) -> Snapshot:
    shape = {"cpu": 6, "mem": "32G", "gpu": 1, "time_limit": "4h"}
    queue = [session(number, shape, f"user{number % users}") for number in range(20_000)]
    drf = SchedulingPolicy(GroupPolicy(order=load_order("drf"), placement=load_placement("fragmentation")))
    return replace(snapshot(agents(250, units=2), queue), policy=drf)


def _preempting(count: int) -> Snapshot:
    """Return a full cluster of preemptible sessions that began at different times, and a gang that is ahead of them."""
    shape = {"cpu": 4, "mem": "16G", "gpu": 1, "preemptible": True, "priority": 10}
    full = snapshot(agents(count // 8), alike(count, shape))
    runs = committed(full, schedule(full)).sessions
    aged = [replace(running, started_at=NOW - number * 7919 % 100_000) for number, running in enumerate(runs)]
    gang = session(count, {"cluster_size": 16, "cpu": 8, "mem": "64G", "gpu": 8, **_SPAN})
    return replace(snapshot(full.agents, [*aged, gang]), policy=policy(preemption=True))


def policy(*, preemption: bool = False) -> SchedulingPolicy:
    """Return the default policy."""
    return SchedulingPolicy(GroupPolicy(placement=load_placement("fragmentation"), preemption=preemption))


def snapshot(known: Sequence[Agent], sessions: Sequence[Session]) -> Snapshot:
    return Snapshot(tuple(known), tuple(sessions), NOW, policy=policy())


def _unchanged(memory: PassMemory) -> Snapshot:
    """Return an unchanged queue. The pass before is made here, with the same `memory`, as a daemon would."""
    first = snapshot(agents(5000, units=2), mixed(170_000))
    after = committed(first, schedule(first))
    running, waiting = list(after.placed), list(after.pending[:100_000])
    if len(waiting) < 100_000:
        raise SystemExit(f"only {len(waiting)} sessions were left waiting")
    again = snapshot(first.agents, [*running, *waiting])
    schedule(again, memory)
    return replace(again, now=again.now + 1)


def _filled(count: int, request: dict[str, Any]) -> Snapshot:
    return snapshot(agents(count, cpus=32, mem=128 * _GIB), alike(count * 2, request))


CASES: dict[str, Callable[[PassMemory], Snapshot]] = {
    "a-multi": lambda _: _filled(500, {**_QUARTER, **_SPAN}),
    "a-single": lambda _: _filled(500, _QUARTER),
    "b-multi": lambda _: _filled(2000, {**_QUARTER, **_SPAN}),
    "b-single": lambda _: _filled(2000, _QUARTER),
    "c": lambda _: snapshot(agents(5000, units=2), mixed(100_000)),
    "c-unchanged": _unchanged,
    "d": lambda _: snapshot(agents(5000, cpus=200, mem=400 * _GIB), alike(1_000_000, {"cpu": 1, "mem": "2G"})),
    "f": lambda _: snapshot(agents(20_000, units=2), mixed(200_000)),
    "e": lambda _: snapshot(agents(1213), alike(606, {"cluster_size": 2, "cpu": 32, "mem": "256G", "gpu": 8, **_SPAN})),
}
GROWTH: dict[str, tuple[Sequence[int], Callable[[int], Snapshot]]] = {
    "agents": (
        (250, 500, 1000, 2000, 4000),
        lambda count: snapshot(agents(count, units=2), mixed(10_000)),
    ),
    "queue": (
        (12_500, 25_000, 50_000, 100_000),
        lambda count: snapshot(agents(1000, units=2), mixed(count)),
    ),
    "shapes": ((1250, 2500, 5000, 10_000), lambda count: snapshot(agents(1000, units=2), all_unlike(count))),
    "gangs": (
        (125, 250, 500, 1000),
        lambda kernels: snapshot(
            agents(1000, units=2), alike(50, {"cluster_size": kernels, "cpu": 2, "mem": "4G", **_SPAN})
        ),
    ),
    "chains": ((2500, 5000, 10_000, 20_000), lambda count: snapshot(agents(250, units=2), chains(count))),
    "users": ((625, 1250, 2500, 5000), _of_users),
    "preemption": ((512, 1024, 2048, 4096), _preempting),
}


def measured(before: Snapshot, memory: PassMemory) -> dict[str, Any]:
    schedule(snapshot(agents(2, units=2), mixed(20)))
    # Collect now: a daemon's long-lived objects have been through the garbage collector already, too.
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    plan = schedule(before, memory)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    pending = len(before.pending)
    return {
        "agents": len(before.agents),
        "sessions": pending,
        "kernels": sum(len(waiting.kernels) for waiting in before.pending),
        "placed": len(plan.placements),
        "cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
        "sessions_per_cpu_s": round(pending / cpu),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _case(name: str) -> dict[str, Any]:
    memory = PassMemory()
    return {"case": name, **measured(CASES[name](memory), memory)}


def _grown(arguments: tuple[str, int]) -> dict[str, Any]:
    name, count = arguments
    return {"growth": name, "of": count, **measured(GROWTH[name][1](count), PassMemory())}


def apart(run: Callable[[Any], dict[str, Any]], argument: object) -> dict[str, Any]:
    """Run in a fresh process, so that its peak of memory is its own and only the compiled code's cache is warm."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, (argument,))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Return the slope of the least-squares line through the logarithms."""
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(t) for t in times]).slope


def growth(name: str, runs: int) -> Iterator[dict[str, Any]]:
    sizes = GROWTH[name][0]
    results = [
        min((apart(_grown, (name, size)) for _ in range(runs)), key=lambda result: result["cpu_s"]) for size in sizes
    ]
    fitted = exponent(sizes, [result["cpu_s"] for result in results])
    yield from ({**result, "exponent": round(fitted, 2)} for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--growth", choices=GROWTH, action="append")
    parser.add_argument("--runs", type=int, default=1, help="of each case; the run with the median CPU time is printed")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    everything = not options.case and not options.growth
    results = []
    for name in options.case or (CASES if everything else ()):
        runs = sorted((apart(_case, name) for _ in range(options.runs)), key=lambda result: result["cpu_s"])
        results.append(runs[len(runs) // 2])
        _print(results[-1:], options)
    for name in options.growth or (GROWTH if everything else ()):
        grown = list(growth(name, options.runs))
        results += grown
        _print(grown, options)
    if options.json:
        sys.stdout.write(json.dumps(results, indent=2) + "\n")


def _print(results: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    for result in results if not options.json else ():
        print("  ".join(f"{key} {value}" for key, value in result.items()), flush=True)


if __name__ == "__main__":
    main()
