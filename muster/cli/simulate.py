"""`simulate`: a workload on an imagined cluster, or on one's own, decided by the scheduler that the site runs."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import click

from muster.cli.context import json_option, opened_service
from muster.cli.output import print_json, print_table
from muster.core.simulation.simulation import Job, Life, Progress, Simulated
from muster.core.simulation.summary import Summary, Window, summarize
from muster.core.simulation.usage_of_cluster import SLOTS_IN_USE
from muster.core.values.errors import BadInputError
from muster.core.values.units import format_duration, parse_span
from muster.service.questions.traces import TRACES, format_of
from muster.service.questions.what_if import HISTORY, LIVE, Trial, WhatIf, agents_of, jobs_of, policies, site_policy
from muster.settings import load_settings

_BARS = "▁▂▃▄▅▆▇█"
_SHOWN_EVERY_S = 3.0
_USE_NAMES = {"cpu": "cpu", "mem": "mem", "gpu": "GPUs", "fragmented": "GPUs free, but of no use"}


@click.command()
@click.option(
    "--cluster", required=True, metavar=f"FILE|{LIVE}", help="Agents: a YAML file, a CSV node list, or the site's own."
)
@click.option(
    "--workload",
    required=True,
    metavar=f"FILE|{HISTORY}",
    help="Sessions: a YAML file, a CSV trace, or those that the site has run.",
)
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True, metavar="N",
              help=f"With `--workload {HISTORY}`: how far back.")  # fmt: skip
@click.option(
    "--trace", type=click.Choice(TRACES), help="The trace whose files these are, for other endings than .csv."
)
@click.option("--column", "columns", multiple=True, metavar="FIELD=COLUMN",
              help="Where a trace of another form has a field, such as arrival=submit_time.")  # fmt: skip
@click.option("--order", metavar="NAME", help="Queue order, in place of the site's: fifo, lifo, drf, fair_share, …")
@click.option("--policy", metavar="NAME", help="Placement policy, in place of the site's: pack, spread, …")
@click.option("--compare", metavar="NAME,NAME", help="Several orders or placement policies, side by side.")
@click.option("--backfill/--no-backfill", default=None, help="Whether sessions may pass one that waits.")
@click.option("--preemption/--no-preemption", default=None, help="Whether preemptible sessions give way.")
@click.option("--defragment/--no-defragment", default=None, help="Whether restartable sessions move for one.")
@click.option("--until", metavar="TIME", help="Stop after this time, such as 7d.")
@click.option("--window", metavar="FROM..TO", help="Figures of this time alone, such as 1d..6d or 20%..80%.")
@click.option("--launch-time", default="5s", show_default=True, metavar="TIME", help="From placing to running.")
@click.option("--pass-interval", default="1s", show_default=True, metavar="TIME", help="Least time between decisions.")
@click.option("--sessions", "each", is_flag=True, help="Also what became of each session.")
@json_option
def simulate(
    cluster: str,
    workload: str,
    days: float,
    trace: str | None,
    columns: tuple[str, ...],
    order: str | None,
    policy: str | None,
    compare: str | None,
    backfill: bool | None,
    preemption: bool | None,
    defragment: bool | None,
    until: str | None,
    window: str | None,
    launch_time: str,
    pass_interval: str,
    each: bool,
    as_json: bool,
) -> None:
    r"""Try a workload on a cluster that need not exist; nothing is started.

    \b
      muster simulate --cluster cluster.yml --workload workload.yml
      muster simulate --cluster live --workload history --days 30 --compare fifo,drf
      muster simulate --cluster nodes.csv --workload trace.csv --compare pack,fragmentation --until 7d
      muster simulate --cluster cluster_machine_list --workload cluster_job_log --trace philly --window 20%..80%

    Everything else is as in the site's settings; for a live cluster, or a history, with the limits and share weights
    that administrators set over them. How files look: docs/what-if.md.
    """
    settings = load_settings()
    changes = {"backfill": backfill, "preemption": preemption, "defragment": defragment}
    with ExitStack() as stack:

        def what_if() -> WhatIf:
            return stack.enter_context(opened_service()).what_if()

        ways = policies(
            site_policy(cluster, workload, settings, what_if),
            settings.scheduler_plugins,
            order,
            policy,
            [name.strip() for name in (compare or "").split(",") if name.strip()],
            {name: value for name, value in changes.items() if value is not None},
        )
        form = format_of(trace, columns)
        agents = agents_of(cluster, form, what_if)
        arriving = jobs_of(workload, form, days, what_if)
    jobs = arriving.jobs
    began_at = min(job.session.submitted_at for job in jobs)
    seen = None if window is None else _window(window, jobs)
    trial = Trial(
        agents,
        jobs,
        launch_s=_seconds("--launch-time", launch_time),
        interval_s=_seconds("--pass-interval", pass_interval),
        until=None if until is None else began_at + _seconds("--until", until),
    )
    results = {name: trial.run(way, settings.usage_half_life_s, _Shown(name)) for name, way in ways.items()}
    if as_json:
        print_json({name: _result_json(result, seen, each=each) for name, result in results.items()})
        return
    left_out = f"; {arriving.left_out} left out, as it is not known how long they ran" if arriving.left_out else ""
    click.echo(f"{len(agents)} agents, {len(jobs)} sessions{left_out}")
    summaries = {name: summarize(result, seen) for name, result in results.items()}
    print_table(
        ("", *summaries), _figures(summaries.values(), "time of the window" if seen else "time to the last end")
    )
    for name, summary in summaries.items():
        click.echo(f"\nin use, {name} (a bar is {format_duration(summary.span_s / len(summary.over_time['cpu']))}):")
        print_table(("SLOT", "0 TO 100 %"), [(_USE_NAMES[s], _spark(summary.over_time[s])) for s in SLOTS_IN_USE])
    if each:
        for name, result in results.items():
            click.echo(f"\nsessions, {name}:")
            print_table(_LIFE_HEADERS, [_life_row(life, result.began_at) for life in result.lives])


class _Shown:
    """The progress of a long simulation, on stderr."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._next = time.monotonic() + _SHOWN_EVERY_S
        self._began_at: float | None = None

    def __call__(self, progress: Progress) -> None:
        self._began_at = progress.now if self._began_at is None else self._began_at
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _SHOWN_EVERY_S
            click.echo(
                f"muster: {self._name}: after {format_duration(progress.now - self._began_at)},"
                f" {progress.ended} of {progress.of} sessions have ended, {progress.running} run,"
                f" {progress.waiting} wait",
                err=True,
            )


