"""A physical GPU as a bar, to scale: its shares, the used memory of each, and what is free."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muster.core.agents.agent import UNIT
from muster.core.values.units import format_milli, spell_bytes
from muster.service.agents.views import GpuHolderView, GpuView

_WIDTH, _HEIGHT, _STRIP = 480, 36, 6
_LEAST_LABEL, _LETTER = 24.0, 7.2
_KINDS = 6


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a device. `number` is its colour, 0 for another user's; `text` is its size."""

    held: GpuHolderView
    number: int
    text: str

    @property
    def is_other_users(self) -> bool:
        return not self.held.session_id


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that is not in MIG mode, or a MIG instance; `free` is empty if nothing is free."""

    gpu: GpuView
    name: str
    parts: tuple[Part, ...]
    free: str


@dataclass(frozen=True, slots=True)
class GpuCard:
    """A physical GPU: its devices, their picture, and its memory as the driver counts it."""

    index: int
    model: str
    devices: tuple[Device, ...]
    memory: str
    picture: Markup
    quarantine: str | None
    warning: str | None


def gpu_cards(gpus: Sequence[GpuView]) -> list[GpuCard]:
    """Return the GPUs of one agent, in the order of their indexes."""
    physical: dict[str, list[GpuView]] = {}
    for gpu in sorted(gpus, key=lambda gpu: gpu.index):
        physical.setdefault(gpu.parent_uuid or gpu.uuid, []).append(gpu)
    return [_card(of_one) for of_one in physical.values()]


def _card(gpus: Sequence[GpuView]) -> GpuCard:
    devices, number = [], 0
    for gpu in gpus:
        parts = []
        for held in gpu.shares:
            number += bool(held.session_id)
            parts.append(Part(held, (number - 1) % _KINDS + 1 if held.session_id else 0, _size_text(held)))
        devices.append(Device(gpu, f"MIG {gpu.mig_profile}" if gpu.mig_profile else "", tuple(parts), _free(gpu)))
    first = gpus[0]
    return GpuCard(
        first.index,
        first.model,
        tuple(devices),
        _memory(gpus),
        _picture(first.index, devices),
        first.quarantine,
        first.warning,
    )


def _size_text(held: GpuHolderView) -> str:
    parts = ["all of it" if held.is_device else f"{format_milli(held.amount)} fGPU"]
    if held.mem_bytes is not None:
        parts.append(f"{spell_bytes(held.mem_bytes)} of memory")
    if held.used_bytes is not None:
        parts.append(f"uses {spell_bytes(held.used_bytes)}")
    return ", ".join(parts)


def _free(gpu: GpuView) -> str:
    if not gpu.free:
        return ""
    if gpu.free == gpu.capacity:
        return "free"
    return f"{format_milli(gpu.free)} fGPU free"


def _memory(gpus: Iterable[GpuView]) -> str:
    measured = [gpu for gpu in gpus if gpu.mem_used is not None]
    if not measured:
        return "unknown"
    used = sum(gpu.mem_used or 0 for gpu in measured)
    return f"{spell_bytes(used)} used of {spell_bytes(sum(gpu.mem for gpu in measured))}"


def _picture(index: int, devices: Sequence[Device]) -> Markup:
    begin, drawn = 0.0, Markup()
    for device in devices:
        width = _WIDTH * (device.gpu.fraction / UNIT if device.gpu.exclusive else 1.0)
        drawn += _device(device, begin, min(width, _WIDTH - begin))
        begin += width
    label = f"GPU {index}: " + "; ".join(_in_words(device) for device in devices)
    return Markup('<svg class="gpu" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        _WIDTH, _HEIGHT, label, drawn
    )


def _in_words(device: Device) -> str:
    parts = [f"{_owner(part)} {part.text}" for part in device.parts]
    text = ", ".join([*parts, *([device.free] if device.free else [])])
    return f"{device.name}: {text}" if device.name else text


def _owner(part: Part) -> str:
    return "another user" if part.is_other_users else f"{part.held.session} {part.held.kernel}"


def _device(device: Device, begin: float, width: float) -> Markup:
    drawn = Markup('<rect class="gpu-free" x="{:.1f}" y="1" width="{:.1f}" height="{}"/>').format(
        begin + 1, max(0.0, width - 2), _HEIGHT - 2
    )
    at = begin
    for part in device.parts:
        size = min(part.held.amount / device.gpu.capacity * width, begin + width - at)
        drawn += _share(part, device.gpu, at, size)
        at += size
    return drawn + _label("free" if device.free else "", at, begin + width - at)


def _share(part: Part, gpu: GpuView, at: float, size: float) -> Markup:
    kind = f"gpu-share-{part.number}" if part.number else "gpu-share-other"
    drawn = Markup('<rect class="gpu-share {}" x="{:.1f}" y="1" width="{:.1f}" height="{}"/>').format(
        kind, at + 1, max(0.0, size - 2), _HEIGHT - 2
    )
    limit = part.held.mem_bytes or gpu.mem
    if part.held.used_bytes is not None and limit:
        used = min(1.0, part.held.used_bytes / limit)
        drawn += Markup('<rect class="gpu-used {}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>').format(
            kind, at + 1, _HEIGHT - 1 - _STRIP, max(0.0, (size - 2) * used), _STRIP
        )
    return drawn + _label("" if part.is_other_users else part.held.session, at, size)


def _label(text: str, at: float, size: float) -> Markup:
    """Return as much of the text as has room."""
    most = int((size - 12) / _LETTER)
    if not text or size < _LEAST_LABEL or most < 2:
        return Markup()
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return Markup('<text class="gpu-text" x="{:.1f}" y="20">{}</text>').format(at + 6, shown)
