"""`muster` in this process: what it prints, and its exit code. No engine and no agent is needed."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from muster.cli.main import main


@dataclass(frozen=True)
class Answer:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        return self.err.splitlines()


class _Output(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    @property
    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def muster(*arguments: str) -> Answer:
    out, err = _Output(), _Output()
    with patch.object(sys, "argv", ["muster", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Answer(code if isinstance(code, int) else int(code is not None), out.text, err.text)


def write_settings(directory: Path, values: dict[str, Any]) -> Path:
    path = directory / "muster.yml"
    # The agents and sessions of most tests are of a time long ago, and nobody works their queue.
    defaults = {"state_dir": str(directory / "state"), "catalog": str(directory / "images.yml"),
                "inventory": str(directory / "inventory"), "unworked_after_s": 1e9,
                "max_priority": {"*": 100}}  # fmt: skip
    path.write_text(yaml.safe_dump({**defaults, **values}), encoding="utf-8")
    return path


def submitted(*arguments: str) -> dict[str, Any]:
    """Return the one session that `muster submit … --json` queues."""
    answer = muster("submit", "--json", *arguments)
    assert answer.code == 0, answer.err
    (session,) = answer.json
    return session


def nothing_queued() -> bool:
    return muster("ls", "--all", "--json").json == []
