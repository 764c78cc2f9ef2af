"""python -m tests.lab.chaos [--seeds N] [--first SEED] [--show]: faults on the lab, and what they broke.

Each seed is a schedule: the same one makes the same faults at the same times. --show prints the schedules and plays
nothing. The exit code is 1 if a promise was broken.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.lab.bring_up import bring_up, host_names, is_up
from tests.lab.chaos.cluster import control_node_for_chaos
from tests.lab.chaos.evidence import keep_evidence
from tests.lab.chaos.run import play
from tests.lab.chaos.schedule import schedule
from tests.lab.conftest import HOSTS
from tests.lab.lab import Lab


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many schedules (3)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first one's seed (1)")
    parser.add_argument("--show", action="store_true", help="print the schedules only")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    if options.show:
        for seed in seeds:
            sys.stdout.write(f"{schedule(seed, host_names(HOSTS))}\n\n")
        return 0
    if not is_up(HOSTS) and bring_up(HOSTS) != 0:
        return 1
    lab = Lab()
    failed = []
    for seed in seeds:
        begun = time.monotonic()
        chosen = schedule(seed, [host.name for host in lab.hosts])
        directory = Path(tempfile.mkdtemp(prefix=f"muster-chaos-{seed}-"))
        with control_node_for_chaos(chosen, lab, directory) as node:
            played = play(chosen, lab, node)
            if played.broken:
                keep_evidence(lab, node, directory / "evidence")
        counts = f"{played.accepted} sessions, {played.refused} commands refused, {len(chosen.faults)} faults"
        verdict = "broken" if played.broken else "kept"
        sys.stdout.write(f"seed {seed}: {verdict}; {counts}; {time.monotonic() - begun:.0f} s\n")
        if played.broken:
            failed.append(seed)
            lines = [str(chosen), *played.broken, f"the daemon's log is in {directory}, and what all showed then"]
            sys.stdout.write("".join(f"  {line}\n" for text in lines for line in text.splitlines()))
        sys.stdout.flush()
    sys.stdout.write(f"{len(seeds) - len(failed)} of {len(seeds)} seeds kept all promises\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
