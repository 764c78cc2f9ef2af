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
_COMMAND = re.compile(r"[;,]? (?:see|or|with|use) `muster [^`]*`(?: on the control node)?")
_FLAG = re.compile(r"^--([a-z][a-z-]*): ", re.MULTILINE)


class Coded(Protocol):
    """A `Wait`, or its view."""

    @property
    def code(self) -> WaitCode: ...


def wait_label(wait: Coded | None) -> str:
    """Return the label; without a wait, the session starts in the next pass."""
    return _LABELS[wait.code] if wait else "starting"


def plain_words(message: str) -> str:
    """Return the message without its advice to run a command, and with a field's name instead of a flag."""
    return _FLAG.sub(lambda flag: f"{flag[1].replace('-', '_')}: ", _COMMAND.sub("", message))
