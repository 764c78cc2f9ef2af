"""The keys and the times of a usage report, as people write them."""

from collections.abc import Iterable

from muster.core.usage.report import KEYS
from muster.core.values.errors import BadInputError
from muster.core.values.units import FIRST_MOMENT, local_time, parse_duration, parse_moment

DEFAULT_SPAN_S = 30 * 86400.0


def report_keys(given: Iterable[str], field: str = "by") -> tuple[str, ...]:
    """Return the keys of items with several keys between commas; user if there is none. Raises BadInputError."""
    words = [word.strip() for item in given for word in item.split(",")]
    for word in words:
        if word not in KEYS:
            raise BadInputError(f"{field}: there is no key {word!r}; use {', '.join(KEYS)}")
    return tuple(dict.fromkeys(words)) or ("user",)


def point_or_ago(text: str, now: float, field: str) -> float:
    """Return a point in time such as 2026-11-22, or how long ago, such as 7d. Raises BadInputError.

    A longer time ago than points in time are read means the first of these.
    """
    try:
        return max(FIRST_MOMENT, now - parse_duration(text)) if text[-1:] in set("smhd") else _point(text, now)
    except ValueError as error:
        remedy = "write 2026-11-22, 2026-11-22T08:00, or 7d for seven days ago"
        raise BadInputError(f"{field}: {error}; {remedy}") from None


def _point(text: str, now: float) -> float:
    return parse_moment(text, local_time(now))
