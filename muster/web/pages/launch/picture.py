"""The resources of a session's containers as shapes for a picture, and in words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from muster.core.model.session import size_text
from muster.core.spec.roles import KernelRole
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import SLOT_NAMES, Slots, format_slot, spell_slot, spell_slots, total
from muster.core.values.units import spell_bytes
from muster.service.specs.launch_choices import GroupRoom

WIDTH = 360
MAX_BOXES = 12
_MAX_PARTS = 60
_COLUMNS, _GAP, _PAD = 3, 9, 8
_BOX_WIDTH = (WIDTH - (_COLUMNS - 1) * _GAP) // _COLUMNS
_TITLE, _LINE, _LANE = 22, 24, 40
_TIMES = "\u00d7"


@dataclass(frozen=True, slots=True)
class Bar:
    """The amount of one slot of a container; `part` of the bar is full."""

    slot: str
    text: str
    x: float
    y: float
    width: float
    part: float


@dataclass(frozen=True, slots=True)
class Box:
    """A container, or all containers of a role."""

    name: str
    x: int
    y: int
    height: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A bar for one slot of all containers, side by side. `limit` is the end of the group's capacity, if known."""

    slot: str
    text: str
    y: int
    parts: tuple[tuple[float, float], ...]
    limit: float | None
    is_beyond: bool


@dataclass(frozen=True, slots=True)
class Picture:
    boxes: tuple[Box, ...]
    lanes: tuple[Lane, ...]
    height: int
    text: str


def picture_of(spec: SessionSpec, room: GroupRoom | None) -> Picture:
    """Return the picture. Boxes are to the scale of the group's largest agent, lanes to that of the whole group."""
    roles = spec.kernel_roles()
    everything = total(_times(role.slots, role.replicas) for role in roles)
    slots = [name for name in SLOT_NAMES if getattr(everything, name)]
    boxes = tuple(_boxes(roles, slots, room))
    top = max((box.y + box.height for box in boxes), default=0) + 2 * _GAP
    lanes = tuple(_lane(name, top + number * _LANE, roles, room) for number, name in enumerate(slots))
    return Picture(boxes, lanes, top + len(lanes) * _LANE, _sum_text(spec, roles, everything))


def _boxes(roles: Sequence[KernelRole], slots: Sequence[str], room: GroupRoom | None) -> Iterator[Box]:
    count = sum(role.replicas for role in roles)
    if count <= MAX_BOXES:
        shown = [(f"{role.name}{index}", role) for role in roles for index in range(1, role.replicas + 1)]
    else:
        shown = [(role.name + (f" {_TIMES} {role.replicas}" if role.replicas > 1 else "1"), role) for role in roles]
    height = _TITLE + len(slots) * _LINE + _PAD
    for number, (name, role) in enumerate(shown):
        x = number % _COLUMNS * (_BOX_WIDTH + _GAP)
        y = number // _COLUMNS * (height + _GAP)
        yield Box(name, x, y, height, tuple(_bars(role, roles, slots, room, x, y)))


def _bars(
    role: KernelRole, roles: Sequence[KernelRole], slots: Sequence[str], room: GroupRoom | None, x: int, y: int
) -> Iterator[Bar]:
    for line, name in enumerate(slots):
        amount = getattr(role.slots, name)
        most = max(getattr(other.slots, name) for other in roles)
        whole = max(most, getattr(room.largest, name) if room else 0)
        at = y + _TITLE + line * _LINE
        yield Bar(name, spell_slot(name, amount), x + _PAD, at, _BOX_WIDTH - 2 * _PAD, amount / whole if whole else 0)


def _lane(name: str, y: int, roles: Sequence[KernelRole], room: GroupRoom | None) -> Lane:
    amounts = [getattr(role.slots, name) for role in roles for _ in range(role.replicas)]
    requested, capacity = sum(amounts), getattr(room.total, name) if room else 0
    whole = max(requested, capacity)
    if len(amounts) > _MAX_PARTS:
        amounts = [getattr(role.slots, name) * role.replicas for role in roles]
    parts, x = [], 0.0
    for amount in filter(None, amounts):
        width = amount / whole * WIDTH
        parts.append((x, width))
        x += width
    of = f" of {_bare(name, capacity)} that the group has" if capacity else ""
    text = f"{spell_slot(name, requested)}{of}"
    limit = capacity / whole * WIDTH if capacity else None
    return Lane(name, text, y, tuple(parts), limit, bool(capacity) and requested > capacity)


def _sum_text(spec: SessionSpec, roles: Sequence[KernelRole], everything: Slots) -> str:
    """Return the resources of each container and the least sum; by role where roles differ."""
    size = size_text(spec, None)
    if size == "1":
        return f"1 container: {spell_slots(everything)}"
    at_least = f"{spell_slots(everything)}{' at least' if spec.is_elastic else ''}"
    if len({role.slots for role in roles}) == 1:
        return f"{size} containers {_TIMES} {spell_slots(roles[0].slots)} = {at_least}"
    parts = " + ".join(f"{role.replicas} {role.name} {_TIMES} ({spell_slots(role.slots)})" for role in roles)
    return f"{size} containers: {parts} = {at_least}"


def _times(slots: Slots, count: int) -> Slots:
    return Slots(slots.cpu * count, slots.mem * count, slots.fgpu * count, slots.gpu * count)


def _bare(name: str, amount: int) -> str:
    return spell_bytes(amount) if name == "mem" else format_slot(name, amount)
