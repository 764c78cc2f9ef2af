"""Schedules of users' actions and faults, each made from one number: the same number makes the same schedule."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

TICKS = 24
_QUIET_TICKS = 3
_SESSIONS = (7, 11)
_FAULTS = (3, 6)
_FAULT_TICKS = (2, 9)


class Kind(StrEnum):
    """A session to submit."""

    BATCH = "batch"
    REQUEUED = "batch with --requeue"
    GANG = "gang over agents"
    REQUEUED_GANG = "gang over agents with --requeue"
    INTERACTIVE = "interactive"


class Trouble(StrEnum):
    """A fault. Those of a host come first."""

    CUT = "host cut off"
    REBOOT = "host without power"
    ENGINE_KILLED = "engine killed"
    ENGINE_FROZEN = "engine frozen"
    RUN_FULL = "/run full"
    NETWORK_REMOVED = "a session's network removed"
    ALL_CUT = "control node cut off from all hosts"
    DAEMON_KILLED = "daemon killed"
    STATE_FULL = "the state's disk full"


OF_HOSTS = tuple(Trouble)[: tuple(Trouble).index(Trouble.ALL_CUT)]
OF_CONTROL = tuple(trouble for trouble in Trouble if trouble not in OF_HOSTS)


@dataclass(frozen=True, slots=True)
class Submit:
    tick: int
    name: str
    kind: Kind
    seconds: int


@dataclass(frozen=True, slots=True)
class End:
    """A user ends a session that was submitted before."""

    tick: int
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """It begins at `tick` and is healed at `until`. `host` is empty where it is the control node's."""

    tick: int
    until: int
    trouble: Trouble
    host: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    submits: tuple[Submit, ...]
    ends: tuple[End, ...]
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}"]
        actions: list[Submit | End | Fault] = [*self.submits, *self.ends, *self.faults]
        for action in sorted(actions, key=lambda action: action.tick):
            match action:
                case Submit():
                    lines.append(f"{action.tick:3}  submit {action.name}: {action.kind}, {action.seconds} s")
                case End():
                    lines.append(f"{action.tick:3}  end {action.name}")
                case Fault():
                    what = f"{action.trouble} {action.host}".rstrip()
                    lines.append(f"{action.tick:3}  {what}, until {action.until}")
        return "\n".join(lines)


def schedule(seed: int, hosts: Sequence[str]) -> Schedule:
    """Return the schedule of this seed.

    Users and faults draw from streams of their own, so that a change of the one leaves the other as it was.
    """
    users, faults = random.Random(f"{seed} users"), random.Random(f"{seed} faults")
    submits = [
        Submit(users.randrange(TICKS - _QUIET_TICKS), f"s{number}", users.choice(tuple(Kind)), users.randint(2, 12))
        for number in range(users.randint(*_SESSIONS))
    ]
    ended = users.sample(submits, len(submits) // 4)
    ends = [End(users.randint(submit.tick, TICKS - 1), submit.name) for submit in ended]
    return Schedule(seed, tuple(submits), tuple(ends), tuple(_faults(faults, hosts)))


def _faults(chance: random.Random, hosts: Sequence[str]) -> list[Fault]:
    """Return faults, at most one at a time for each host and for the control node."""
    found: list[Fault] = []
    for _ in range(chance.randint(*_FAULTS)):
        trouble = chance.choice(tuple(Trouble))
        host = chance.choice(hosts) if trouble in OF_HOSTS else ""
        begin = chance.randrange(1, TICKS - _QUIET_TICKS)
        fault = Fault(begin, min(TICKS, begin + chance.randint(*_FAULT_TICKS)), trouble, host)
        if not any(_meet(fault, other) for other in found):
            found.append(fault)
    return found


def _meet(one: Fault, other: Fault) -> bool:
    at_once = one.tick <= other.until and other.tick <= one.until
    # All hosts are cut off by the same rules as one of them.
    shares = one.host == other.host or Trouble.ALL_CUT in (one.trouble, other.trouble)
    return at_once and shares
