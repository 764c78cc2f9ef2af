"""The README's tours, taken from the page, and a shell that goes through one as it is written."""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.control_node import ROOT


def root_tour() -> str:
    """Return the commands of the tour that root follows."""
    before, _, after = _sections()
    return _commands(before + after)


def user_tour() -> str:
    """Return the commands that a user follows who has logged in and has no rights of root's."""
    return _commands(_sections()[1])


def go_through(
    script: str,
    answers: Sequence[str],
    *,
    directory: Path,
    programs: str,
    environment: Mapping[str, str],
    prepare: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run all commands in one shell that stops at the first failure, and check that these answers are printed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        env={**environment, "PATH": f"{programs}:{os.environ['PATH']}"},
        preexec_fn=prepare,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert [answer for answer in answers if answer not in done.stdout] == [], done.stdout
    return done


def _sections() -> tuple[str, str, str]:
    """Return what comes before the section of a user's day, that section, and what comes after it."""
    tour = (ROOT / "README.md").read_text().partition("## A tour of five minutes")[2].partition("\n## ")[0]
    before, title, rest = tour.partition("### Log in, submit")
    assert title
    day, _, after = rest.partition("\n### ")
    return before, day, after


def _commands(text: str) -> str:
    return "\n".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
