"""Amounts, spans and points in time as people write and read them.

For each there is a short form for people (`format_…`), and an exact one that gives the same value again (`exact_…`).
"""

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

# Far more than any machine has, and far less than the limit of a division or a database column.
_MOST_MILLI = 10**12
_MOST_BYTES = 1 << 60
_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LARGEST_FIRST = ("T", "G", "M", "K")
_SPELLED = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_ZERO_SPANS = frozenset({"0", *(f"0{unit}" for unit in _UNITS)})
_WITH_UNITS = re.compile(r"(?:\d{1,9}[smhd]){1,4}")
_SPAN = re.compile(r"(?:(?P<days>\d{1,9})-)?(?P<clock>\d{1,9}(?::\d{1,9}){0,2})")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_SINCE = re.compile(r"(?:now)?\s*\+\s*(?P<span>\S+)")
FIRST_MOMENT = datetime(2001, 1, 1, tzinfo=UTC).timestamp()
"""Before this, no point in time is read: a smaller number is one of something else."""
_LAST = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


def parse_milli(value: object) -> int:
    """Return `2`, `0.5`, `"1.25"` or `"500m"` in thousandths.

    Raises ValueError for anything else, for a negative amount and for a fraction finer than a thousandth.
    """
    text = str(value).strip()
    try:
        amount = Decimal(text[:-1]) if text.endswith("m") else Decimal(text) * 1000
    except ArithmeticError:
        raise ValueError(f"{text!r} is not a number") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text!r} is not a positive number")
    if amount > _MOST_MILLI:
        raise ValueError(f"{text!r} is too large a number")
    if amount != amount.to_integral_value():
        raise ValueError(f"{text!r} is finer than a thousandth")
    return int(amount)


def format_milli(amount: int) -> str:
    """Return thousandths as a number of whole units: `2`, `0.5`."""
    return f"{amount / 1000:g}"


def exact_milli(amount: int) -> int | float:
    """Return thousandths as plain data, a whole number of units where it is one."""
    return amount // 1000 if amount % 1000 == 0 else amount / 1000


def parse_bytes(value: object) -> int:
    """Return `1073741824`, `"1G"`, `"1GiB"` or `"512m"` in bytes; K, M, G and T are powers of 1024.

    Docker and Slurm read them the same way. Raises ValueError for anything else and for a negative amount.
    """
    text = str(value).strip()
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _BINARY else ""
    try:
        amount = Decimal(number.removesuffix(unit) if unit else number) * _BINARY[unit]
    except ArithmeticError:
        raise ValueError(f"{text!r} is not an amount of bytes") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text!r} is not a positive amount of bytes")
    if amount > _MOST_BYTES:
        raise ValueError(f"{text!r} is too large an amount of bytes")
    return int(amount)


def format_bytes(amount: int) -> str:
    """Return bytes to a tenth of their largest unit, for columns: `1.5G`."""
    for unit in _LARGEST_FIRST:
        if amount >= _BINARY[unit]:
            return f"{round(amount / _BINARY[unit], 1):g}{unit}"
    return str(amount)


def spell_bytes(amount: float) -> str:
    """Return bytes with their unit in full, for sentences and plots: `1.5 GiB`."""
    power = 0
    while abs(amount) >= 1024 and power < len(_SPELLED) - 1:
        amount, power = amount / 1024, power + 1
    return f"{amount:.4g} {_SPELLED[power]}"


def exact_bytes(amount: int) -> str:
    """Return exactly this many bytes in the largest unit that divides them: 1.5 GiB are `1536M`."""
    units = (unit for unit in _LARGEST_FIRST if amount and amount % _BINARY[unit] == 0)
    unit = next(units, "")
    return f"{amount // _BINARY[unit]}{unit}"


def parse_duration(value: object) -> int:
    """Return the span in seconds.

    `90s`, `30m`, `1h30m`, `2d`; or as Slurm's --time: `minutes`, `minutes:seconds`, `hours:minutes:seconds`,
    `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`. Raises ValueError for anything else and for zero.
    """
    text = str(value).strip().lower()
    if _WITH_UNITS.fullmatch(text):
        seconds = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))
    elif match := _SPAN.fullmatch(text):
        parts = [int(part) for part in match["clock"].split(":")]
        if match["days"] is not None:
            hours, minutes, rest = (*parts, 0, 0)[:3]
            seconds = int(match["days"]) * 86400 + hours * 3600 + minutes * 60 + rest
        elif len(parts) == 3:
            seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
        else:
            seconds = parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)
    else:
        raise ValueError(f"{text!r} is not a span of time")
    if seconds == 0:
        raise ValueError("a span of time must be longer than zero")
    return seconds


