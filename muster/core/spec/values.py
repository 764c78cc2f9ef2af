"""Values as users write them, checked and turned into plain ones; each refusal says what to write instead."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from muster.core.values.array import array_indexes
from muster.core.values.units import (
    exact_bytes,
    exact_duration,
    exact_milli,
    exact_moment,
    is_zero_span,
    parse_bytes,
    parse_duration,
    parse_milli,
    parse_moment,
)

MAX_SECONDS = 3650 * 86400
MAX_KERNELS = 1000


def invalid(problem: str, remedy: str) -> PydanticCustomError:
    return PydanticCustomError("invalid", "{problem}", {"problem": problem, "remedy": remedy})


@dataclass(frozen=True, slots=True)
class WrittenAs:
    """The way back from a field's value to what a user would write, as a part of the field's type."""

    form: Callable[[Any], object]


def _milli(value: object) -> int:
    try:
        return parse_milli(value)
    except ValueError as error:
        raise invalid(str(error), "write a number such as 2, 0.5 or 500m") from None


def _bytes(value: object) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise invalid(str(error), "write bytes such as 512M, 4G or 1.5G") from None


def _seconds(value: object, info: ValidationInfo) -> int:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise invalid(str(error), "write minutes, 90s, 30m, 2h, 1-12:00:00 or hours:minutes:seconds") from None
    if info.context is not None and seconds > MAX_SECONDS:
        raise invalid(f"{value!r} is more than ten years", "write 3650d at the most, or leave it out")
    return seconds


def _seconds_or_zero(value: object, info: ValidationInfo) -> int:
    """Return the seconds of a span that may be zero."""
    return 0 if is_zero_span(value) else _seconds(value, info)


def _moment(value: object, info: ValidationInfo) -> float | None:
    """Return the moment. A text is understood relative to the validation context's `now` (`validated`)."""
    if value is None or (isinstance(value, float) and isfinite(value) and not info.context):
        return value
    if not info.context or "now" not in info.context:
        raise invalid(f"{value!r} is not in seconds since the epoch", "write a number such as 1795334400.0")
    try:
        return parse_moment(value, info.context["now"])
    except ValueError as error:
        raise invalid(str(error), "write 2026-11-22T08:00, 08:00 (the next such time) or now+2h") from None


def _array(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    text = str(value).strip()
    try:
        array_indexes(text)
    except ValueError as error:
        raise invalid(str(error), "write indexes such as 0-99, 1,3,5-9:2 or 0-99%8 (8 at a time)") from None
    return text


def _cluster_size(value: object) -> object:
    """Return a number of kernels, or a range as text such as `4-8`."""
    if value is None:
        return None
    text = value.strip() if isinstance(value, str) else ""
    first, dash, last = text.partition("-")
    if not (dash and first and last):
        return _kernels(value)
    least, most = _kernels(first.strip()), _kernels(last.strip())
    if most < least:
        raise invalid(f"the range {text} ends before it begins", f"write {most}-{least}")
    return least if least == most else f"{least}-{most}"


def _kernels(value: object) -> int:
    match value:
        case str() if re.fullmatch(r"[+-]?\d{1,9}", value.strip(), re.ASCII):
            count = int(value)
        case float() if value.is_integer():
            count = int(value)
        case int() if not isinstance(value, bool):
            count = value
        case _:
            shown = f"{value!r:.40}" if isinstance(value, str | float | bool) else "it"
            raise invalid(f"{shown} is not a whole number", "write a number such as 4, or a range such as 4-8")
    if 1 <= count <= MAX_KERNELS:
        return count
    # Python writes no integer of thousands of digits.
    shown = repr(value) if abs(count) < 10**9 else "that number"
    if count < 1:
        raise invalid(f"{shown} is too small", "write 1 or more")
    raise invalid(f"{shown} is too large", f"write {MAX_KERNELS} or less")


def _names(value: object) -> object:
    if not isinstance(value, str | list | tuple):
        return value
    parts: list[object] = []
    for item in [value] if isinstance(value, str) else value:
        parts += [part.strip() for part in item.split(",")] if isinstance(item, str) else [item]
    if "" in parts:
        raise invalid("it holds an empty name", "write names, with a comma between two of them")
    return parts


def assignments(value: object, check: Callable[[str, object], None]) -> object:
    """Return a mapping, or a list of NAME=VALUE, as names with texts; `check` refuses a pair that is wrong."""
    if isinstance(value, list | tuple):
        value = dict(_assignment(item) for item in value)
    if not isinstance(value, Mapping):
        return value
    for name, content in value.items():
        check(str(name), content)
        if "\0" in str(content):
            raise invalid(f"{name} holds a NUL byte", "remove it")
    return {name: content if isinstance(content, str) else _scalar(content) for name, content in value.items()}


def _assignment(item: object) -> tuple[str, str]:
    name, equals, content = str(item).partition("=")
    if not equals:
        raise invalid(f"{item!r} has no =", "write a name and a value with = between them")
    return name, content


def _scalar(content: object) -> object:
    if isinstance(content, bool):
        return "true" if content else "false"
    return str(content) if isinstance(content, int | float) else content


def _written_bytes(amount: int) -> str | int:
    text = exact_bytes(amount)
    return int(text) if text.isdecimal() else text


_AMOUNT = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
Milli = Annotated[
    int,
    BeforeValidator(_milli),
    PlainSerializer(lambda milli: f"{milli}m"),
    WithJsonSchema({**_AMOUNT, "examples": [2, 0.5, "500m"]}),
    WrittenAs(exact_milli),
]
Bytes = Annotated[
    int,
    BeforeValidator(_bytes),
    WithJsonSchema({**_AMOUNT, "examples": ["512M", "4G"]}),
    WrittenAs(_written_bytes),
]
Seconds = Annotated[
    int,
    BeforeValidator(_seconds),
    PlainSerializer(lambda seconds: f"{seconds}s"),
    WithJsonSchema({**_AMOUNT, "examples": ["30m", "2h", "1-12:00:00"]}),
    WrittenAs(exact_duration),
]
SecondsOrZero = Annotated[
    int,
    BeforeValidator(_seconds_or_zero),
    PlainSerializer(lambda seconds: f"{seconds}s"),
    WithJsonSchema({**_AMOUNT, "examples": ["0", "30m", "2h"]}),
    WrittenAs(exact_duration),
]
Moment = Annotated[
    float | None,
    BeforeValidator(_moment),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}], "examples": ["now+2h"]}),
    WrittenAs(exact_moment),
]
Array = Annotated[
    str | None,
    BeforeValidator(_array),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}], "examples": ["0-99", "1,3,5-9:2", "0-99%8"]}),
]
ClusterSize = Annotated[
    int | str | None,
    BeforeValidator(_cluster_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_KERNELS},
                {"type": "string", "pattern": "^[1-9][0-9]*-[1-9][0-9]*$"},
                {"type": "null"},
            ],
            "examples": [4, "4-8"],
        }
    ),
]
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_names),
    AfterValidator(lambda names: tuple(dict.fromkeys(names))),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
