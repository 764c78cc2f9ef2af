"""A program that stays on a host for as long as its connection, and reports whenever the control node asks for it.

A report so costs neither the start of an interpreter nor that of a play. Each is made in a process of its own, as each
run of a module is: what it opens, starts or remembers ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from ..engine.api import EngineApi, EngineError
from ..launch.launch_error import host_message
from ..names import RUNTIME_PATH
from .host_report import gather_report

MARK = b"muster:observer\n"
# As `playbooks/observe.yml` has it.
_PATIENCE_S = 60


def main() -> None:
    """Answer each line of standard input with a line of JSON, until its end or until a report fails unexpectedly.

    The first line is an object with what all reports need: `cluster` and `folders_root`. An answer has `report`, or
    `failed` with the reason why there is none.
    """
    questions = sys.stdin.buffer
    _write(MARK)
    given = json.loads(questions.readline())
    while questions.readline():
        if not _is_answered(given):
            break


def _is_answered(given: dict[str, Any]) -> bool:
    child = os.fork()
    if child == 0:
        _answer(given)
    return os.waitpid(child, 0)[1] == 0


def _answer(given: dict[str, Any]) -> None:
    """Write the answer; never returns."""
    status = 1
    try:
        # An engine that hangs would keep it for ever: the alarm ends it.
        signal.alarm(_PATIENCE_S)
        _write(json.dumps(_said(given)).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def _said(given: dict[str, Any]) -> dict[str, Any]:
    try:
        report = gather_report(
            EngineApi(), given["cluster"], RUNTIME_PATH, lambda _: None, folders_root=given["folders_root"]
        )
    except EngineError as error:
        return {"failed": error.with_remedy()}
    except OSError as error:
        return {"failed": f"this agent cannot be read: {host_message(error)}"}
    return {"report": report}


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
