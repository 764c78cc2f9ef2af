"""The part of the session spec about the signal that its command gets before we end the session, as sbatch's."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from muster.core.spec.base import SpecModel, flag
from muster.core.spec.values import invalid
from muster.core.values.errors import FieldError
from muster.core.values.units import exact_duration, parse_duration

# Numbers of x86 and ARM; KILL and STOP are missing, since no program can handle them.
SIGNALS: Mapping[str, int] = {
    "HUP": 1,
    "INT": 2,
    "QUIT": 3,
    "USR1": 10,
    "USR2": 12,
    "ALRM": 14,
    "TERM": 15,
    "CONT": 18,
    "URG": 23,
    "XCPU": 24,
}
USUAL_SIGNAL_S = 60
MOST_SIGNAL_S = 86400
_NUMBER = re.compile(r"[1-9]\d?", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


def spell_end_signal(signal: str) -> str:
    """Return a text such as `USR1, 2m before its end` for NAME@SECONDS."""
    name, _, seconds = signal.partition("@")
    return f"{name}, {exact_duration(int(seconds))} before its end"


def _signal(value: object) -> object:
    """Return NAME@SECONDS as the spec keeps it: without SIG, and with the usual time where none is given."""
    if value is None:
        return None
    name, at, span = str(value).strip().partition("@")
    name = _name(name.upper().removeprefix("SIG"))
    seconds = _seconds(span) if at else USUAL_SIGNAL_S
    if seconds > MOST_SIGNAL_S:
        raise invalid(f"{span} is more than {exact_duration(MOST_SIGNAL_S)}", "write less, such as USR1@120")
    return f"{name}@{seconds}"


def _name(written: str) -> str:
    names = {str(number): name for name, number in SIGNALS.items()}
    name = names.get(written, written) if _NUMBER.fullmatch(written) else written
    if name not in SIGNALS:
        known = ", ".join(SIGNALS)
        raise invalid(f"{written[:20]!r} is no signal that a command can be sent", f"write one of {known}")
    return name


def _seconds(span: str) -> int:
    """Return the time before the end: bare numbers are seconds, as in sbatch."""
    try:
        return parse_duration(f"{span}s" if _SECONDS.fullmatch(span) else span)
    except ValueError as error:
        raise invalid(str(error), "write the seconds before the end, or a time: USR1@120, USR1@2m") from None


EndSignal = Annotated[
    str | None,
    BeforeValidator(_signal),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}], "examples": ["USR1@120", "SIGTERM@2m", "10"]}),
]


class EndSignalFields(SpecModel):
    signal: EndSignal = Field(
        default=None,
        description="signal that the command gets so many seconds before we end it, such as USR1@120; 60 if not given",
        json_schema_extra=flag("--signal", metavar="NAME[@SECONDS]"),
    )

    @property
    def signal_name(self) -> str:
        return (self.signal or "").partition("@")[0]

    @property
    def signal_s(self) -> int:
        """Return how long before the end the signal is sent; 0 where none is."""
        return int(self.signal.partition("@")[2]) if self.signal else 0

    def _signal_errors(self, *, has_command: bool, time_limit: int | None) -> Iterator[FieldError]:
        if self.signal is None:
            return
        if not has_command:
            yield FieldError("signal", "there is no command that could get it", "give a command, or leave it out")
        if time_limit is not None and time_limit < self.signal_s:
            problem = f"{exact_duration(self.signal_s)} is longer than its time limit, {exact_duration(time_limit)}"
            yield FieldError("signal", problem, "write a shorter time behind the @, or a longer time limit")
