"""Plays that are started before there is anything to do. Each waits for its hosts: ADR 24.

Half of a short visit is the start of its play: ansible-runner's files and terminal, a fork, the options, the inventory,
the playbook. None of that depends on what is to be done.
"""

import os
import re
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from muster.ansible_gateway.play_order import PlayOrder
from muster.ansible_gateway.playbook import Inventory, ReadResult, run_playbook
from muster.core.turn.answer import AgentAnswer, AnswerHandler
from muster.private_directories import private_directory

NOTHING_AHEAD: Mapping[str, int] = {}
Stamp = tuple[tuple[object, ...], ...]
# Beside an inventory, Ansible reads these when it needs their variables. They count all the same.
_VARIABLES = ("group_vars", "host_vars")
# A file that names one may have other hosts each time that it is read.
_INVENTORY_PLUGIN = b"plugin"
# A value with one of these may be another each time that it is read; who knows what is encrypted.
_NEWS = re.compile(rb"\b(lookup|query|q|now)\s*\(|\|\s*(random|shuffle|strftime)\b|\$ANSIBLE_VAULT")


class WaitingPlay:
    """A play that ansible-runner has started in a thread of its own. `directory` is for the files of its run."""

    def __init__(self, name: str, inventory: Inventory) -> None:
        self._opened = ExitStack()
        self.directory = self._opened.enter_context(private_directory())
        self._fifo = self.directory / "order"
        os.mkfifo(self._fifo, 0o600)
        # Open for both, so that it waits for no reader. If this process dies, the play reads the end of it, and ends.
        self._order = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK)
        self._lock = threading.Lock()
        self._is_taken = self._is_over = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(name, inventory), name="play-ahead", daemon=True)
        self._thread.start()

    def take(self) -> bool:
        """Let the play be the caller's, who calls `run`. Return False if it has ended meanwhile."""
        with self._lock:
            self._is_taken = not self._is_over
            return self._is_taken

    def run(self, order: PlayOrder, read_result: ReadResult, on_answer: AnswerHandler) -> bool:
        """Run the play to its end as `run_playbook` does. Return False if it could not be given its order."""
        self._read_result, self._on_answer = read_result, on_answer
        line = order.line()
        try:
            # A part is no order: the play ends then, as nothing follows.
            if os.write(self._order, line) == len(line):
                self._thread.join()
            is_begun = not self._fifo.exists()
        finally:
            self.abandon()
            self._thread.join()
            self._opened.close()
        if is_begun and self._failure is not None:
            raise self._failure
        return is_begun

    def abandon(self) -> None:
        """Let the play end if it has not begun. Where nobody has taken it, it clears up after itself."""
        with self._lock:
            if self._order >= 0:
                os.close(self._order)
                self._order = -1

    def join(self) -> None:
        """Wait until the play has ended."""
        self._thread.join()

    def _run(self, name: str, inventory: Inventory) -> None:
        try:
            run_playbook(name, inventory, {}, self.directory, self._read, self._pass_on, awaits=self._fifo)
        except Exception as error:  # noqa: BLE001 - raised again in the thread that has given the order
            self._failure = error
        with self._lock:
            self._is_over = True
            is_left = not self._is_taken
        if is_left:
            self.abandon()
            self._opened.close()

    def _read(self, agent_id: str, result: Mapping[str, Any], failure: str) -> AgentAnswer:
        return self._read_result(agent_id, result, failure)

    def _pass_on(self, answer: AgentAnswer) -> None:
        self._on_answer(answer)


class PlaysAhead:
    """A number of waiting plays for each playbook, by its name. They are replaced when the inventory has changed."""

    def __init__(self, inventory: Inventory, numbers: Mapping[str, int]) -> None:
        self._inventory = inventory
        self._numbers = numbers
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._plays: dict[str, list[WaitingPlay]] = {name: [] for name in numbers}

    def take(self, name: str) -> WaitingPlay | None:
        """Return a play that waits, for the caller to `run`; None if there is none."""
        with self._lock:
            self._drop_outdated()
            plays = self._plays.get(name, [])
            while plays:
                play = plays.pop(0)
                if play.take():
                    return play
        return None

    def refill(self) -> None:
        """Start what is lacking. Nothing waits for an inventory that may say something else each time."""
        with self._lock:
            self._drop_outdated()
            if self._stamp is not None:
                for name, plays in self._plays.items():
                    plays.extend(WaitingPlay(name, self._inventory) for _ in range(self._numbers[name] - len(plays)))

    def close(self) -> None:
        """End the plays that wait, and start no others."""
        with self._lock:
            plays = [play for waiting in self._plays.values() for play in waiting]
            self._drop()
            self._numbers, self._plays = {}, {}
        for play in plays:
            play.join()

    def _drop_outdated(self) -> None:
        if self._numbers and (stamp := inventory_stamp(self._inventory.path)) != self._stamp:
            self._drop()
            self._stamp = stamp

    def _drop(self) -> None:
        for plays in self._plays.values():
            for play in plays:
                play.abandon()
            plays.clear()


def inventory_stamp(inventory: Path) -> Stamp | None:
    """Return a value that another content of the inventory changes; None where it may say something new at any time."""
    files, variables = _read_by_ansible(inventory)
    try:
        if any(_may_change_by_itself(path) for path in files - variables):
            return None
        return tuple((str(path), *_facts(path)) for path in sorted(files | variables))
    except OSError:
        return None


def has_lasting_values(inventory: Path) -> bool:
    """Return whether the values of the inventory's hosts are the same each time, as long as its stamp is."""
    files, variables = _read_by_ansible(inventory)
    try:
        return not any(_NEWS.search(path.read_bytes()) for path in files | variables)
    except OSError:
        return False


def _read_by_ansible(inventory: Path) -> tuple[set[Path], set[Path]]:
    """Return the files of the inventory, and those beside it that have variables."""
    beside = inventory if inventory.is_dir() else inventory.parent
    files = set(_files(inventory)) if inventory.is_dir() else {inventory}
    return files, {path for name in _VARIABLES for path in _files(beside / name)}


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir()] if directory.is_dir() else []


def _may_change_by_itself(path: Path) -> bool:
    return os.access(path, os.X_OK) or _INVENTORY_PLUGIN in path.read_bytes()


def _facts(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
