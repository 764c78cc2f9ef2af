"""A session spec as a person would write it: only what differs from the defaults, in the short forms of its fields."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from muster.core.spec.apps import AppSpec, PublishedPort
from muster.core.spec.base import SpecModel
from muster.core.spec.session_spec import MountSpec, RoleSpec, SessionSpec
from muster.core.spec.startup import SecretSpec

_BYTES = (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10))
_SECONDS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def written(spec: SessionSpec) -> dict[str, Any]:
    """Plain data that the spec is made of again; a begin in UTC, to the microsecond."""
    values: dict[str, Any] = {}
    for name, field in SessionSpec.model_fields.items():
        value = getattr(spec, name)
        if value != field.get_default(call_default_factory=True):
            values[name] = written_value(name, value)
    return values


def amount_value(milli: int) -> int | float:
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def bytes_value(amount: int) -> str | int:
    """Exact: 1.5 GiB are 1536M."""
    return next((f"{amount // size}{unit}" for unit, size in _BYTES if amount and amount % size == 0), amount)


def span_text(seconds: int) -> str:
    """Exact, unlike `format_duration`."""
    parts = []
    for unit, size in _SECONDS:
        count, seconds = divmod(seconds, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)


def moment_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def written_value(name: str, value: Any) -> Any:  # noqa: ANN401 - a field's value, and plain data
    """One field's value, as `written` gives it."""
    match name:
        case "cpu" | "fgpu":
            return amount_value(value)
        case "mem" | "shm":
            return bytes_value(value)
        case "time_limit" | "idle_timeout":
            return span_text(value)
        case "begin":
            return moment_text(value)
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
    """The first of the texts that means the item; its fields where none does."""
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
    return {name: written_value(name, value) for name, value in values.items() if name in kept or name == "target"}


def _mode(item: SpecModel) -> bool | None:
    """Of a mount: what was said of its mode, which is something else than what holds where nothing was said."""
    return item.read_only if isinstance(item, MountSpec) and "read_only" in item.model_fields_set else None


def _mount_texts(mount: MountSpec) -> list[str]:
    mode = {None: "", True: ":ro", False: ":rw"}[_mode(mount)]
    return [f"{mount.folder}{mode}", f"{mount.folder}:{mount.target}{mode}"]


def _role_text(role: RoleSpec) -> str:
    fields: Mapping[str, Any] = _fields(role)
    settings = [f"{name}={value}" for name, value in fields.items() if name not in {"name", "replicas"}]
    return ",".join([f"{role.name}:{role.replicas}", *settings])
