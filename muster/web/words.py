"""The words of pages: reasons and messages, without what only the command line's readers need."""

import re
from collections.abc import Mapping
from typing import Protocol

from muster.core.model.wait import WaitCode

_LABELS: Mapping[WaitCode, str] = {
    WaitCode.NEVER_FITS: "never fits",
    WaitCode.NO_AGENTS: "no agents",
    WaitCode.NEVER_RUNS: "never starts",
    WaitCode.BUSY: "too little free",
    WaitCode.BEHIND: "behind others",
    WaitCode.RETRY: "tried again",
    WaitCode.HELD: "held",
    WaitCode.BEGIN: "begins later",
    WaitCode.DEPENDENCY: "after others",
    WaitCode.LIMIT: "at a limit",
    WaitCode.ARRAY: "array limit",
    WaitCode.WINDOW: "agents set aside",
    WaitCode.PREEMPTING: "room is made",
}
# A clause such as "; see `muster ls --all`", with what joins it to the sentence.
_COMMAND = re.compile(r"[;,]? (?:see|or|with|use|by) `muster [^`]*`(?: on the control node)?")
# What an error is about, as the command line calls it: `--expires: …`, `NAME: …`, `NAME:TAG: …`.
_SUBJECT = re.compile(r"^(?:--([a-z][a-z-]*)|([A-Z]{3,})(?::TAG)?): ", re.MULTILINE)


class Coded(Protocol):
    """A `Wait`, or its view."""

    @property
    def code(self) -> WaitCode: ...


def wait_label(wait: Coded | None) -> str:
    """Return the label; without a wait, the session starts in the next pass."""
    return _LABELS[wait.code] if wait else "starting"


def plain_words(message: str) -> str:
    """Return the message without its advice to run a command, and with a field's name for a flag or a metavariable."""

    def field(subject: re.Match[str]) -> str:
        return f"{(subject[1] or subject[2]).lower().replace('-', '_')}: "

    return _SUBJECT.sub(field, _COMMAND.sub("", message))
