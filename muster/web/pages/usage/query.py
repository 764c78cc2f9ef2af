"""The query of the usage page: the time, the keys of a line, the owner, the order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from urllib.parse import urlencode

from muster.core.values.errors import BadInputError

SPANS = {"7d": "the last 7 days", "30d": "the last 30 days", "month": "this month", "days": "from … to …"}
KEYS = {"user": "User", "project": "Project", "day": "Day"}
_DAY_S = 86400.0
_LONGEST_NAME = 255
_FIRST = date(2001, 1, 1)


class Column(NamedTuple):
    """A column of amounts, with its heading and a hint on what they are."""

    name: str
    title: str
    hint: str


COLUMNS = (
    Column("sessions", "Sessions", "that ran in that time"),
    Column("cpu_hours_allocated", "CPU hours", "allocated"),
    Column("cpu_hours_used", "CPU hours used", "of those allocated"),
    Column("mem_gib_hours_allocated", "Memory GiB hours", "allocated"),
    Column("mem_peak_bytes", "Peak memory", "of the largest session"),
    Column("gpu_hours_allocated", "GPU hours", "of whole GPUs, allocated"),
    Column("fgpu_hours_allocated", "fGPU hours", "of shares, allocated"),
    Column("gpu_hours_used", "GPU hours used", "at full load"),
    Column("mean_wait_s", "Mean wait", "from submission to start"),
    Column("longest_wait_s", "Longest wait", "from submission to start"),
)
_SORTS = {*KEYS, *(column.name for column in COLUMNS)}


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """The query as the form has it; `first` and `last` are days such as 2026-11-22, for the span `days` only."""

    span: str = "30d"
    first: str = ""
    last: str = ""
    by: tuple[str, ...] = ()
    user: str = ""
    project: str = ""
    sort: str = ""

    @property
    def column(self) -> str:
        """Return the column that the lines are sorted by."""
        return self.sort.removeprefix("-")

    @property
    def descending(self) -> bool:
        return self.sort.startswith("-")

    def sorted_by(self, column: str) -> "UsageQuery":
        """Return the query sorted by a column, amounts from the largest; the other way if it was so already."""
        first = column if column in KEYS else f"-{column}"
        second = f"-{column}" if column in KEYS else column
        return replace(self, sort=second if self.sort == first else first)

    @property
    def text(self) -> str:
        """Return the query of a URL."""
        fields = (
            ("span", self.span),
            ("from", self.first),
            ("to", self.last),
            ("user", self.user),
            ("project", self.project),
            ("sort", self.sort),
        )
        return urlencode([*((name, value) for name, value in fields if value), *(("by", key) for key in self.by)])


def completed(query: UsageQuery, *, is_admin: bool) -> UsageQuery:
    """Return the query with its defaults filled in. Raises BadInputError for unknown values."""
    if query.span not in SPANS:
        raise BadInputError(f"span: there is no {query.span!r}; use {', '.join(SPANS)}")
    for key in query.by:
        if key not in KEYS:
            raise BadInputError(f"by: there is no key {key!r}; use {', '.join(KEYS)}")
    by = tuple(key for key in KEYS if key in query.by) or (("user",) if is_admin else ("project",))
    sort = query.sort or ("day" if "day" in by else "-cpu_hours_allocated")
    if sort.removeprefix("-") not in _SORTS:
        raise BadInputError(f"sort: there is no column {sort!r}; use one of {', '.join(sorted(_SORTS))}")
    for field, text in (("user", query.user), ("project", query.project)):
        if "\x00" in text or len(text) > _LONGEST_NAME:
            raise BadInputError(f"{field}: that is no name; write up to {_LONGEST_NAME} characters")
    return replace(query, by=by, sort=sort, user=query.user.strip() if is_admin else "", project=query.project.strip())


def time_of(query: UsageQuery, now: float) -> tuple[float, float]:
    """Return begin and end in seconds since the epoch; days are in UTC. Raises BadInputError."""
    match query.span:
        case "7d":
            return now - 7 * _DAY_S, now
        case "30d":
            return now - 30 * _DAY_S, now
        case "month":
            first = datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            return first.timestamp(), now
        case _:
            return _days(query, now)


def _days(query: UsageQuery, now: float) -> tuple[float, float]:
    first = _day("From", query.first)
    last = _day("To", query.last) if query.last else datetime.fromtimestamp(now, UTC).date()
    if last < first:
        raise BadInputError("“To” is before “From”; choose a later day")
    since = _midnight(first)
    if since >= now:
        raise BadInputError("“From” is yet to come; choose an earlier day")
    return since, min(_midnight(last + timedelta(days=1)), now)


def _day(field: str, text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise BadInputError(f"“{field}”: {text!r} is no day; write one such as 2026-11-22") from None
    if not _FIRST <= day < date.max:
        raise BadInputError(f"“{field}”: {text} is too long ago or too far ahead; choose a day since {_FIRST}")
    return day


def _midnight(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


def parse_query(values: Sequence[tuple[str, str]]) -> UsageQuery:
    """Return the query of a URL's pairs."""
    last = dict(values)
    return UsageQuery(
        span=last.get("span", "30d"),
        first=last.get("from", ""),
        last=last.get("to", ""),
        by=tuple(value for name, value in values if name == "by"),
        user=last.get("user", ""),
        project=last.get("project", ""),
        sort=last.get("sort", ""),
    )
