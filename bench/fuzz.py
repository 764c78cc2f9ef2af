"""Try hostile specs, agents' answers, archives and API calls, drawn by a seed, and report failures.

    python -m bench.fuzz --seed 1 --specs 100000 --reports 20000 --tars 2000 --api 20000

Failures are a traceback, an answer that is no short line, a spec that changes when it is stored, a change that an
archive makes outside of its copy, and an API call with a 5xx answer or one that the API's document does not allow. The
exit code is 1 if there was any. `--first 50000` skips that many of each kind, so that a long run may be split.
`tests/security/test_fuzzing.py` and `tests/security/fuzzing/` are a smaller run.
"""

import argparse
import sys
import time

from tests.hostile.api_fuzzing import fuzzed_api
from tests.hostile.fuzzing import KINDS, problems

_COUNTS = {"specs": 100_000, "reports": 20_000, "tars": 2_000, "api": 20_000}
_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    for kind, count in _COUNTS.items():
        parser.add_argument(f"--{kind}", type=int, default=count, metavar="COUNT")
    given = vars(parser.parse_args())
    seed, wrong = given["seed"], 0
    for kind in KINDS:
        began = time.monotonic()
        found = [f"{number}: {line}" for number, line in problems(kind, seed, given[kind], given["first"])]
        _report(kind, given[kind], seed, began, found)
        wrong += len(found)
    if given["api"]:
        began = time.monotonic()
        tried = fuzzed_api(seed, given["api"], given["first"])
        _report("api", tried.calls.total(), seed, began, tried.wrong)
        print(f"  calls: {_pairs(tried.calls)}")
        print(f"  answers: {_pairs(tried.statuses)}")
        wrong += len(tried.wrong)
    return 1 if wrong else 0


def _report(kind: str, count: int, seed: int, began: float, found: list[str]) -> None:
    took_s = time.monotonic() - began
    print(f"{kind}: {count} tried with seed {seed} in {took_s:.0f} s, {len(found)} wrong")
    for line in found[:_SHOWN]:
        print(f"  {line}")


def _pairs(counts: dict[str, int] | dict[int, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
