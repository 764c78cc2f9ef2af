"""Countable resources, as integers: floats would lose shares by rounding."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Protocol

# Far above any machine, and far below what a division or a database column cannot hold.
_MOST_MILLI = 10**12
_MOST_BYTES = 1 << 60
_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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

    def fits_in(self, room: "Slots") -> bool:
        return self.cpu <= room.cpu and self.mem <= room.mem and self.fgpu <= room.fgpu and self.gpu <= room.gpu

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


def total(slots: Iterable[Slots]) -> Slots:
    return sum(slots, start=Slots())


def parse_milli(value: object) -> int:
    """Return `2`, `0.5`, `"1.25"` or `"500m"` in thousandths.

    Raises ValueError for anything else, for a negative amount and for a fraction finer than a thousandth.
    """
    text = str(value).strip()
    try:
        amount = Decimal(text[:-1]) if text.endswith("m") else Decimal(text) * 1000
    except ArithmeticError:
        raise ValueError(f"{text!r} is not a number") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text!r} is not a positive number")
    if amount > _MOST_MILLI:
        raise ValueError(f"{text!r} is too large a number")
    if amount != amount.to_integral_value():
        raise ValueError(f"{text!r} is finer than a thousandth")
    return int(amount)


def parse_bytes(value: object) -> int:
    """Return `1073741824`, `"1G"`, `"1GiB"` or `"512m"` in bytes; K, M, G and T are powers of 1024.

    Docker and Slurm read them the same way. Raises ValueError for anything else and for a negative amount.
    """
    text = str(value).strip()
    number = text.upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in _BINARY else ""
    try:
        amount = Decimal(number.removesuffix(unit) if unit else number) * _BINARY[unit]
    except ArithmeticError:
        raise ValueError(f"{text!r} is not an amount of bytes") from None
    if not amount.is_finite() or amount < 0:
        raise ValueError(f"{text!r} is not a positive amount of bytes")
    if amount > _MOST_BYTES:
        raise ValueError(f"{text!r} is too large an amount of bytes")
    return int(amount)


def format_milli(amount: int) -> str:
    return f"{amount / 1000:g}"


def format_bytes(amount: int) -> str:
    for unit in ("T", "G", "M", "K"):
        if amount >= _BINARY[unit]:
            return f"{round(amount / _BINARY[unit], 1):g}{unit}"
    return str(amount)


def format_slot(name: str, amount: int) -> str:
    if name == "mem":
        return format_bytes(amount)
    return str(amount) if name == "gpu" else format_milli(amount)


def format_slots(slots: SlotAmounts) -> str:
    """Return the slots for people: `cpu 2, mem 4G, gpu 1`; empty ones are left out."""
    parts = [f"{name} {format_slot(name, getattr(slots, name))}" for name in SLOT_NAMES if getattr(slots, name)]
    return ", ".join(parts) or "nothing"