def _seconds(flag: str, text: str) -> float:
    try:
        return float(parse_span(text))
    except ValueError as error:
        raise BadInputError(f"{flag}: {error}; write 30m, 2h, 7d or 90s") from None


def _window(text: str, jobs: Sequence[Job]) -> Window:
    """Return the window: times from the first arrival, or parts of the time from the first to the last one."""
    first, last = (pick(job.session.submitted_at for job in jobs) for pick in (min, max))
    begin, dots, end = text.partition("..")
    bounds = [first + _bound(part.strip(), last - first) for part in (begin, end) if dots and part.strip()]
    if len(bounds) < 2 or bounds[0] >= bounds[1]:
        raise BadInputError(f"--window: {text!r} is not FROM..TO; write a time and a later one, as 1d..6d or 20%..80%")
    return Window(*bounds)


def _bound(text: str, arriving_s: float) -> float:
    number = text.removesuffix("%")
    if number == text:
        return _seconds("--window", text)
    if not number.isdecimal() or int(number) > 100:
        raise BadInputError(f"--window: {text!r} is no part of 100 %; write such as 20%")
    return int(number) / 100 * arriving_s


def _figures(summaries: Iterable[Summary], time_name: str) -> list[list[object]]:
    """Return the rows of a table with a column for each simulation."""
    columns = [_column(summary, time_name) for summary in summaries]
    return [[name, *(column[name] for column in columns)] for name in columns[0]]


def _column(summary: Summary, time_name: str) -> Mapping[str, object]:
    waits = summary.waits
    return {
        "sessions started": summary.started,
        "ended": summary.ended,
        "  at their time limit": summary.timed_out,
        "still running": summary.running,
        "still waiting": summary.waiting,
        "could never start": summary.never,
        "preempted": summary.preemptions,
        time_name: format_duration(summary.span_s),
        "wait, mean": format_duration(waits.mean),
        "wait, median": format_duration(waits.median),
        "wait, 95 % below": format_duration(waits.p95),
        "wait, longest": format_duration(waits.max),
        "gang wait, mean": format_duration(summary.gang_waits.mean),
        "gang wait, 95 % below": format_duration(summary.gang_waits.p95),
        "bounded slowdown, mean": f"{summary.slowdowns.mean:.2f}",
        "bounded slowdown, 95 % below": f"{summary.slowdowns.p95:.2f}",
        **{f"{_USE_NAMES[name]}, mean": f"{summary.use[name]:.1%}" for name in SLOTS_IN_USE},
        "decisions": summary.decisions,
    }


def _spark(values: Iterable[float]) -> str:
    return "".join(_BARS[min(len(_BARS) - 1, max(0, int(value * len(_BARS))))] for value in values)


_LIFE_HEADERS = ("NAME", "OWNER", "ARRIVED", "WAITED", "RAN", "FATE", "AGENTS")


def _life_row(life: Life, began_at: float) -> list[object]:
    return [
        life.session.name,
        life.session.owner,
        format_duration(life.session.submitted_at - began_at),
        "-" if life.waited_s is None else format_duration(life.waited_s),
        "-" if life.ended_at is None or life.started_at is None else format_duration(life.ended_at - life.started_at),
        life.fate if not life.reason else f"{life.fate}: {life.reason}",
        ",".join(_agents(life)) or "-",
    ]


def _agents(life: Life) -> list[str]:
    return list(dict.fromkeys(kernel.allocation.agent_id for kernel in life.kernels if kernel.allocation))


def _result_json(result: Simulated, window: Window | None, *, each: bool) -> dict[str, Any]:
    figures = asdict(summarize(result, window))
    return {**figures, "sessions": [_life_json(life) for life in result.lives]} if each else figures


def _life_json(life: Life) -> dict[str, Any]:
    """Return a session's life as JSON. Times are seconds on the workload's own clock."""
    return {
        "id": life.session.id,
        "name": life.session.name,
        "owner": life.session.owner,
        "fate": life.fate,
        "reason": life.reason or None,
        "arrived_at": life.session.submitted_at,
        "placed_at": life.placed_at,
        "started_at": life.started_at,
        "ended_at": life.ended_at,
        "waited_s": life.waited_s,
        "starts": life.starts,
        "agents": _agents(life),
    }
