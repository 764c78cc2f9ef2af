"""Indexes of an array of sessions, as Slurm users write them: `0-99`, `1,3,5-9:2`, `0-99%8`."""

import re
from collections.abc import Iterable
from itertools import pairwise

MAX_INDEXES = 10_000
_PART = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})(?::(?P<step>\d{1,9}))?)?", re.ASCII)
_MOST = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_SHOWN = 4


def array_indexes(text: str) -> tuple[int, ...]:
    """Return the indexes, each once, from the smallest. Raises ValueError for a text that is no array."""
    listed, percent, most = text.partition("%")
    if percent and not _MOST.fullmatch(most):
        raise ValueError(f"{most!r} is no number of sessions that may run at once")
    ranges = [_range(part) for part in listed.split(",")]
    if sum(map(len, ranges)) > MAX_INDEXES:
        raise ValueError(f"that is more than {MAX_INDEXES} indexes")
    return tuple(sorted({index for indexes in ranges for index in indexes}))


def array_most(text: str) -> int | None:
    """Return how many of a valid array's sessions may be placed at once; None for any number."""
    _, percent, most = text.partition("%")
    return int(most) if percent else None


def format_indexes(indexes: Iterable[int]) -> str:
    """Return sorted indexes for people: `0-9,11`, with a few ranges of them at most."""
    ranges: list[list[int]] = []
    ordered = sorted(indexes)
    for before, index in pairwise([ordered[0] - 2, *ordered]):
        if index == before + 1:
            ranges[-1][1:] = [index]
        else:
            ranges.append([index])
    shown = ["-".join(map(str, ends)) for ends in ranges[:_SHOWN]]
    return ",".join([*shown, *(["…"] if len(ranges) > _SHOWN else [])])


def _range(part: str) -> range:
    match = _PART.fullmatch(part.strip())
    if match is None:
        raise ValueError(f"{part!r} is neither an index nor a range of indexes")
    first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
    if last < first:
        raise ValueError(f"the range {part} ends before it begins")
    if step == 0:
        raise ValueError(f"the range {part} has no step")
    return range(first, last + 1, step)
