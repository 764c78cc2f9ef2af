"""Hostile specs, agents' answers and archives, by a seed: how many were tried, and what went wrong.

    python -m bench.fuzz --seed 1 --specs 100000 --reports 20000 --tars 2000

Wrong is a traceback, an answer that is no short line, a spec that changes by being stored, or anything that an archive
does outside of its copy. The exit code is 1 where there was any. `tests/security/test_fuzzing.py` is a smaller run.
"""

import argparse
import sys
import time

from tests.fuzzing import KINDS, problems

_COUNTS = {"specs": 100_000, "reports": 20_000, "tars": 2_000}
_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=_COUNTS[kind], metavar="COUNT")
    given = vars(parser.parse_args())
    wrong = 0
    for kind in KINDS:
        began = time.monotonic()
        found = list(problems(kind, given["seed"], given[kind]))
        wrong += len(found)
        took_s = time.monotonic() - began
        print(f"{kind}: {given[kind]} tried with seed {given['seed']} in {took_s:.0f} s, {len(found)} wrong")
        for number, problem in found[:_SHOWN]:
            print(f"  {number}: {problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
