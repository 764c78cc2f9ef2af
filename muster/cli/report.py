"""`report`: what was used; and the same of one session, for `show`."""

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from muster.cli.context import json_option, sessions
from muster.cli.output import print_json, print_table
from muster.core.duration import format_duration, parse_duration
from muster.core.errors import BadInputError
from muster.core.moment import parse_moment
from muster.core.slots import format_bytes
from muster.core.use_report import KEYS, Line, Totals, use_report
from muster.service.use_views import AMOUNTS, line_json
from muster.service.views import timestamp

_DAY = 86400.0


@click.command()
@click.option(
    "--by", "keys", metavar="KEY", multiple=True, help=f"A line for each: {', '.join(KEYS)}; may be repeated."
)
@click.option("--since", metavar="TIME", help="2026-11-01, 2026-11-22T08:00, or 7d: so long ago. 30 days by default.")
@click.option("--until", metavar="TIME", help="In the same forms; now by default.")
@click.option("--user", "-u", "users", metavar="USER", multiple=True, help="Only this user's; may be repeated.")
@click.option("--project", "-P", "projects", metavar="PROJECT", multiple=True, help="Only this project's; likewise.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a line of headers.")
@json_option
def report(
    keys: tuple[str, ...],
    since: str | None,
    until: str | None,
    users: tuple[str, ...],
    projects: tuple[str, ...],
    as_csv: bool,
    as_json: bool,
) -> None:
    """Add up what sessions were given and what they used, by user unless --by says otherwise.

    Of a session that runs longer than the time asked for, the part within it counts. Days begin at midnight UTC.
    """
    if as_csv and as_json:
        raise BadInputError("--csv: --json is given as well; give one of them")
    by = _keys(keys)
    now = time.time()
    begins, ends = _moment("--since", since, now - 30 * _DAY, now), _moment("--until", until, now, now)
    if ends <= begins:
        raise BadInputError("--until: it is not after --since; leave it out, or give a later time")
    with sessions() as service:
        lines = use_report(service.store.uses.runs(begins, ends, now, users, projects), begins, ends, by)
    if as_json:
        span = {"since": timestamp(begins), "until": timestamp(ends), "by": by}
        print_json({**span, "lines": [line_json(line, by) for line in lines]})
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, [*by, *AMOUNTS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(line_json(line, by) for line in lines)
    else:
        print_table((*(key.upper() for key in by), *_HEADERS), [(*line.keys, *_cells(line)) for line in lines])


def print_uses(uses: Sequence[Mapping[str, Any]]) -> None:
    """What each kernel of a session has used, in each of its runs."""
    if not uses:
        return
    print_table(
        ("KERNEL", "SINCE", "CPU TIME", "PEAK MEMORY", "NET IN", "NET OUT", "GPU TIME"),
        [
            (
                use["kernel"],
                use["began_at"],
                _seconds(use["cpu_seconds"]),
                _bytes(use["mem_peak_bytes"]),
                _bytes(use["net_rx_bytes"]),
                _bytes(use["net_tx_bytes"]),
                _seconds(use["gpu_seconds"]),
            )
            for use in uses
        ],
    )
    click.echo()


_HEADERS = (
    "SESSIONS",
    "KERNELS",
    "CPU H",
    "CPU H USED",
    "MEM GIB H",
    "GPU H",
    "FGPU H",
    "GPU H USED",
    "WAIT",
    "LONGEST",
)


def _cells(line: Line) -> tuple[object, ...]:
    totals: Totals = line.totals
    mean = totals.wait_s / totals.waits if totals.waits else None
    return (
        totals.sessions,
        totals.kernels,
        f"{totals.cpu_hours_allocated:.2f}",
        f"{totals.cpu_hours_used:.2f}",
        f"{totals.mem_gib_hours_allocated:.2f}",
        f"{totals.gpu_hours_allocated:.2f}",
        f"{totals.fgpu_hours_allocated:.2f}",
        f"{totals.gpu_hours_used:.2f}",
        "-" if mean is None else format_duration(mean),
        "-" if mean is None else format_duration(totals.longest_wait_s),
    )


def _keys(given: Sequence[str]) -> list[str]:
    words = [word.strip() for item in given for word in item.split(",")]
    for word in words:
        if word not in KEYS:
            raise BadInputError(f"--by: there is no key {word!r}; use {', '.join(KEYS)}")
    return list(dict.fromkeys(words)) or ["user"]


def _moment(option: str, text: str | None, default: float, now: float) -> float:
    """A point in time, or how long ago."""
    if text is None:
        return default
    try:
        return now - parse_duration(text) if text[-1:] in "smhd" and text else _point(text, now)
    except ValueError as error:
        remedy = "write 2026-11-22, 2026-11-22T08:00, or 7d for seven days ago"
        raise BadInputError(f"{option}: {error}; {remedy}") from None


def _point(text: str, now: float) -> float:
    return parse_moment(text, datetime.fromtimestamp(now, UTC).astimezone())


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _bytes(value: int | None) -> str:
    return "-" if value is None else format_bytes(value)
