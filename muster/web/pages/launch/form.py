"""The launch form as it was filled in: converted to the fields of a session spec, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.datastructures import FormData

from muster.core.spec.apps import AppSpec
from muster.core.spec.base import SpecModel
from muster.core.spec.mounts import MountSpec
from muster.core.spec.startup import SecretSpec
from muster.core.values.errors import FieldError, SpecError
from muster.service.specs.new_sessions import MAX_COUNT
from muster.web.pages.launch.fields import FIELDS, FormField, Kind
from muster.web.pages.launch.session_file import fields_of, text_of

Row = tuple[str, ...]
_Model = TypeVar("_Model", bound=SpecModel)
MODES = {"": "as allowed", "ro": "read-only", "rw": "read and write"}


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """The content of each field. `more` is YAML with all that has no field, or that its field cannot hold."""

    texts: Mapping[str, str]
    checks: frozenset[str]
    mounts: tuple[Row, ...] = ()
    env: tuple[Row, ...] = ()
    secrets: tuple[Row, ...] = ()
    apps: tuple[str, ...] = ()
    count: str = "1"
    more: str = ""

    @property
    def sessions(self) -> int:
        """Return the number of sessions. Raises SpecError."""
        text = self.count.strip() or "1"
        if not (text.isdecimal() and text.isascii() and len(text) < 9):
            raise SpecError([FieldError("count", f"{text!r} is not a whole number", f"write 1 to {MAX_COUNT}")])
        return int(text)


def parse_form(form: FormData) -> LaunchForm:
    """Return the form as a browser sent it."""

    def text(name: str) -> str:
        return _text(form.get(name, ""))

    def rows(*columns: str) -> tuple[Row, ...]:
        cells = [[_text(value) for value in form.getlist(column)] for column in columns]
        return tuple(row for row in zip(*cells, strict=False) if any(row))

    return LaunchForm(
        texts={name: text(name) for name, field in FIELDS.items() if field.kind is not Kind.CHECK},
        checks=frozenset(name for name, field in FIELDS.items() if field.kind is Kind.CHECK and name in form),
        mounts=rows("mount_folder", "mount_target", "mount_mode"),
        env=rows("env_name", "env_value"),
        secrets=rows("secret_name", "secret_place"),
        apps=tuple(_text(value) for value in form.getlist("app")),
        count=text("count") or "1",
        more=text("more"),
    )


def values_of(form: LaunchForm) -> dict[str, Any]:
    """Return the fields that differ from the empty form, without validation. Raises SpecError about `more`."""
    values: dict[str, Any] = {}
    for name, field in FIELDS.items():
        found = _value(field, form)
        if found is not None:
            values[name] = found
    rows = {
        "mounts": [_mount(row) for row in form.mounts if any(row[:2])],
        "env": {row[0]: row[1] for row in form.env},
        "secrets": [_secret(*row) for row in form.secrets],
        "apps": list(form.apps),
    }
    values |= {name: content for name, content in rows.items() if content}
    return _with_more(values, fields_of(form.more, "more"))


def form_of(values: Mapping[str, Any], count: str = "1") -> LaunchForm:
    """Return the form for which `values_of` returns these values; the empty form for none."""
    texts = {name: field.default for name, field in FIELDS.items() if field.kind is not Kind.CHECK}
    checks = {"dot_folders"}
    rows: dict[str, tuple[Row, ...]] = {}
    apps: tuple[str, ...] = ()
    more: dict[str, Any] = {}
    for name, value in values.items():
        field = FIELDS.get(name)
        if field is not None and field.kind is Kind.CHECK and isinstance(value, bool):
            checks = checks | {name} if value else checks - {name}
        elif field is not None and (text := _text_of(field, value)) is not None:
            texts[name] = text
        elif name in _ROWS and (found := _ROWS[name](value)) is not None:
            rows[name] = found
        elif name == "apps" and (names := _app_names(value)) is not None:
            apps = names
        else:
            more[name] = value
    return LaunchForm(texts, frozenset(checks), apps=apps, count=count, more=text_of(more), **rows)


def field_text(name: str, value: object) -> str | None:
    """Return a value as its field of the form shows it, the default for None; None where the field cannot hold it."""
    field = FIELDS.get(name)
    if field is None or field.kind is Kind.CHECK:
        return None
    return field.default if value is None else _text_of(field, value)


def _text(value: object) -> str:
    """Return the text with plain line ends: browsers send CRLF."""
    return value.replace("\r\n", "\n") if isinstance(value, str) else ""


def _value(field: FormField, form: LaunchForm) -> Any:  # noqa: ANN401 - plain data, or None
    if field.kind is Kind.CHECK:
        checked = field.name in form.checks
        return checked if checked is not (field.name == "dot_folders") else None
    text = form.texts[field.name]
    if field.kind in {Kind.TEXT, Kind.NAMES}:
        text = text.strip()
    if text in {"", field.default}:
        return None
    if field.kind is Kind.LINES:
        return [line for line in text.split("\n") if line.strip()] or None
    if field.kind is Kind.NAMES:
        names = [part.strip() for part in text.split(",")]
        return [name for name in names if name] or None
    return text


def _mount(row: Row) -> Any:  # noqa: ANN401 - a mount's short form or its fields
    folder, target, mode = row
    if not target and not mode:
        return folder
    mount = {"folder": folder, **({"target": target} if target else {})}
    return {**mount, "read_only": mode == "ro"} if mode else mount


def _secret(name: str, place: str) -> Any:  # noqa: ANN401 - a secret's short form or its fields
    return {"name": name, "path" if place.startswith("/") else "env": place} if place else {"name": name}


def _with_more(values: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    conflicts = []
    for name, value in more.items():
        own = values.get(name)
        if own is None:
            merged[name] = value
        elif isinstance(own, dict) and isinstance(value, dict):
            merged[name] = {**value, **own}
        elif isinstance(own, list) and isinstance(value, list):
            merged[name] = [*own, *value]
        else:
            conflicts.append(FieldError("more", f"{name} is filled in above as well", "write it in one place only"))
    if conflicts:
        raise SpecError(conflicts)
    return merged


def _text_of(field: FormField, value: object) -> str | None:
    """Return the field's text; None where it would not give the same value again."""
    if field.kind is Kind.LINES:
        return _lines(value)
    if field.kind is Kind.NAMES:
        names = [value] if isinstance(value, str) else value
        return _joined(names, ", ", ",\n\r") if isinstance(names, Sequence) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value)
    if field.kind is Kind.CHOICE:
        return text if text in field.choices else None
    if field.kind is Kind.LONG:
        return text if text and "\r" not in text else None
    return text if _is_line(text) and text == text.strip() else None


