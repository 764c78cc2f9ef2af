"""The check of classes: what a limit allows, and what work of best effort costs guaranteed work."""

from typing import Any

from bench.gpu_checks.machine import Machine, Outcome

SHARE, LIMIT = 0.25, 0.5
PAUSE_MS = 40
# What docs/fgpu.md promises: a twentieth of the pauses. The rest is for the clock of a host that does other things.
MOST_OF_PAUSES, SLACK = 0.05, 0.03
LEAST_OF_PAUSES = 0.1
MOST_BESIDE_BUSY, LEAST_BUSY = 0.03, 0.95


def check_classes(machine: Machine) -> Outcome:
    seconds = max(machine.seconds / 3, 1)
    guaranteed, rest = machine.container(SHARE), machine.container(SHARE, best_effort=True)
    limited = machine.container(SHARE, limit=LIMIT)

    def run(*programs: tuple[Any, str, str]) -> list[dict[str, Any]]:
        return machine.together([machine.start(libraries, *words) for libraries, *words in programs], seconds)

    ((alone,), (held,)) = run((guaranteed, "spin", "launches")), run((limited, "spin", "launches"))
    busy, beside_busy = run((guaranteed, "spin", "launches"), (rest, "spin", "short"))
    (quiet,) = run((guaranteed, "bursts", str(PAUSE_MS)))
    disturbed, beside_pauses = run((guaranteed, "bursts", str(PAUSE_MS)), (rest, "spin", "short"))
    pauses_ms = disturbed["bursts"] * PAUSE_MS
    figures = {
        "limit_of_0.5": held["gpu_ms"] / max(alone["gpu_ms"], 1),
        "guaranteed_beside_best_effort": busy["gpu_ms"] / max(alone["gpu_ms"], 1),
        "best_effort_beside_guaranteed": beside_busy["gpu_ms"] / max(alone["gpu_ms"], 1),
        "cost_of_pauses": (disturbed["burst_ms"] - quiet["burst_ms"]) / PAUSE_MS,
        "best_effort_of_pauses": beside_pauses["gpu_ms"] / max(pauses_ms, 1),
    }
    return classes_hold(figures), {name: round(value, 3) for name, value in figures.items()}


def classes_hold(figures: dict[str, float]) -> bool:
    """Return whether the figures of `check_classes` are what docs/fgpu.md promises."""
    return (
        abs(figures["limit_of_0.5"] - LIMIT) <= SLACK
        and figures["guaranteed_beside_best_effort"] >= LEAST_BUSY
        and figures["best_effort_beside_guaranteed"] <= MOST_BESIDE_BUSY
        and figures["cost_of_pauses"] <= MOST_OF_PAUSES + SLACK
        and figures["best_effort_of_pauses"] >= LEAST_OF_PAUSES
    )
