"""Specs as plain data, before they are checked: one layer over another, and changes of a spec that there is."""

from collections.abc import Mapping
from typing import Any

ASSIGNMENTS = ("env", "labels")
"""Fields that hold NAME=VALUE."""
# Two ways to say one thing.
_TASKS = ("tasks", "tasks_per_kernel")
_ALTERNATIVES = (_TASKS, ("command", "script"))


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the layers. Later ones win, field by field; in what holds NAME=VALUE, name by name."""
    found: dict[str, Any] = {}
    for layer in layers:
        if not layer.keys().isdisjoint(_TASKS):
            found = {field: value for field, value in found.items() if field not in _TASKS}
        both = {
            field: _by_name(found[field]) | _by_name(layer[field])
            for field in ASSIGNMENTS
            if _can_be_read(found.get(field)) and _can_be_read(layer.get(field))
        }
        found |= {**layer, **both}
    return found


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec's values with the changes: a merge patch (RFC 7396).

    None sets a field to its default, and takes one name out of those that hold NAME=VALUE. A new command replaces a
    script, and the other way around.
    """
    left = {field: value for field, value in values.items() if changes.get(field, value) is not None}
    new = {field: value for field, value in changes.items() if value is not None}
    for field in ASSIGNMENTS:
        given = new.get(field)
        if isinstance(given, Mapping):
            left[field] = {name: content for name, content in left.get(field, {}).items() if name not in given}
            new[field] = {name: content for name, content in given.items() if content is not None}
    for pair in _ALTERNATIVES:
        if not new.keys().isdisjoint(pair):
            left = {field: value for field, value in left.items() if field not in pair}
    return merged(left, new)


def _can_be_read(value: object) -> bool:
    """Return whether the value holds NAME=VALUE; any other is left for the spec to refuse."""
    return isinstance(value, Mapping) or (isinstance(value, list) and all("=" in str(item) for item in value))


def _by_name(value: Any) -> dict[str, Any]:  # noqa: ANN401 - either form of the spec's field
    return dict(value) if isinstance(value, Mapping) else dict(str(item).split("=", 1) for item in value)
