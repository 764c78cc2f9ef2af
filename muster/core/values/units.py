"""Points in time: as users write them, and as answers give them."""

import re
from datetime import UTC, date, datetime, timedelta

from muster.core.values.duration import parse_duration

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_SINCE = re.compile(r"(?:now)?\s*\+\s*(?P<span>\S+)")
_FIRST, _LAST = datetime(2001, 1, 1, tzinfo=UTC).timestamp(), datetime(9000, 1, 1, tzinfo=UTC).timestamp()


def parse_moment(value: object, now: datetime) -> float:
    """Return the moment in seconds since the epoch.

    An ISO date or date-time (`2026-11-22T08:00`, `2026-11-22 08:00:00+01:00`); `08:00`, the next such time; `now`,
    `now+1h` or `+90m`; or seconds since the epoch, as a number. A moment without a zone is in that of `now`; a `now`
    without one stands for the machine's local time. Raises ValueError for anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not _FIRST <= value <= _LAST:
            raise ValueError(f"{value} is no point in time; in a file, a time such as '12:30' needs quotes")
        return float(value)
    text = value.isoformat() if isinstance(value, date) else str(value).strip()
    try:
        seconds = _seconds(text, now)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no point in time") from None
    if not _FIRST <= seconds <= _LAST:
        raise ValueError(f"{text!r} is too far away")
    return seconds


def timestamp(seconds: float | None) -> str | None:
    """Return seconds since the epoch as RFC 3339, in UTC with milliseconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _seconds(text: str, now: datetime) -> float:
    if text.lower() == "now":
        return now.timestamp()
    if match := _SINCE.fullmatch(text.lower()):
        return now.timestamp() + parse_duration(match["span"])
    if match := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        moment = now.replace(hour=hour, minute=minute, second=second, microsecond=0, fold=0)
        return (moment if moment > now else moment + timedelta(days=1)).timestamp()
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)).timestamp()
