"""Pydantic's errors as ours: every error of a spec at once, each with its field and its remedy."""

import difflib
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from muster.contract.values import printable, printable_line
from muster.core.spec.base import LEFT_OUT
from muster.core.values.errors import FieldError, SpecError

_MOST_ERRORS = 100
_MOST_SHOWN = 80
_MOST_OF_A_PROBLEM = 400
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MOST_SHOWN
_Model = TypeVar("_Model", bound=BaseModel)
_WHOLE = ("is not a whole number", "write a whole number such as 4")
_BOOLEAN = ("is neither true nor false", "write true or false")
_MAPPING = ("is not a mapping", "write names with values, as in cpu: 2")
_LIST = ("is not a list", "write a list, even of one")
_KINDS: Mapping[str, tuple[str, str]] = {
    "literal_error": ("is none of the choices", "write {expected}"),
    "greater_than_equal": ("is too small", "write {ge} or more"),
    "greater_than": ("is too small", "write more than {gt}"),
    "less_than_equal": ("is too large", "write {le} or less"),
    "string_too_short": ("is empty", "write a name"),
    "string_too_long": ("is too long", "write {max_length} characters at most"),
    "string_type": ("is not text", "put it in quotes"),
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "bool_parsing": _BOOLEAN,
    "bool_type": _BOOLEAN,
    "dict_type": _MAPPING,
    "mapping_type": _MAPPING,
    "model_type": _MAPPING,
    "list_type": _LIST,
    "tuple_type": _LIST,
}


@dataclass(frozen=True, slots=True)
class Checked(Generic[_Model]):
    """The valid part of some values, None where there is none, and all errors of the values.

    `left_out` are the fields that have errors. What follows from their values is not checked.
    """

    part: _Model | None
    errors: tuple[FieldError, ...] = ()
    left_out: frozenset[str] = frozenset()


def validated(model: type[_Model], values: Mapping[str, Any], now: datetime | None = None) -> _Model:
    """Return `values` as `model`; times such as 08:00 and now+1h are relative to `now`.

    Raises SpecError with every error that they have.
    """
    found = checked(model, values, now)
    if found.part is None or found.errors:
        raise SpecError(found.errors)
    return found.part


def checked(model: type[_Model], values: Mapping[str, Any], now: datetime | None = None) -> Checked[_Model]:
    """Return what is valid of `values` as `model`, and every error: of fields, and of the others that do not agree."""
    errors: list[FieldError] = []
    left_out: frozenset[str] = frozenset()
    while True:
        rest = {name: value for name, value in values.items() if name not in left_out}
        context = {LEFT_OUT: left_out} if left_out else {}
        try:
            part = model.model_validate(rest, context=context if now is None else {**context, "now": now})
        except ValidationError as error:
            found = _errors_of(model, error)
            # What is left out has an error already: that it is missing now is none.
            errors += [item for item in found if root_field(item.field) not in left_out]
            wrong = {root_field(item.field) for item in found} | {
                str(item["loc"][0]) for item in error.errors() if item["loc"]
            }
            if not wrong & rest.keys():
                return Checked(None, tuple(errors), left_out)
            left_out |= wrong
        else:
            return Checked(part, tuple(errors), left_out)


def _errors_of(model: type[BaseModel], error: ValidationError) -> list[FieldError]:
    details = error.errors(include_url=False)
    found = [item for detail in details[:_MOST_ERRORS] for item in _field_errors(model, detail)]
    if len(details) > _MOST_ERRORS:
        found.append(FieldError("spec", f"it has {len(details) - _MOST_ERRORS} more errors", "mend these first"))
    return found


def root_field(field: str) -> str:
    """Return the field of the model that an error's field is a part of: `mounts` for `mounts[0].folder`."""
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _field_errors(model: type[BaseModel], detail: ErrorDetails) -> list[FieldError]:
    if detail["type"] == "disagreements":
        return list(detail["ctx"]["errors"])
    return [_field_error(model, detail)]


def _field_error(model: type[BaseModel], detail: ErrorDetails) -> FieldError:
    context = detail.get("ctx", {})
    field = _path(detail["loc"]) or "spec"
    kind = detail["type"]
    if kind == "invalid":
        return FieldError(field, _short(str(context["problem"])), str(context["remedy"]))
    if kind == "missing":
        return FieldError(field, "it is missing", "give it a value")
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(_clipped(str(detail["loc"][-1])), list(model.model_fields), n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(model.model_fields))}"
        return FieldError(field, "there is no such field", hint)
    where: str = getattr(model, "DOCUMENTED_IN", "`muster submit --schema`")
    problem, remedy = _KINDS.get(kind, (f"is not valid: {detail['msg']}", f"see {where}"))
    return FieldError(field, f"{_shown(detail['input'])} {problem}", remedy.format(**context))


def _shown(value: object) -> str:
    """Return a value as a person writes it; of one that is long or deep the beginning."""
    try:
        return repr(value) if isinstance(value, str) and len(value) <= _MOST_SHOWN else _REPR.repr(value)
    except ValueError:  # of an integer with thousands of digits
        return "that number"


def _short(problem: str) -> str:
    """Return a problem that quotes the input. A long one is cut in the middle: its end gives the reason."""
    whole = printable_line(problem)
    return whole if len(whole) <= _MOST_OF_A_PROBLEM else f"{whole[: _MOST_OF_A_PROBLEM // 2]}…{whole[-100:]}"


def _clipped(word: str) -> str:
    return word if len(word) <= _MOST_SHOWN else f"{word[:_MOST_SHOWN]}…"


def _path(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        word = part if isinstance(part, int) else printable(_clipped(part))
        text += f"[{word}]" if isinstance(part, int) else f".{word}" if text else str(word)
    return " ".join(text.split())
