"""`report`: what was used; and the same of one session, for `show`."""

import csv
import sys
import time
from collections.abc import Sequence

import click

from muster.cli.context import json_option, opened_backend
from muster.cli.output import or_dash, print_json, print_table
from muster.core.usage.report import KEYS
from muster.core.values.errors import BadInputError
from muster.core.values.units import format_bytes, format_duration, format_hours, format_seconds, timestamp
from muster.service.usage.reports import DEFAULT_SPAN_S, point_or_ago, report_keys
from muster.service.usage.views import AMOUNTS, KernelUsageView, TotalsView


@click.command()
@click.option("--by", "keys", metavar="KEY", multiple=True, help=f"Group by: {', '.join(KEYS)}; may be repeated.")
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

    Of a session that runs longer than this time, the part within it counts. Days begin at midnight UTC.
    """
    if as_csv and as_json:
        raise BadInputError("--csv: --json is given as well; give one of them")
    by = report_keys(keys, "--by")
    now = time.time()
    begins = now - DEFAULT_SPAN_S if since is None else point_or_ago(since, now, "--since")
    ends = now if until is None else point_or_ago(until, now, "--until")
    if ends <= begins:
        raise BadInputError("--until: it is not after --since; leave it out, or give a later time")
    with opened_backend() as backend:
        found = backend.report(begins, ends, by, users, projects)
    if as_json:
        print_json(found)
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, [*by, *AMOUNTS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(line.as_json() for line in found.lines)
    else:
        rows = [(*line.keys(by), *_cells(line)) for line in found.lines]
        print_table((*(key.upper() for key in by), *_HEADERS), rows)


def print_uses(uses: Sequence[KernelUsageView]) -> None:
    """Print what each kernel of a session has used, in each of its runs."""
    if not uses:
        return
    print_table(
        ("KERNEL", "SINCE", "CPU TIME", "PEAK MEMORY", "NET IN", "NET OUT", "GPU TIME"),
        [
            (
                use.kernel,
                timestamp(use.began_at),
                or_dash(use.cpu_seconds, format_seconds),
                or_dash(use.mem_peak_bytes, format_bytes),
                or_dash(use.net_rx_bytes, format_bytes),
                or_dash(use.net_tx_bytes, format_bytes),
                or_dash(use.gpu_seconds, format_seconds),
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


def _cells(totals: TotalsView) -> tuple[object, ...]:
    mean = totals.mean_wait_s
    return (
        totals.sessions,
        totals.kernels,
        format_hours(totals.cpu_hours_allocated),
        format_hours(totals.cpu_hours_used),
        format_hours(totals.mem_gib_hours_allocated),
        format_hours(totals.gpu_hours_allocated),
        format_hours(totals.fgpu_hours_allocated),
        format_hours(totals.gpu_hours_used),
        or_dash(mean, format_duration),
        or_dash(totals.longest_wait_s if totals.waits else None, format_duration),
    )
