"""Shares of a gang on the GPUs of one agent, by search.

Placing one share after the other, each on the fullest GPU that holds it, is quick and nearly always right; where it
ends in a corner, a gang that fits would be told that it never does. So the search has the last word, within limits.
"""

from collections.abc import Sequence

MAX_STEPS = 2_000
MAX_SHARES = 200


def packing(amounts: Sequence[int], free: Sequence[int], max_steps: int = MAX_STEPS) -> list[int] | None:
    """For each amount, which entry of `free` holds it; None when no way was found within the limits."""
    if len(amounts) > MAX_SHARES or sum(amounts) > sum(free):
        return None
    order = sorted(range(len(amounts)), key=lambda index: (-amounts[index], index))
    left = list(free)
    chosen = [0] * len(amounts)
    dead_ends: set[tuple[int, ...]] = set()

    def search(position: int) -> bool:
        if position == len(order):
            return True
        state = (position, *sorted(left))
        if state in dead_ends or len(dead_ends) > max_steps:
            return False
        amount = amounts[order[position]]
        tried = set()
        for gpu in sorted(range(len(left)), key=lambda gpu: (left[gpu], gpu)):
            if left[gpu] < amount or left[gpu] in tried:
                continue
            tried.add(left[gpu])
            left[gpu] -= amount
            chosen[order[position]] = gpu
            if search(position + 1):
                return True
            left[gpu] += amount
        dead_ends.add(state)
        return False

    return chosen if search(0) else None
