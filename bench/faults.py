"""Search for faults that break a promise, by random schedules in virtual time.

    .venv/bin/python -m bench.faults [--schedules 100000] [--first 0] [--processes 1] [--keep 20]
    .venv/bin/python -m bench.faults --seed 428 [--only 0,2]

The first command prints schedules per second, the CPU time of each, and how often each kind of fault happened. For each
broken promise it prints the command that repeats it, reduced to the faults that it needs. It ends with 1 if there was
one. The second command repeats one schedule and prints its events. A seed gives the same schedule on any machine, as
long as neither tests/simulation/ nor the queue's decisions have changed.
"""

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice

from tests.simulation.schedules import schedule_of
from tests.simulation.shrinking import only, shrink
from tests.simulation.world import Verdict, carry_out

_CHUNK = 100
_PROGRESS_EVERY_S = 10.0


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=2_000, metavar="N", help="number of schedules")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first schedule's seed")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="number of processes")
    parser.add_argument("--keep", type=int, default=20, metavar="N", help="number of broken promises to reduce")
    parser.add_argument("--seed", type=int, help="repeat this schedule and print its events")
    parser.add_argument("--only", default=None, metavar="PLACES", help="with --seed: only these of its deeds, as 0,3")
    arguments = parser.parse_args()
    # The queue logs every fault, which would bury the findings.
    logging.disable(logging.CRITICAL)
    if arguments.seed is not None:
        return repeat(arguments.seed, arguments.only)
    return search(arguments.first, arguments.schedules, arguments.processes, arguments.keep)


def repeat(seed: int, places: str | None) -> int:
    """Carry out one schedule, and print its deeds and their consequences."""
    schedule = schedule_of(seed)
    if places is not None:
        schedule = only(schedule, [int(place) for place in places.split(",") if place])
    print(f"seed {seed}: " + "; ".join(f"{host} {dict(facts)}" for host, facts in schedule.hosts))
    for place, deed in enumerate(schedule_of(seed).deeds):
        print(f"{place:4} {'' if deed in schedule.deeds else '(left out) '}{deed.at:8.2f} s  {deed}")
    print()
    verdict = carry_out(schedule, traced=True)
    print("\n".join(verdict.trace))
    return report(verdict)


def report(verdict: Verdict) -> int:
    if verdict.broken is None:
        print(f"\nevery promise was kept, in {verdict.lasted_s:.0f} s of virtual time")
        return 0
    print(f"\n{verdict.broken}")
    return 1


def search(first: int, count: int, processes: int, keep: int) -> int:
    """Carry out `count` schedules, print the findings, and return the exit code."""
    began = time.monotonic()
    struck: Counter[str] = Counter()
    broken: dict[int, str] = {}
    cpu_s = 0.0
    done, told_at = 0, began
    for seeds, counted, found, chunk_s in _chunks(first, count, processes):
        done += seeds
        struck += counted
        broken |= found
        cpu_s += chunk_s
        if time.monotonic() - told_at > _PROGRESS_EVERY_S:
            told_at = time.monotonic()
            print(f"{done} of {count}, {len(broken)} broke a promise", file=sys.stderr, flush=True)
    elapsed = time.monotonic() - began
    rate = f"{count / elapsed:.1f} a second; {cpu_s / count * 1000:.0f} ms of CPU each"
    print(f"{count} schedules in {elapsed:.0f} s: {rate}")
    print("what users did and what befell them:")
    for kind, times in struck.most_common():
        print(f"{times:8}  {kind}")
    print(f"{len(broken)} schedules broke a promise")
    for kind, times in Counter(message.partition(":")[0] for message in broken.values()).most_common():
        print(f"{times:8}  {kind}")
    for seed, message in islice(sorted(broken.items()), keep):
        places = shrink(schedule_of(seed), carry_out)
        print(f"\n{message}\n    python -m bench.faults --seed {seed} --only {','.join(map(str, places))}")
    return 1 if broken else 0


_Found = tuple[int, Counter[str], dict[int, str], float]


def _chunks(first: int, count: int, processes: int) -> Iterator[_Found]:
    """Yield the findings of each chunk: the number of schedules, deeds, broken promises, CPU seconds."""
    starts = range(first, first + count, _CHUNK)
    chunk = partial(_chunk, last=first + count)
    if processes == 1:
        yield from map(chunk, starts)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(chunk, starts)


def _chunk(start: int, last: int) -> _Found:
    logging.disable(logging.CRITICAL)
    struck: Counter[str] = Counter()
    broken: dict[int, str] = {}
    used = time.process_time()
    seeds = range(start, min(start + _CHUNK, last))
    for seed in seeds:
        verdict = carry_out(schedule_of(seed))
        struck += verdict.struck
        if verdict.broken is not None:
            broken[seed] = str(verdict.broken)
    return len(seeds), struck, broken, time.process_time() - used


if __name__ == "__main__":
    sys.exit(main())
