"""Countable resources, as integers: floats would lose shares by rounding."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Protocol

from muster.core.values.units import format_bytes, format_milli, spell_bytes


@dataclass(frozen=True, slots=True)
class Slots:
    """The amounts: `cpu` in milli-cores, `mem` in bytes, `fgpu` in thousandths of a unit, `gpu` in whole devices."""

    cpu: int = 0
    mem: int = 0
    fgpu: int = 0
    gpu: int = 0

    def __add__(self, other: "Slots") -> "Slots":
        return Slots(self.cpu + other.cpu, self.mem + other.mem, self.fgpu + other.fgpu, self.gpu + other.gpu)

    def __sub__(self, other: "Slots") -> "Slots":
        return Slots(self.cpu - other.cpu, self.mem - other.mem, self.fgpu - other.fgpu, self.gpu - other.gpu)

    def beyond(self, room: "Slots") -> dict[str, int]:
        """Return how much of each slot is missing in `room`; only the slots that are short."""
        missing = {name: getattr(self, name) - getattr(room, name) for name in SLOT_NAMES}
        return {name: amount for name, amount in missing.items() if amount > 0}


class SlotAmounts(Protocol):
    """The amounts of `Slots`, wherever they stand: also in views."""

    @property
    def cpu(self) -> int: ...

    @property
    def mem(self) -> int: ...

    @property
    def fgpu(self) -> int: ...

    @property
    def gpu(self) -> int: ...


SLOT_NAMES = tuple(field.name for field in fields(Slots))
_SPELLED = {"cpu": "CPU", "mem": "memory", "fgpu": "fGPU", "gpu": "GPU"}


def total(slots: Iterable[Slots]) -> Slots:
    return sum(slots, start=Slots())


def format_slot(name: str, amount: int) -> str:
    if name == "mem":
        return format_bytes(amount)
    return str(amount) if name == "gpu" else format_milli(amount)


def format_slots(slots: SlotAmounts) -> str:
    """Return the slots for people: `cpu 2, mem 4G, gpu 1`; empty ones are left out."""
    parts = [f"{name} {format_slot(name, getattr(slots, name))}" for name in SLOT_NAMES if getattr(slots, name)]
    return ", ".join(parts) or "nothing"


def spell_name(name: str) -> str:
    """Return a slot's name for sentences: `CPU`, `memory`."""
    return _SPELLED[name]


def spell_slot(name: str, amount: int) -> str:
    """Return an amount with its unit, for sentences: `2 CPU`, `4 GiB memory`, `0.5 fGPU`, `1 GPU`."""
    return f"{spell_bytes(amount) if name == 'mem' else format_slot(name, amount)} {_SPELLED[name]}"


def spell_slots(slots: SlotAmounts) -> str:
    """Return the slots for sentences: `2 CPU, 4 GiB memory, 1 GPU`; empty ones are left out."""
    parts = [spell_slot(name, getattr(slots, name)) for name in SLOT_NAMES if getattr(slots, name)]
    return ", ".join(parts) or "nothing"
