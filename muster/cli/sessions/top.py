"""`top`."""

import sys

import click

from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import or_dash, print_json, print_table
from muster.core.values.units import format_bytes, format_milli
from muster.service.usage.views import CurrentUsageView

_WHERE = ("SESSION", "KERNEL", "AGENT", "OWNER")
_HEADERS = (*_WHERE, "CPU", "MEMORY", "NET IN", "NET OUT", "GPU", "GPU MEM", "PROCESSES", "PROBLEM")


@click.command()
@click.argument("references", nargs=-1, metavar="[SESSION]…", shell_complete=complete_session)
@click.option("--once", is_flag=True, help="Print one measurement and end, as without a terminal.")
@click.option(
    "--interval", type=click.FloatRange(1, 3600), default=2.0, show_default=True, help="Seconds between two samples."
)
@json_option
def top(references: tuple[str, ...], once: bool, interval: float, as_json: bool) -> None:
    """Show what running sessions use at this moment, kernel by kernel; all of them, unless some are named.

    All agents are read at once; one that does not answer delays none of the others. Ends with Ctrl-C.
    """
    once = once or as_json or not sys.stdout.isatty()
    with opened_backend() as backend:
        for sample in backend.usage_samples(references, interval, once=once):
            if as_json:
                print_json(sample.items)
                continue
            if not once:
                click.clear()
            # Kernels of one session stay in the order of their ranks.
            print_table(_HEADERS, [_row(usage) for usage in sorted(sample.items, key=_most_cpu_first)])


def _most_cpu_first(usage: CurrentUsageView) -> tuple[float, str]:
    return -(usage.cpu_cores or 0.0), usage.session


def _row(usage: CurrentUsageView) -> list[object]:
    cpu, mem = format_milli(round(usage.cpu_cores_allocated * 1000)), format_bytes(usage.mem_bytes_allocated)
    return [
        usage.session,
        usage.kernel,
        usage.agent or "-",
        usage.owner,
        "-" if usage.cpu_cores is None else f"{usage.cpu_cores:.2f}/{cpu}",
        "-" if usage.mem_bytes is None else f"{format_bytes(usage.mem_bytes)}/{mem}",
        _rate(usage.net_rx_bytes_per_s),
        _rate(usage.net_tx_bytes_per_s),
        "-" if usage.gpu_percent is None else f"{usage.gpu_percent:.0f}%",
        or_dash(usage.gpu_mem_bytes, format_bytes),
        or_dash(usage.processes),
        usage.problem or "-",
    ]


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{format_bytes(int(bytes_per_s))}/s"
