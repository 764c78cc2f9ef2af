"""A session spec as a person would write it: only what differs from the defaults, in the short forms of its fields."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from muster.core.spec.apps import AppSpec, PublishedPort
from muster.core.spec.base import SpecModel
from muster.core.spec.mounts import MountSpec
from muster.core.spec.roles import RoleSpec
from muster.core.spec.session_spec import SessionSpec
from muster.core.spec.startup import SecretSpec
from muster.core.spec.values import WrittenAs


def written(spec: SessionSpec) -> dict[str, Any]:
    """Return plain data that the spec can be made of again; a begin in UTC, to the microsecond."""
    values: dict[str, Any] = {}
    for name, field in SessionSpec.model_fields.items():
        value = getattr(spec, name)
        if value != field.get_default(call_default_factory=True):
            values[name] = written_value(field, value)
    return values


def written_value(field: FieldInfo, value: Any) -> Any:  # noqa: ANN401 - a field's value, and plain data
    """Return one field's value, as `written` gives it."""
    if value is None:
        return None
    alternatives = (getattr(kind, "__metadata__", ()) for kind in get_args(field.annotation))  # of `Seconds | None`
    for part in chain(field.metadata, *alternatives):
        if isinstance(part, WrittenAs):
            return part.form(value)
    if isinstance(value, tuple):
        return [_item(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _item(item: object) -> Any:  # noqa: ANN401 - plain data
    match item:
        case MountSpec():
            return _shortest(item, _mount_texts(item))
        case RoleSpec():
            return _shortest(item, [_role_text(item)])
        case SecretSpec():
            return _shortest(item, [item.name, f"{item.name}={item.env}", f"{item.name}:{item.path}"])
        case AppSpec():
            return _shortest(item, [item.name, f"{item.name}={item.port}"])
        case PublishedPort():
            return item.port if item.name == str(item.port) else f"{item.name}={item.port}"
    return item


def _shortest(item: SpecModel, texts: Iterable[str]) -> Any:  # noqa: ANN401 - text or a mapping
    """Return the first of the texts that means the item, or its fields where none does."""
    for text in texts:
        try:
            meant = type(item).model_validate(text)
        except ValidationError:
            continue
        if meant == item and _mode(meant) == _mode(item):
            return text
    return _fields(item)


def _fields(item: SpecModel) -> dict[str, Any]:
    values = {name: getattr(item, name) for name in type(item).model_fields}
    kept = item.model_fields_set if isinstance(item, MountSpec) else {n for n, v in values.items() if v is not None}
    fields = type(item).model_fields
    return {
        name: written_value(fields[name], value) for name, value in values.items() if name in kept or name == "target"
    }


def _mode(item: SpecModel) -> bool | None:
    """Return the mode that a mount's user chose, None where they left it to the default."""
    return item.read_only if isinstance(item, MountSpec) and "read_only" in item.model_fields_set else None


def _mount_texts(mount: MountSpec) -> list[str]:
    mode = {None: "", True: ":ro", False: ":rw"}[_mode(mount)]
    return [f"{mount.folder}{mode}", f"{mount.folder}:{mount.target}{mode}"]


def _role_text(role: RoleSpec) -> str:
    fields: Mapping[str, Any] = _fields(role)
    settings = [f"{name}={value}" for name, value in fields.items() if name not in {"name", "replicas"}]
    return ",".join([f"{role.name}:{role.replicas}", *settings])
