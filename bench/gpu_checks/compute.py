"""Checks of a share's compute time, which need nothing but the driver."""

from typing import Any

from bench.gpu_checks.machine import Machine, Outcome

TOLERANCE = 0.03
MOST_COST_US = 5


def check_time(machine: Machine) -> Outcome:
    return turns(machine, "launches", (0.1, 0.25, 0.5))


def check_replays(machine: Machine) -> Outcome:
    return turns(machine, "graph", (0.1,))


def turns(machine: Machine, kind: str, shares: tuple[float, ...]) -> Outcome:
    figures: dict[str, Any] = {}
    good = []
    for share in shares:
        pair = [machine.start(machine.container(part), "spin", kind) for part in (share, 1 - share)]
        kernels = [result["kernels"] for result in machine.together(pair, max(machine.seconds / 3, 1))]
        got = kernels[0] / max(sum(kernels), 1)
        figures[f"share_of_{share}"] = round(got, 3)
        good.append(abs(got - share) <= TOLERANCE)
    return all(good), figures


def check_cost(machine: Machine) -> Outcome:
    bare, capped = (machine.run(libraries, "cost", "200") for libraries in (None, machine.container(machine.share)))
    figures = {
        f"{name}_{kind}": round(value, 2)
        for kind, found in (("bare", bare), ("capped", capped))
        for name, value in found.items()
    }
    return all(capped[name] - bare[name] < MOST_COST_US for name in bare), figures
