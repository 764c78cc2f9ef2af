"""What the models of the spec have in common, above all how much of anything they take.

Bounds hold for what comes in (`validated`). A stored spec is read without them, so that a bound which a later version
brings costs no session that is queued already.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from muster.contract.values import printable
from muster.core.spec.values import invalid

MAX_LINE = 1024
# In a validation's context: the fields that have errors, and are left out so that the others can be checked.
LEFT_OUT = "left_out"
MAX_ITEMS = 1000
# Linux starts no program with a longer argument or variable (MAX_ARG_STRLEN), whose end is a NUL byte.
MAX_ARGUMENT_BYTES = (128 << 10) - 1
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a field, if they are not one line, or a thousand of them.

    With `most_bytes` its texts may have several lines and any characters but NUL, and as many bytes together.
    """

    most_bytes: int | None = None
    most_items: int = MAX_ITEMS
    remedy: str = "write less"


Argument = Annotated[str, Bounds(MAX_ARGUMENT_BYTES, remedy="put it into a script in a data folder, and run that")]


class SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="after")
    @classmethod
    def _bounded(cls, value: object, info: ValidationInfo) -> object:
        if info.context is not None and info.field_name is not None:
            _check_bounds(value, _bounds_of(cls, info.field_name))
        return value


@cache
def _bounds_of(model: type[BaseModel], name: str) -> Bounds:
    field = model.model_fields[name]
    alternatives = (getattr(kind, "__metadata__", ()) for kind in getattr(field.annotation, "__args__", ()))
    marks = (*field.metadata, *(mark for metadata in alternatives for mark in metadata))
    return next((mark for mark in marks if isinstance(mark, Bounds)), Bounds())


def _check_bounds(value: object, bounds: Bounds) -> None:
    if isinstance(value, list | tuple | Mapping) and len(value) > bounds.most_items:
        raise invalid(f"it has {len(value)} entries", f"write {bounds.most_items} at the most")
    parts: list[object] = [value]
    if isinstance(value, Mapping):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    texts = [part for part in parts if isinstance(part, str)]
    for text in texts:
        if _breaks_storage(text) or (bounds.most_bytes is None and _is_no_line(text)):
            raise invalid(f"{text[:_SHOWN]!r} holds a control character", "remove it")
        if bounds.most_bytes is None and len(text) > MAX_LINE:
            raise invalid(f"it begins with {text[:_SHOWN]!r} and is too long", f"write {MAX_LINE} characters at most")
    if bounds.most_bytes is not None and sum(len(text.encode()) for text in texts) > bounds.most_bytes:
        raise invalid(f"it is larger than {bounds.most_bytes} bytes", bounds.remedy)


def _is_no_line(text: str) -> bool:
    return printable(text) != text or "\n" in text or "\t" in text


def _breaks_storage(text: str) -> bool:
    """Return whether there is something in it that a database or UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return "\0" in text


def flag(*names: str, metavar: str | None = None, multiple: bool = False, reads_file: bool = False) -> dict[str, Any]:
    """Return a field's `json_schema_extra` for the command line; `reads_file`: there it is a path to the text."""
    return {"flags": list(names), "metavar": metavar, "multiple": multiple, "reads_file": reads_file}
