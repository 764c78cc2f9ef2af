"""What all values that travel between the control node and an agent have in common."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, ValidationError

_MOST_OF_A_PLACE = 80
_MOST_OF_A_LINE = 2_000
# Characters that end a line for some readers, or turn the direction of text.
_TURNS = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_UNPRINTABLE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNS}\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class ContractError(ValueError):
    """The error of an answer that docs/agent-contract.md does not allow: one line that names the field."""


class ContractModel(BaseModel):
    """A value of the contract: nothing is converted, and nothing unknown is ignored."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=False
    )


Value = TypeVar("Value", bound=ContractModel)
Item = TypeVar("Item")


def printable(text: str) -> str:
    """Return the text with a mark for each character that a terminal or a database takes for more than text.

    Tabs and newlines stay.
    """
    return _UNPRINTABLE.sub(_REPLACEMENT, text)


def printable_line(text: str) -> str:
    """Return the text as one line: a blank for each run of blanks and of line ends, ssh's carriage returns too."""
    return printable(" ".join(text.split()))


def one_line(said: str) -> str:
    """Return what an agent, an engine or an image says as a line for terminals and databases, of bounded length."""
    return printable_line(said[:_MOST_OF_A_LINE])


def _signed(code: int) -> int:
    """Return the code as the 32 bits that it is, with a sign: some runtimes give it without one."""
    return code - (1 << 32) if code >= 1 << 31 else code


# One line that an engine or the host's administrator chose.
_LINE = rf"^[^\x00-\x1f\x7f-\x9f{_TURNS}]*$"
Line = Annotated[str, Field(max_length=1024, pattern=_LINE)]
# Of a control node's database, drawn by chance: a number of 63 bits, as counters of databases are.
DatabaseId = Annotated[str, Field(pattern=r"^[0-7][0-9a-f]{15}$")]
# As long as an engine's ids are, and as the database takes.
ContainerId = Annotated[str, Field(max_length=64, pattern=_LINE)]
# Text that a tenant may influence: odd characters in it must not make the report invalid.
Text = Annotated[str, Field(max_length=65_536), AfterValidator(printable)]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)$")]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
GpuUuid = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,95}$")]
# Part of a line of known_hosts.
PublicKey = Annotated[str, Field(pattern=r"^ssh-ed25519 [A-Za-z0-9+/=]{1,128}( [!-~]{1,128})?$")]
Amount = Annotated[int, Field(ge=0, le=1 << 60)]
Real = Annotated[float, Field(ge=0, le=1e15)]
Port = Annotated[int, Field(ge=1, le=65_535)]
Milli = Annotated[int, Field(ge=0, le=1000)]
ExitCode = Annotated[int, Field(ge=-(1 << 31), lt=1 << 32), AfterValidator(_signed)]
# Databases and Ansible hand over lists.
Few = Annotated[tuple[Item, ...], Field(strict=False, max_length=1_024), FailFast()]
Many = Annotated[tuple[Item, ...], Field(strict=False, max_length=65_536), FailFast()]


def checked(kind: type[Value], data: object, what: str) -> Value:
    """Return the value that the data describe. Raises ContractError, which calls them `what`."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first, *others = error.errors(include_url=False, include_context=False, include_input=False)
        rest = f" (and {len(others)} more)" if others else ""
        raise ContractError(f"{place(what, first['loc'])}: {first['msg']}{rest}") from None


def check_complete(value: ContractModel, what: str) -> None:
    """Raise ContractError where a field was left to its default."""
    path = _missing(value)
    if path:
        raise ContractError(f"{place(what, path[:-1])}: {path[-1]} is missing")


def _missing(value: ContractModel) -> tuple[int | str, ...]:
    """Return the path of the first field that was left to its default; it is empty if there is none."""
    # Of hundreds of images in each report, none holds other values: only the count of fields is looked at.
    kind, was_set = type(value), value.model_fields_set
    if len(was_set) < _fields(kind):
        return (next(name for name in kind.model_fields if name not in was_set),)
    for name in _nesting(kind):
        inner = getattr(value, name)
        if isinstance(inner, ContractModel):
            items: Iterable[tuple[tuple[int | str, ...], object]] = (((name,), inner),)
        elif isinstance(inner, Mapping):
            items = (((name, key), item) for key, item in inner.items())
        else:
            items = (((name, key), item) for key, item in enumerate(inner or ()))
        for path, item in items:
            if isinstance(item, ContractModel) and (rest := _missing(item)):
                return (*path, *rest)
    return ()


@cache
def _fields(kind: type[ContractModel]) -> int:
    return len(kind.model_fields)


@cache
def _nesting(kind: type[ContractModel]) -> tuple[str, ...]:
    """Return the names of the fields that may hold other values of the contract."""
    return tuple(name for name, field in kind.model_fields.items() if _names_a_model(field.annotation))


def _names_a_model(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, ContractModel):
        return True
    return any(map(_names_a_model, get_args(annotation)))


def place(what: str, path: tuple[int | str, ...]) -> str:
    """Return the path of a field as one short word; an agent may have chosen the names in it."""
    words = [f"[{step}]" if isinstance(step, int) else f".{printable(step[:_MOST_OF_A_PLACE])}" for step in path]
    return " ".join(f"{what}{''.join(words)}".split())