def _lines(value: object) -> str | None:
    if isinstance(value, Mapping):
        if not all(isinstance(text, str) and "=" not in str(name) for name, text in value.items()):
            return None
        value = [f"{name}={text}" for name, text in value.items()]
    return _joined(value, "\n", "\n\r") if isinstance(value, list) else None


def _joined(items: Sequence[object], separator: str, forbidden: str) -> str | None:
    texts = [str(item) for item in items if isinstance(item, str | int) and not isinstance(item, bool)]
    usable = all(text.strip() and not set(text) & set(forbidden) for text in texts)
    return separator.join(texts) if usable and texts and len(texts) == len(items) else None


def _is_line(text: str) -> bool:
    return bool(text) and not set(text) & {"\n", "\r"}


def _mount_rows(value: object) -> tuple[Row, ...] | None:
    rows: list[Row] = []
    for mount in _models(MountSpec, value) or ():
        is_default = mount.target == MountSpec(folder=mount.folder).target
        mode = ("ro" if mount.read_only else "rw") if "read_only" in mount.model_fields_set else ""
        row = (mount.folder, "" if is_default else mount.target, mode)
        if not all(map(_is_line, filter(None, row))) or (not any(row[1:]) and ":" in mount.folder):
            return None
        rows.append(row)
    return tuple(rows) or None


def _env_rows(value: object) -> tuple[Row, ...] | None:
    if not isinstance(value, Mapping):
        return None
    rows = []
    for name, content in value.items():
        text = str(content) if isinstance(content, str | int | float) and not isinstance(content, bool) else "\n"
        if not _is_line(str(name)) or set(text) & {"\n", "\r"}:
            return None
        rows.append((str(name), text))
    return tuple(rows) or None


def _secret_rows(value: object) -> tuple[Row, ...] | None:
    found = _models(SecretSpec, value)
    if not found or any(secret.env is not None and secret.path is not None for secret in found):
        return None
    return tuple((secret.name, secret.env or secret.path or "") for secret in found)


def _app_names(value: object) -> tuple[str, ...] | None:
    found = _models(AppSpec, value)
    return tuple(app.name for app in found) if found and all(a == AppSpec(name=a.name) for a in found) else None


def _models(model: type[_Model], value: object) -> list[_Model] | None:
    """Return the items as models; None if one is invalid: it stays in `more`, and the spec's validation reports it."""
    try:
        return [model.model_validate(item) for item in value] if isinstance(value, list) else None
    except ValidationError:
        return None


_ROWS = {"mounts": _mount_rows, "env": _env_rows, "secrets": _secret_rows}
