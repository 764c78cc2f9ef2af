"""Counters that only grow, until what counts begins anew."""


def growth_rate(before: float | None, after: float | None, elapsed_s: float) -> float | None:
    """Return how fast a counter grew, in its unit a second; None where that is not known.

    A counter that is smaller than before has begun anew: all that it holds has come since.
    """
    if before is None or after is None or elapsed_s <= 0:
        return None
    return (after - before if after >= before else after) / elapsed_s
