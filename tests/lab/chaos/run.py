"""A schedule played on the lab, and the promises that it broke."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.control_node import NOTHING, SMALL
from tests.lab.bring_up import SHARED
from tests.lab.chaos.control_node import ChaosControlNode
from tests.lab.chaos.faults import Faults
from tests.lab.chaos.history import FINAL, Ended, History, broken_promises, read_journal
from tests.lab.chaos.schedule import TICKS, Fault, Kind, Schedule, Submit
from tests.lab.lab import Lab

TICK_S = 2.0
_UNCHANGED_S = 240.0
_AT_MOST_S = 1200.0
_Seen = TypeVar("_Seen")
# Its run's name is new each time the command begins, also in the same container.
_COMMAND = """
run=$(cat /proc/sys/kernel/random/uuid)
say() { echo "$1 $BACKENDAI_SESSION_NAME $BACKENDAI_CLUSTER_HOST $run" >>/journal/journal; }
say begin
sleep SECONDS
say end
"""
# With so much memory that one host cannot hold all of it.
_GANG = ("--cluster-size", "2", "--cluster-mode", "multi-node", "--mem", "14G", "--on", "all")
_FLAGS = {
    Kind.BATCH: (),
    Kind.REQUEUED: ("--requeue",),
    Kind.GANG: _GANG,
    Kind.REQUEUED_GANG: (*_GANG, "--requeue"),
    Kind.INTERACTIVE: (),
}


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a run. `refused` counts the commands of users that failed; for those nothing is promised."""

    broken: list[str]
    accepted: int
    refused: int


def play(schedule: Schedule, lab: Lab, node: ChaosControlNode) -> Played:
    """Play the schedule, heal everything, wait until all is settled, and judge.

    The daemon of the control node runs when this begins and when it ends.
    """
    player = _Player(schedule, lab, node)
    try:
        player.play()
    finally:
        player.heal()
    return player.judge()


class _Player:
    def __init__(self, schedule: Schedule, lab: Lab, node: ChaosControlNode) -> None:
        self._schedule = schedule
        self._lab = lab
        self._node = node
        self._faults = Faults(lab, node)
        self._under_way: list[Fault] = []
        self._accepted: list[Submit] = []
        self._refused = 0
        self._broken: list[str] = []
        self._journal = SHARED / f"journal-{node.cluster}" / "journal"
        self._journal.parent.mkdir()
        self._journal.parent.chmod(0o777)
        self._journal.touch()
        self._journal.chmod(0o666)

    def play(self) -> None:
        begun = time.monotonic()
        for tick in range(TICKS):
            for fault in [fault for fault in self._under_way if fault.until <= tick]:
                self._faults.heal(fault)
                self._under_way.remove(fault)
            for submit in self._schedule.submits:
                if submit.tick == tick:
                    self._submit(submit)
            for end in self._schedule.ends:
                if end.tick == tick and any(submit.name == end.name for submit in self._accepted):
                    self._try("terminate", end.name)
            for fault in self._schedule.faults:
                if fault.tick == tick:
                    self._under_way.append(fault)
                    self._faults.begin(fault)
            self._see_that_the_daemon_lives()
            time.sleep(max(0.0, begun + (tick + 1) * TICK_S - time.monotonic()))

    def heal(self) -> None:
        while self._under_way:
            self._faults.heal(self._under_way.pop())

    def judge(self) -> Played:
        _wait(self._states, lambda states: set(states.values()) == {"ALIVE"})
        for name in self._names_of_interactive():
            self._try("terminate", name)
        _wait(self._known, lambda known: all(session.state in FINAL for session in known.values()))
        # Not looked at again: by then other tests may just be making such a directory, or have been killed.
        left = _wait(self._left, lambda left: not any(left.values()))
        self._see_that_the_daemon_lives()
        history = History(
            read_journal(self._journal.read_text()),
            [submit.name for submit in self._accepted],
            self._known(),
            left,
        )
        if (states := self._states()) and set(states.values()) != {"ALIVE"}:
            self._broken.append(f"agents do not come back: {states}")
        return Played([*self._broken, *broken_promises(history)], len(self._accepted), self._refused)

    def _submit(self, submit: Submit) -> None:
        command = ("--", "sh", "-c", _COMMAND.replace("SECONDS", str(submit.seconds)))
        mount = ("--mount", f"{self._journal.parent.name}:/journal")
        batch = () if submit.kind is Kind.INTERACTIVE else (*mount, *command)
        if self._try("submit", *SMALL, "--name", submit.name, *_FLAGS[submit.kind], *batch):
            self._accepted.append(submit)

    def _try(self, *arguments: str) -> bool:
        """Return whether a user's command succeeded. A refusal must say why."""
        try:
            done = self._node.run(*arguments, check=False)
        except AssertionError as error:
            self._broken.append(f"muster {arguments[0]} ended with a traceback: {str(error).splitlines()[-1]}")
            return False
        self._refused += done.code != 0
        return done.code == 0

    def _names_of_interactive(self) -> list[str]:
        """Return those that wait or run, also where the answer to their submission was lost."""
        submitted = {submit.name for submit in self._schedule.submits if submit.kind is Kind.INTERACTIVE}
        return [name for name, session in self._known().items() if name in submitted and session.state not in FINAL]

    def _see_that_the_daemon_lives(self) -> None:
        if self._node.daemon is not None and (code := self._node.daemon.poll()) is not None:
            self._broken.append(f"the daemon ended by itself, with {code}")
            self._node.launch_daemon()

    def _known(self) -> dict[str, Ended]:
        found = self._node.run("ls", "--all", "--json").json()
        return {
            session["name"]: Ended(
                session["name"],
                session["state"],
                session["result"],
                session["requeues"],
                session["spec"]["requeue"],
                str(session["reason"]).startswith(("ended by", "cancelled by")),
            )
            for session in found
        }

    def _states(self) -> dict[str, str]:
        return {agent["id"]: agent["state"] for agent in self._node.run("agents", "--json").json()}

    def _left(self) -> dict[str, list[str]]:
        seen = {host.name: self._lab.left_on(host.name, self._node.cluster) for host in self._lab.hosts}
        left = {host: what for host, what in seen.items() if what != NOTHING}
        on_hosts = {host: [thing for things in what.values() for thing in things] for host, what in left.items()}
        for host in self._lab.hosts:
            if more := self._lab.groups_and_mounts_on(host.name, self._node.cluster):
                on_hosts.setdefault(host.name, []).extend(more)
        return {**on_hosts, "the control node": list(_private_files_of_nobody())}


def _wait(look: Callable[[], _Seen], is_so: Callable[[_Seen], bool]) -> _Seen:
    """Wait until it is so, or nothing changes any more, and return what was seen last: that is judged.

    On a busy machine all takes longer, but something goes on; what goes on for ever is judged as well.
    """
    begun = since = time.monotonic()
    seen = look()
    while not is_so(seen) and time.monotonic() < min(since + _UNCHANGED_S, begun + _AT_MOST_S):
        time.sleep(0.5)
        if (now := look()) != seen:
            seen, since = now, time.monotonic()
    return seen


def _private_files_of_nobody() -> Iterator[str]:
    """Yield directories with keys and secrets that no living process holds: what `kill -9` left."""
    for directory in Path("/dev/shm").glob("muster-????????"):
        with suppress(OSError):  # held, or gone meanwhile
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield str(directory)
            finally:
                os.close(descriptor)
