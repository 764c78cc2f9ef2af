"""Measure samples of agents: one write for all agents, and the queries of plots, with a week of them in the database.

    .venv/bin/python bench/samples.py [--agents 1000] [--rounds 7] [--database URL] [--json]

Without --database it uses SQLite in a temporary folder. A database given by --database must be new, since it is filled.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable

from muster.core.model.agent_sample import MEASURES, AgentSample, Amount
from muster.core.usage.over_time import SPANS
from muster.store.store import Store


def samples(agents: int, at: float) -> list[AgentSample]:
    amounts = dict.fromkeys(MEASURES, Amount(8000, 4000, 1500.0))
    return [AgentSample(f"agent-{n:05}", "gpu" if n % 2 else "default", at, amounts) for n in range(agents)]


def filled(store: Store, agents: int, now: float) -> None:
    """Write a sample in every step of each span, as after a week."""
    for span in SPANS.values():
        for step in range(1, span.kept_s // span.step_s):
            store.samples.add(samples(agents, now - step * span.step_s))
    store.samples.remove_old(now)


def median_ms(rounds: int, work: Callable[[int], object]) -> float:
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        work(number)
        took.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(took), 1)


def measured(url: str, agents: int, rounds: int) -> dict[str, float]:
    now = time.time() // 3600 * 3600
    store = Store(url)
    filled(store, agents, now)
    found = {"write": median_ms(rounds, lambda number: store.samples.add(samples(agents, now + 60 * number)))}
    found["remove old"] = median_ms(1, lambda _: store.samples.remove_old(now))
    for name, span in SPANS.items():
        since = now - span.length_s
        found[f"{name} of all groups, first"] = median_ms(1, lambda _, s=span, b=since: store.samples.by_group(s, b))
        found[f"{name}, again"] = median_ms(rounds, lambda _, s=span, b=since: store.samples.by_group(s, b))
        found[f"{name} of one agent"] = median_ms(
            rounds, lambda _, s=span, b=since: store.samples.of_agent(s, b, "agent-00000")
        )
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--database", default="")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(given.database or f"sqlite:///{folder}/muster.db", given.agents, given.rounds)
    if given.json:
        print(json.dumps({"agents": given.agents, "ms": found}))
        return
    print(f"{given.agents} agents, milliseconds:")
    for what, took in found.items():
        print(f"  {what:<32}{took:>10}")


if __name__ == "__main__":
    main()
