"""The command line that submits the same as a session file does."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.core.spec.session_spec import SessionSpec

FILE = "session.yml"


@dataclass(frozen=True, slots=True)
class Command:
    """A command line; `unflagged` names the fields that only a session file can hold: the words then name FILE."""

    words: tuple[str, ...]
    unflagged: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the command line for a shell."""
        return shlex.join(self.words)


def submit_command(values: Mapping[str, Any], count: int = 1) -> Command:
    """Return the command that submits a spec's fields, as `written` returns them."""
    words: list[str] = []
    unflagged = []
    for name in SessionSpec.model_fields:
        if name in values:
            found = _words(name, values[name])
            words += found or []
            unflagged += [name] if found is None else []
    if unflagged:
        words = ["--file", FILE]
    repeated = ["--count", str(count)] if count != 1 else []
    return Command(("muster", "submit", *words, *repeated), tuple(unflagged))


def _words(name: str, value: Any) -> list[str] | None:  # noqa: ANN401 - plain data
    """Return the flag and its values; None where no flag takes such a value."""
    extra: Any = SessionSpec.model_fields[name].json_schema_extra
    if extra is None or extra["reads_file"]:
        return None
    flag: str = extra["flags"][0]
    if isinstance(value, bool):
        on, _, off = flag.partition("/")
        return [on if value else off]
    contents = list(_contents(value))
    if any(isinstance(content, Mapping) for content in contents):
        return None
    return [word for content in contents for word in _given(flag, str(content))]


def _contents(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from (f"{name}={content}" for name, content in value.items())
    elif isinstance(value, list):
        yield from value
    else:
        yield value


def _given(flag: str, text: str) -> list[str]:
    # `--` alone would end the flags.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]
