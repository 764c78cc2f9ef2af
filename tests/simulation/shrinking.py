"""The least of a schedule that still breaks the same promise."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.simulation.schedules import Schedule
from tests.simulation.world import Verdict

Run = Callable[[Schedule], Verdict]


def only(schedule: Schedule, deeds: Sequence[int]) -> Schedule:
    """Return the schedule with these deeds alone, by their places in it."""
    return replace(schedule, deeds=tuple(schedule.deeds[place] for place in deeds))


def shrink(schedule: Schedule, run: Run) -> tuple[int, ...]:
    """Return the places of deeds without which the promise is not broken any more; of a kept promise, all places.

    Halves are left out first, then smaller parts, at last single deeds (Zeller and Hildebrandt, "Simplifying and
    Isolating Failure-Inducing Input", 2002).
    """
    kept = tuple(range(len(schedule.deeds)))
    broken = run(schedule).broken
    if broken is None:
        return kept

    def still_breaks(places: Sequence[int]) -> bool:
        again = run(only(schedule, places)).broken
        return again is not None and again.kind == broken.kind

    size = max(1, len(kept) // 2)
    while True:
        before = kept
        start = 0
        while start < len(kept):
            rest = kept[:start] + kept[start + size :]
            if still_breaks(rest):
                kept = rest
            else:
                start += size
        if size == 1 and kept == before:
            return kept
        size = max(1, size // 2)
