"""What the programs that set a host's rules for sessions have in common."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .site import Site

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Runs a command in a network namespace of its own, to list rules as they would be once they are set.
ELSEWHERE = ("unshare", "--net")
_ENVIRONMENT = {**os.environ, "PATH": SYSTEM_PATH, "LC_ALL": "C"}


class FirewallError(Exception):
    """The rules cannot be read or set; the message is one line."""


class Backend(ABC):
    """A program that sets rules. `actual` returns the host's rules as text; `expected`, those that a site needs."""

    program: str

    @abstractmethod
    def actual(self) -> str: ...

    @abstractmethod
    def expected(self, site: Site) -> str: ...

    @abstractmethod
    def apply(self, site: Site) -> None: ...

    @abstractmethod
    def remove(self) -> None: ...


def is_installed(program: str) -> bool:
    return shutil.which(program, path=SYSTEM_PATH) is not None


def run(command: list[str], stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=_ENVIRONMENT, check=False)
    if done.returncode != 0:
        raise FirewallError(f"{' '.join(command[:3])}: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout


def succeeds(command: list[str]) -> bool:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_ENVIRONMENT, check=False)
    return done.returncode == 0
