"""What was used, as plain data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from muster.core.model.session import Session
from muster.core.usage.kernel import KernelUse
from muster.core.usage.report import Line, Totals
from muster.core.values.moment import timestamp

AMOUNTS = tuple(field.name for field in fields(Totals))
_DIGITS = 6


def line_json(line: Line, by: Sequence[str]) -> dict[str, Any]:
    """The keys by their names, then the amounts."""
    totals = asdict(line.totals)
    amounts = {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in totals.items()}
    return {**dict(zip(by, line.keys, strict=True)), **amounts}


def use_json(use: KernelUse, names: Mapping[str, str]) -> dict[str, Any]:
    """`names` are the kernels' by id. `run` is the launch's generation: it goes up with each launch."""
    return {
        "kernel": names.get(use.kernel_id),
        "run": use.generation,
        "began_at": timestamp(use.began_at),
        "seen_at": timestamp(use.seen_at),
        "cpu_seconds": use.cpu_seconds,
        "mem_bytes": use.mem_bytes,
        "mem_peak_bytes": use.mem_peak_bytes,
        "net_rx_bytes": use.net_rx_bytes,
        "net_tx_bytes": use.net_tx_bytes,
        "gpu_seconds": use.gpu_seconds,
        "idle_since": timestamp(use.idle_since),
    }


def session_uses_json(session: Session, uses: Iterable[KernelUse]) -> list[dict[str, Any]]:
    """Of all its runs, the oldest first, each by its kernels' ranks."""
    names = {kernel.id: kernel.name for kernel in session.kernels}
    ranks = {kernel.id: kernel.rank for kernel in session.kernels}
    ordered = sorted(uses, key=lambda use: (use.generation, ranks.get(use.kernel_id, len(ranks))))
    return [use_json(use, names) for use in ordered]
