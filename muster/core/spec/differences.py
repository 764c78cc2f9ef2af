"""What differs between two specs, for people."""

from collections.abc import Mapping
from typing import Any

from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.written import written_value

# What may be long, or somebody's secret.
_NOT_SHOWN = frozenset({"bootstrap", "callback", "command", "input", "script", "ssh_keys"})
_MOST_SHOWN = 60


def differences(before: SessionSpec, after: SessionSpec) -> tuple[str, ...]:
    """Return a phrase for each field that differs, such as `cpu 1 → 2`, or its name alone where it may be secret."""
    found = []
    for name, field in SessionSpec.model_fields.items():
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            found.append(_difference(name, written_value(field, old), written_value(field, new)))
    return tuple(found)


def _difference(name: str, old: object, new: object) -> str:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        return _clipped(f"{name} {', '.join(names)}", name)
    texts = _text(old), _text(new)
    if name in _NOT_SHOWN or any("command=" in text for text in texts):
        return name
    return _clipped(f"{name} {texts[0]} → {texts[1]}", name)


def _clipped(text: str, name: str) -> str:
    return text if len(text) <= _MOST_SHOWN else name


def _text(value: Any) -> str:  # noqa: ANN401 - plain data
    if value is None or value in ("", [], {}):
        return "none"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
