"""Measure how often the scheduler's predictions come true: nearest misses, suggestions, estimated starts.

    .venv/bin/python bench/reasons.py [--sessions 1000] [--seed 1] [--json]

Each case has a few agents, with running and waiting sessions, all drawn at random. Every session has a time limit and
ends at it. Cases are drawn until `--sessions` sessions that wait for capacity have been judged:

- nearest miss: true if the session fits once that agent has the missing resources free, and nothing else has changed;
- suggestion: true if the next decision starts the session with the suggested change;
- estimated start: compared with a simulation in which all sessions end at their time limits, no new ones come, and each
  end is followed by a decision. The mean error is printed as a part of the mean wait.
"""

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from muster.core.agents.agent import Agent
from muster.core.model.plan import Plan
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.committed import committed
from muster.core.scheduling.future import end_of
from muster.core.scheduling.placement import PlacementState, gang_of
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.counterfactual import what_would_help
from muster.service.scheduler.plugins import load_placement
from tests.strategies.agents import joined_agent
from tests.strategies.capacity import granted
from tests.strategies.sessions import make_session
from tests.strategies.values import GIB, NOW

_SUGGESTED_PER_CASE = 2


def agents(random: Random) -> tuple[Agent, ...]:
    return tuple(
        joined_agent(
            f"a{number:02}", cpus=random.choice((16, 32, 64)), mem=256 * GIB, gpus=random.choice((0, 4, 8)),
            units_per_gpu=1,
        )
        for number in range(random.randint(4, 12))
    )  # fmt: skip


def sessions(random: Random, count: int) -> list[Session]:
    made = []
    for number in range(1, count + 1):
        kind = random.choice(("cpu", "gpu", "gpu", "fgpu", "gang", "uneven"))
        shape: dict[str, Any] = {"cpu": random.choice((1, 2, 4, 8)), "mem": f"{random.choice((4, 16, 32))}G", "shm": 0}
        if kind in {"gpu", "gang"}:
            shape["gpu"] = random.choice((1, 1, 2, 4))
        if kind == "fgpu":
            shape["fgpu"] = random.choice((0.25, 0.5, 0.7, 1.5))
        if kind == "gang":
            mode = random.choice(("single-node", "multi-node", "multi-node"))
            shape |= {"cluster_size": random.randint(2, 6), "cluster_mode": mode}
        if kind == "uneven":
            role = {"name": "worker", "replicas": random.randint(1, 3), "gpu": random.choice((1, 2)), "cpu": 8}
            shape |= {"cluster_mode": "multi-node", "roles": [role]}
        limit = random.choice((600, 1800, 3600, 7200, 4 * 3600))
        made.append(make_session(number, time_limit=f"{limit}s", **shape))
    return made


def case(random: Random) -> tuple[Snapshot, Plan]:
    """Return a queue with running and waiting sessions, and the plan of a decision that starts none of them."""
    policy = SchedulingPolicy(GroupPolicy(placement=load_placement("fragmentation")))
    queue = sessions(random, random.randint(20, 60))
    world = Snapshot(agents(random), tuple(queue), NOW, policy=policy)
    world = committed(world, schedule(world))
    began = {s.id: NOW - random.randrange(0, s.spec.time_limit or 1) for s in world.placed}
    aged = tuple(replace(s, started_at=began[s.id]) if s.id in began else s for s in world.sessions)
    world = replace(world, sessions=aged)
    return world, schedule(world)


def nearest_holds(world: Snapshot, session: Session, plan: Plan) -> bool:
    nearest = plan.waits[session.id].nearest
    if nearest is None:
        raise ValueError(f"{session.name} has no nearest miss")
    held = [kernel for other in world.placed for kernel in other.kernels]
    state = PlacementState.of(world.agents, {"": held}, world.policy.default.placement)
    state.release([granted(world.agents, held, nearest)])
    return state.fits(gang_of(session, overlay=True))


def played(world: Snapshot, plan: Plan) -> dict[str, float]:
    """Return the simulated starts of waiting sessions, by session id."""
    starts: dict[str, float] = {}
    while plan.placements or world.placed:
        world = committed(world, plan)
        at = min(end_of(session, world.now) for session in world.placed)
        left = [s for s in world.sessions if s.state is SessionState.PENDING or end_of(s, world.now) > at]
        world = replace(world, now=at, sessions=tuple(left))
        plan = schedule(world)
        starts |= {placement.session_id: at for placement in plan.placements}
        if not world.pending:
            break
    return starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    random = Random(options.seed)
    counts: Counter[str] = Counter()
    errors: list[float] = []
    waits: list[float] = []
    while counts["judged"] < options.sessions:
        world, plan = case(random)
        if plan.placements:
            continue
        starts = played(world, plan)
        for session in world.pending:
            wait = plan.waits[session.id]
            if wait.code not in {WaitCode.BUSY, WaitCode.BEHIND}:
                continue
            counts["judged"] += 1
            if wait.code is WaitCode.BUSY and wait.nearest is not None and wait.nearest.missing:
                counts["nearest misses"] += 1
                counts["nearest misses true"] += nearest_holds(world, session, plan)
            if wait.estimated_start is not None and session.id in starts:
                errors.append(abs(starts[session.id] - wait.estimated_start))
                waits.append(starts[session.id] - NOW)
        for session in random.sample(world.pending, min(_SUGGESTED_PER_CASE, len(world.pending))):
            for suggestion in what_would_help(world, session):
                after = schedule(suggestion.applied(world, session.id))
                counts["suggestions"] += 1
                counts["suggestions true"] += any(p.session_id == session.id for p in after.placements)
                if suggestion.starts_at is not None:
                    counts["ends to wait for"] += 1
                    counts["ends to wait for true"] += suggestion.starts_at == starts.get(session.id)
    result = {
        **{name: counts[name] for name in ("judged", "nearest misses", "suggestions", "ends to wait for")},
        **{
            f"{name} true percent": round(100 * counts[f"{name} true"] / max(1, counts[name]), 2)
            for name in ("nearest misses", "suggestions", "ends to wait for")
        },
        "estimates": len(errors),
        "estimates exact percent": round(100 * sum(error < 1 for error in errors) / max(1, len(errors)), 2),
        "estimates mean error s": round(sum(errors) / max(1, len(errors))),
        "estimates mean wait s": round(sum(waits) / max(1, len(waits))),
    }
    print(json.dumps(result, indent=2) if options.json else "\n".join(f"{name}: {n}" for name, n in result.items()))


if __name__ == "__main__":
    main()
