"""Whether a value from JSON keeps to a JSON Schema: what of it pydantic writes for the manifest, and no more."""

from __future__ import annotations

import re
from typing import Any

_MOST_SHOWN = 80
_TYPES = {
    "object": (dict, "a mapping"),
    "array": (list, "a list"),
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "boolean": (bool, "true or false"),
    "null": (type(None), "null"),
}
_REFERENCE = "#/$defs/"


class SchemaError(Exception):
    """A value that its schema does not allow: one line that names its place."""


def check(value: object, schema: dict[str, Any], place: str) -> None:
    """Raise SchemaError for the first thing that does not fit; `place` is what the value is called."""
    _check(value, schema, schema["$defs"], place)


def _check(value: object, schema: dict[str, Any], definitions: dict[str, Any], place: str) -> None:
    if "$ref" in schema:
        schema = definitions[schema["$ref"][len(_REFERENCE) :]]
    if "discriminator" in schema:
        _check(value, _chosen(value, schema["discriminator"], place), definitions, place)
    elif "anyOf" in schema:
        _check_any(value, schema["anyOf"], definitions, place)
    else:
        _check_type(value, schema["type"], place)
        _check_scalar(value, schema, place)
        _check_inside(value, schema, definitions, place)


def _check_scalar(value: object, schema: dict[str, Any], place: str) -> None:
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else [value])
    if value not in allowed:
        raise SchemaError(f"{place} is {_shown(value)}, not {' or '.join(map(str, allowed))}")
    if isinstance(value, str) and "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        raise SchemaError(f"{place} is {_shown(value)}, which does not match {schema['pattern']}")
    if isinstance(value, int):
        _check_bounds(value, schema, place)


def _check_inside(value: object, schema: dict[str, Any], definitions: dict[str, Any], place: str) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check(item, schema["items"], definitions, f"{place}[{index}]")
    if isinstance(value, dict):
        _check_object(value, schema, definitions, place)


def _chosen(value: object, discriminator: dict[str, Any], place: str) -> dict[str, Any]:
    _check_type(value, "object", place)
    name, mapping = discriminator["propertyName"], discriminator["mapping"]
    found = value.get(name)  # type: ignore[attr-defined]
    if not isinstance(found, str) or found not in mapping:
        raise SchemaError(f"{place}.{name} is {_shown(found)}, not {' or '.join(sorted(mapping))}")
    return {"$ref": mapping[found]}


def _check_any(value: object, schemas: list[dict[str, Any]], definitions: dict[str, Any], place: str) -> None:
    problems = []
    for schema in schemas:
        try:
            _check(value, schema, definitions, place)
        except SchemaError as error:
            problems.append(str(error))
        else:
            return
    raise SchemaError(problems[0])


def _check_type(value: object, name: str, place: str) -> None:
    kind, words = _TYPES[name]
    # To Python a boolean is a number.
    if not isinstance(value, kind) or (isinstance(value, bool) and name != "boolean"):
        raise SchemaError(f"{place} is {_shown(value)}, not {words}")


def _check_bounds(value: int, schema: dict[str, Any], place: str) -> None:
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        raise SchemaError(f"{place} is {_shown(value)}, which is out of bounds")
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        raise SchemaError(f"{place} is {_shown(value)}, which is out of bounds")


def _check_object(value: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any], place: str) -> None:
    for name in schema.get("required", ()):
        if name not in value:
            raise SchemaError(f"{place}.{name} is missing")
    for name, item in value.items():
        _check(item, _schema_of(name, schema, place), definitions, f"{place}.{name}")


def _schema_of(name: str, schema: dict[str, Any], place: str) -> dict[str, Any]:
    if name in schema.get("properties", {}):
        return schema["properties"][name]
    for pattern, found in schema.get("patternProperties", {}).items():
        if re.fullmatch(pattern, name):
            return found
    if isinstance(schema.get("additionalProperties"), dict):
        return schema["additionalProperties"]
    raise SchemaError(f"{place} has {_shown(name)}, which is not known")


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    shown = ascii(value)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
