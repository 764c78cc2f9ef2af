"""`top`."""

import sys
from collections.abc import Sequence

import click

from muster.cli.context import backend, complete_session, json_option
from muster.cli.output import print_json, print_table
from muster.core.values.slots import format_bytes, format_milli
from muster.service.usage.live import KernelNow
from muster.service.usage.views import CurrentUsageView

_WHERE = ("SESSION", "KERNEL", "AGENT", "OWNER")
_HEADERS = (*_WHERE, "CPU", "MEMORY", "NET IN", "NET OUT", "GPU", "GPU MEM", "PROCESSES", "PROBLEM")


@click.command()
@click.argument("references", nargs=-1, metavar="[SESSION]…", shell_complete=complete_session)
@click.option("--once", is_flag=True, help="Look once, and end; as it is where the output is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(1, 3600), default=2.0, show_default=True, help="Seconds between two looks."
)
@json_option
def top(references: tuple[str, ...], once: bool, interval: float, as_json: bool) -> None:
    """Show what running sessions use at this moment, kernel by kernel; all of them, unless some are named.

    All agents are asked at once; one that does not answer delays none of the others. Ends with Ctrl-C.
    """
    once = once or as_json or not sys.stdout.isatty()
    with backend() as asked:
        for now in asked.looks(references, interval, once=once):
            if as_json:
                print_json([CurrentUsageView.of(kernel) for kernel in now])
                continue
            if not once:
                click.clear()
            _print(now)


def _print(kernels: Sequence[KernelNow]) -> None:
    print_table(_HEADERS, [_row(now) for now in sorted(kernels, key=_most_cpu_first)])


def _most_cpu_first(now: KernelNow) -> tuple[float, str, int]:
    cpu = now.use.cpu_cores if now.use else None
    return -(cpu or 0.0), now.session.name, now.kernel.rank


def _row(now: KernelNow) -> list[object]:
    use, kernel = now.use, now.kernel
    return [
        now.session.name,
        kernel.name,
        kernel.allocation.agent_id if kernel.allocation else "-",
        now.session.owner,
        "-" if use is None or use.cpu_cores is None else f"{use.cpu_cores:.2f}/{format_milli(kernel.slots.cpu)}",
        "-" if use is None else f"{format_bytes(use.mem_bytes or 0)}/{format_bytes(kernel.slots.mem)}",
        _rate(now.net_rx_per_s),
        _rate(now.net_tx_per_s),
        "-" if now.gpu_percent is None else f"{now.gpu_percent:.0f}%",
        "-" if now.gpu_mem_bytes is None else format_bytes(now.gpu_mem_bytes),
        "-" if use is None else use.processes,
        now.problem or "-",
    ]


def _rate(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{format_bytes(int(bytes_per_s))}/s"