def parse_span(value: object) -> int:
    """Return the span in seconds as `parse_duration`, or 0 for one such as `0` or `0m`. Raises ValueError."""
    return 0 if is_zero_span(value) else parse_duration(value)


def is_zero_span(value: object) -> bool:
    """Return whether that is how people write no time: `0`, `0m`."""
    return str(value).strip().lower() in _ZERO_SPANS


def format_duration(seconds: float) -> str:
    """Return a measured span in its largest unit and the next one: `45s`, `3m20s`, `2h5m`, `4d2h`.

    Not `7h55s`, which reads like 7 hours and 55 minutes. What somebody has set is written by `exact_duration`: a
    refusal would otherwise call `1h` longer than `1h`.
    """
    parts = _parts(int(seconds))
    largest, *smaller = parts or ["0s"]
    following = dict(zip("dhm", "hms", strict=True)).get(largest[-1])
    return largest + "".join(part for part in smaller[:1] if part[-1] == following)


def exact_duration(seconds: int) -> str:
    """Return a span that somebody has set in all of its units: `1d2h3m4s`."""
    return "".join(_parts(seconds)) or "0s"


def format_age(since: float, now: float) -> str:
    """Return how long ago a moment was; one that is still to come was just now."""
    return format_duration(max(0.0, now - since))


def format_seconds(seconds: float) -> str:
    """Return seconds to a tenth, for what is counted: `12.3 s`."""
    return f"{seconds:.1f} s"


def format_hours(hours: float) -> str:
    """Return hours to a hundredth, and shorter times to their first digit: `1.25`, `0.0003`."""
    digits = 2 if hours == 0 or hours >= 0.01 else min(6, -math.floor(math.log10(hours)))
    return f"{hours:,.{digits}f}"


def parse_moment(value: object, now: datetime) -> float:
    """Return the moment in seconds since the epoch.

    An ISO date or date-time (`2026-11-22T08:00`, `2026-11-22 08:00:00+01:00`); `08:00`, the next such time; `now`,
    `now+1h` or `+90m`; or seconds since the epoch, as a number. A moment without a zone is in that of `now`; a `now`
    without one stands for the machine's local time. Raises ValueError for anything else.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not FIRST_MOMENT <= value <= _LAST:
            raise ValueError(f"{value} is no point in time; in a file, a time such as '12:30' needs quotes")
        return float(value)
    text = value.isoformat() if isinstance(value, date) else str(value).strip()
    try:
        seconds = _seconds(text, now)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no point in time") from None
    if not FIRST_MOMENT <= seconds <= _LAST:
        raise ValueError(f"{text!r} is too far away")
    return seconds


def local_time(seconds: float) -> datetime:
    """Return the moment in the machine's local time, as `parse_moment` takes it: without a zone.

    How far the zone is from UTC depends on the date, which a zone of this moment would hide.
    """
    return datetime.fromtimestamp(seconds)  # noqa: DTZ006 - see above


def format_moment(seconds: float) -> str:
    """Return the moment as people read it, in UTC: `2026-11-22 08:00:30 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_minute(seconds: float) -> str:
    """Return the moment to the minute, for what is only estimated: `2026-11-22 08:00 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def exact_moment(seconds: float) -> str:
    """Return the moment in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def timestamp(seconds: float | None) -> str | None:
    """Return seconds since the epoch as RFC 3339, in UTC with milliseconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _parts(seconds: int) -> list[str]:
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, seconds = divmod(seconds, _UNITS[unit])
        parts += [f"{count}{unit}"] if count else []
    return parts


def _seconds(text: str, now: datetime) -> float:
    if text.lower() == "now":
        return now.timestamp()
    if match := _SINCE.fullmatch(text.lower()):
        return now.timestamp() + parse_duration(match["span"])
    if match := _CLOCK.fullmatch(text):
        hour, minute, second = (int(part or 0) for part in match.groups())
        return _next_time(now.replace(hour=hour, minute=minute, second=second, microsecond=0, fold=0), now)
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)).timestamp()


def _next_time(today: datetime, now: datetime) -> float:
    """Return the first moment after now at which clocks show the time of `today`.

    Where they are set back, they show it twice that day. Where they are set forward past it, it is as much later.
    """
    first = today.timestamp()
    second = max(first, today.replace(fold=1).timestamp())
    tomorrow = (today + timedelta(days=1)).timestamp()
    return next(moment for moment in (first, second, tomorrow) if moment > now.timestamp())
