"""The dialog in which users change what a session asks for while it waits: its fields, and what they have changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written_value

_LABELS: Mapping[str, str] = {
    "priority": "Priority",
    "time_limit": "Time limit",
    "cluster_size": "Containers",
    "cpu": "CPU cores",
    "mem": "Memory",
    "gpu": "GPUs",
    "fgpu": "fGPU units",
}


@dataclass(frozen=True, slots=True)
class UpdateField:
    """A field of the dialog; `default` is what an empty one means."""

    name: str
    label: str
    text: str
    default: str


def update_fields(values: Mapping[str, Any], entered: Mapping[str, str] | None = None) -> Sequence[UpdateField]:
    """Return the fields of a spec, whose `values` are as `written`, with what was entered in their place."""
    texts = entered or {name: _text(values.get(name)) for name in _LABELS}
    return [UpdateField(name, label, texts.get(name, ""), _default(name)) for name, label in _LABELS.items()]


def entered_changes(values: Mapping[str, Any], entered: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes of a spec that were entered; None for a field that was emptied."""
    texts = {name: text.strip() for name, text in entered.items() if name in _LABELS}
    return {name: text or None for name, text in texts.items() if text != _text(values.get(name))}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _default(name: str) -> str:
    field = SessionSpec.model_fields[name]
    return _text(written_value(field, field.get_default()))
