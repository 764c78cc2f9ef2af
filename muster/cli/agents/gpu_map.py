"""The shares of GPUs, drawn."""

from collections.abc import Iterable
from string import ascii_lowercase, ascii_uppercase

from muster.cli.output import or_dash, print_table
from muster.core.values.units import format_bytes, format_milli
from muster.service.agents.views import GpuHolderView, GpuView
from muster.service.sessions.views import GpuShareView, KernelView

_CELLS = 20
_LETTERS = ascii_lowercase + ascii_uppercase


def print_gpu_map(gpus: Iterable[GpuView]) -> None:
    """Print a line for each GPU; in its bar, a letter stands for a kernel's share and a dot for what is free."""
    print_table(
        ("AGENT", "GPU", "MODEL", "SHARES", "FGPU FREE", "MEMORY", "HEALTH", "KERNELS"),
        [
            (
                gpu.agent,
                gpu.index,
                _model(gpu),
                _bar(gpu),
                f"{format_milli(gpu.free)}/{format_milli(gpu.capacity)}" if gpu.units else "-",
                _memory(gpu.mem_used, gpu.mem),
                _health(gpu),
                ", ".join(f"{letter} {_holder(share)}" for letter, share in zip(_letters(gpu), gpu.shares, strict=True))
                or "-",
            )
            for gpu in gpus
        ],
    )


def print_kernels_gpus(kernels: Iterable[KernelView]) -> None:
    """Print the GPUs and shares of each kernel of a session."""
    print_table(
        ("KERNEL", "GPU", "SHARE", "COMPUTE", "MEMORY", "CAP", "UUID", "PROBLEM"),
        [
            (
                kernel.name,
                or_dash(share.index),
                _share(share),
                "-" if share.compute is None else f"{share.compute / 10:g}%",
                _memory(share.used_bytes, share.most_mem_bytes),
                _capped_by(share),
                share.uuid,
                kernel.gpu_problem or "-",
            )
            for kernel in kernels
            for share in kernel.gpus
        ],
    )


def _health(gpu: GpuView) -> str:
    quarantine = f"QUARANTINED ({gpu.quarantine})" if gpu.quarantine else ""
    return "; ".join(filter(None, (quarantine, gpu.warning))) or "ok"


def _model(gpu: GpuView) -> str:
    profile = gpu.mig_profile
    return gpu.model if profile is None or profile in gpu.model else f"{gpu.model} {profile}"


def _letters(gpu: GpuView) -> list[str]:
    return [_LETTERS[place % len(_LETTERS)] for place in range(len(gpu.shares))]


def _bar(gpu: GpuView) -> str:
    """Return the bar: each share as long as its part of the GPU, at least one cell while there are cells."""
    cells, taken = "", 0
    for letter, share in zip(_letters(gpu), gpu.shares, strict=True):
        taken += gpu.capacity if share.is_device else share.amount
        end = max(len(cells) + 1, round(_CELLS * taken / gpu.capacity))
        cells = cells.ljust(end, letter)[:_CELLS]
    return f"[{cells.ljust(_CELLS, '.')}]"


def _holder(share: GpuHolderView) -> str:
    name = f"{share.session}/{share.kernel}"
    if share.is_device:
        return f"{name} {_share(share)}"
    return f"{name} {_share(share)} ({_memory(share.used_bytes, share.mem_bytes)})"


def _share(share: GpuHolderView | GpuShareView) -> str:
    return "whole" if share.is_device else format_milli(share.amount)


def _capped_by(share: GpuShareView) -> str:
    if share.is_device or share.mem_bytes is None:
        return "-"
    return "libraries" if share.enforced_bytes is None else "driver"


def _memory(used: int | None, most: int | None) -> str:
    """Return the used and the whole memory as `USED/MOST`, each a dash where it is not known."""
    return f"{or_dash(used, format_bytes)}/{or_dash(most, format_bytes)}"
