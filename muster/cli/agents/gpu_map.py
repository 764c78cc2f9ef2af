"""The shares of GPUs, drawn."""

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase

from muster.cli.output import print_table
from muster.core.model.session import Session
from muster.core.values.slots import format_bytes, format_milli
from muster.service.agents.gpu_map import GpuUse, HeldShare

_CELLS = 20
_LETTERS = ascii_lowercase + ascii_uppercase


def print_gpu_map(uses: Iterable[GpuUse]) -> None:
    """A line for each GPU; of a bar, a letter stands for a kernel's share and a dot for what is free."""
    print_table(
        ("AGENT", "GPU", "MODEL", "SHARES", "FGPU FREE", "MEMORY", "KERNELS"),
        [
            (
                use.agent_id,
                use.gpu.index,
                _model(use),
                _bar(use),
                f"{format_milli(use.free)}/{format_milli(use.gpu.capacity)}" if use.gpu.units else "-",
                _memory(use.mem_used_bytes, use.gpu.mem),
                ", ".join(f"{letter} {_holder(held)}" for letter, held in zip(_letters(use), use.held, strict=True))
                or "-",
            )
            for use in uses
        ],
    )


def print_kernels_gpus(session: Session, shares: Mapping[str, Sequence[HeldShare]]) -> None:
    """What each kernel of a session has."""
    names = {kernel.id: kernel.name for kernel in session.kernels}
    print_table(
        ("KERNEL", "GPU", "SHARE", "COMPUTE", "MEMORY", "UUID", "PROBLEM"),
        [
            (
                names[kernel_id],
                held.gpu.index if held.gpu else "-",
                _share(held),
                "-" if held.compute is None else f"{held.compute / 10:g}%",
                _memory(held.used_bytes, _most_memory(held)),
                held.share.uuid,
                held.kernel.gpu_problem or "-",
            )
            for kernel_id, of_kernel in shares.items()
            for held in of_kernel
        ],
    )


def _model(use: GpuUse) -> str:
    profile = use.gpu.mig_profile
    return use.gpu.model if profile is None or profile in use.gpu.model else f"{use.gpu.model} {profile}"


def _letters(use: GpuUse) -> list[str]:
    return [_LETTERS[place % len(_LETTERS)] for place in range(len(use.held))]


def _bar(use: GpuUse) -> str:
    """Each share as long as it is of the GPU, but no shorter than one cell while there are cells."""
    cells, taken = "", 0
    for letter, held in zip(_letters(use), use.held, strict=True):
        taken += held.amount
        end = max(len(cells) + 1, round(_CELLS * taken / use.gpu.capacity))
        cells = cells.ljust(end, letter)[:_CELLS]
    return f"[{cells.ljust(_CELLS, '.')}]"


def _holder(held: HeldShare) -> str:
    name = f"{held.session.name}/{held.kernel.name}"
    if held.is_device:
        return f"{name} {_share(held)}"
    return f"{name} {_share(held)} ({_memory(held.used_bytes, _most_memory(held))})"


def _share(held: HeldShare) -> str:
    return "whole" if held.is_device else format_milli(held.amount)


def _most_memory(held: HeldShare) -> int | None:
    if held.gpu and held.is_device:
        return held.gpu.mem
    return held.mem_bytes


def _memory(used: int | None, most: int | None) -> str:
    """Used of what there is, each a dash where nobody knows."""
    return "/".join("-" if amount is None else format_bytes(amount) for amount in (used, most))
