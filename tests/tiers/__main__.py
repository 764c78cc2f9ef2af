"""`./dev test`: see tests/tiers/plan.py."""

import argparse
import os
import subprocess
import sys

from tests.tiers.plan import PLAN, PROVISION, Stage, Tier
from tests.tiers.runner import Processors, Runner, exit_code, summary


def main() -> int:
    names = [tier.name for stage in PLAN for lane in stage for tier in lane]
    parser = argparse.ArgumentParser(prog="./dev test", description="Run every test, or only some tiers.")
    parser.add_argument("tier", nargs="*", metavar="TIER", help=f"one of: {', '.join(map(repr, names))}")
    chosen = set(parser.parse_args().tier)
    if unknown := chosen.difference(names):
        parser.error(f"there is no tier {', '.join(map(repr, sorted(unknown)))}; ./dev test -h names them")
    obstacle = "" if os.geteuid() == 0 else "it provisions this machine and needs root"
    before = Processors.now()
    outcomes = Runner(("./dev",), obstacle).run(_only(chosen) if chosen else PLAN)
    if not obstacle:
        subprocess.run(("./dev", "clean-tests"), check=False)
    sys.stdout.write(f"\n{summary(outcomes)}\n{Processors.now().since(before)}\n")
    return exit_code(outcomes, in_ci=bool(os.environ.get("CI")))


def _only(chosen: set[str]) -> list[Stage]:
    """Return the plan with these tiers, and with provisioning where one of them needs it."""

    def serves(tier: Tier) -> bool:
        return tier.name in chosen or (tier == PROVISION and any(t.on_engine and t.name in chosen for t in every))

    every = [tier for stage in PLAN for lane in stage for tier in lane]
    return [tuple(tuple(filter(serves, lane)) for lane in stage) for stage in PLAN]


if __name__ == "__main__":
    sys.exit(main())
