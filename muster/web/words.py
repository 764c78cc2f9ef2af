"""The words of pages: reasons and messages, without what only the command line's readers need."""

import re
from collections.abc import Mapping
from typing import Protocol

from muster.core.model.wait import WaitCode

_LABELS: Mapping[WaitCode, str] = {
    WaitCode.NEVER_FITS: "never fits",
    WaitCode.NO_AGENTS: "has nowhere to run",
    WaitCode.NEVER_RUNS: "never starts",
    WaitCode.BUSY: "too little free",
    WaitCode.BEHIND: "not its turn",
    WaitCode.RETRY: "did not start",
    WaitCode.HELD: "held",
    WaitCode.BEGIN: "begins later",
    WaitCode.DEPENDENCY: "waits for others",
    WaitCode.LIMIT: "at a limit",
    WaitCode.ARRAY: "array limit",
    WaitCode.WINDOW: "agents set aside",
    WaitCode.PREEMPTING: "room is made",
}
# How a message may begin that says what its label says, and what stands there beside the label instead.
_OPENINGS: Mapping[WaitCode, tuple[str, str]] = {
    WaitCode.BUSY: ("too little is free now; ", ""),
    WaitCode.HELD: ("held by ", "by "),
    WaitCode.BEGIN: ("does not start before ", "not before "),
    WaitCode.DEPENDENCY: ("starts after ", "after "),
    WaitCode.WINDOW: ("agents are closed to it: ", ""),
}
# A clause such as "; see `muster ls --all`", with what joins it to the sentence.
_COMMAND = re.compile(r"(?:^|[;,]? )(?:see|or|with|use|by) `muster [^`]*`(?: on the control node)?")
# What an error is about, as the command line calls it: `--expires: …`, `NAME: …`, `NAME:TAG: …`.
_FIELDS: Mapping[str, str] = {"new": "name"}
_SUBJECT = re.compile(r"^(?:--([a-z][a-z-]*)|([A-Z]{3,})(?::TAG)?): ", re.MULTILINE)


class Coded(Protocol):
    """A `Wait`, or its view."""

    @property
    def code(self) -> WaitCode: ...

    @property
    def message(self) -> str: ...


def wait_label(wait: Coded | None) -> str:
    """Return the label; without a wait, the session starts in the next pass."""
    return _LABELS[wait.code] if wait else "starting"


def beside_label(wait: Coded | None) -> str:
    """Return why it waits without the words that its label says already."""
    if wait is None:
        return "the scheduler starts it next"
    opening, instead = _OPENINGS.get(wait.code, ("", ""))
    return instead + wait.message.removeprefix(opening) if wait.message.startswith(opening) else wait.message


def plain_words(message: str) -> str:
    """Return the message without its advice to run a command, and with a field's name for a flag or a metavariable."""

    def field(subject: re.Match[str]) -> str:
        name = (subject[1] or subject[2]).lower().replace("-", "_")
        return f"{_FIELDS.get(name, name)}: "

    return _SUBJECT.sub(field, _COMMAND.sub("", message))
