"""Spans of time as Slurm users write them."""

import re

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_UNITS = re.compile(r"(?:\d{1,9}[smhd]){1,4}")
_CLOCK = re.compile(r"(?:(?P<days>\d{1,9})-)?(?P<clock>\d{1,9}(?::\d{1,9}){0,2})")


def parse_duration(value: object) -> int:
    """Return the span in seconds.

    `90s`, `30m`, `1h30m`, `2d`; or as Slurm's --time: `minutes`, `minutes:seconds`, `hours:minutes:seconds`,
    `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`. Raises ValueError for anything else and for zero.
    """
    text = str(value).strip().lower()
    if _WITH_UNITS.fullmatch(text):
        seconds = sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))
    elif match := _CLOCK.fullmatch(text):
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


def format_duration(seconds: float) -> str:
    """Return the span in at most two units: `45s`, `3m20s`, `2h5m`, `4d2h`."""
    rest = int(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        amount, rest = divmod(rest, _UNITS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts[:2]) or "0s"
