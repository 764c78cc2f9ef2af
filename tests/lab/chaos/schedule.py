"""Schedules of users' actions and faults, each made from one number: the same number makes the same schedule."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


class Database(StrEnum):
    """The database of the control node."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"


class Trouble(StrEnum):
    """A fault. Those of any host come first, and in the end those that only some hosts and control nodes can have."""

    CUT = "host cut off"
    REBOOT = "host without power"
    ENGINE_KILLED = "engine killed"
    ENGINE_FROZEN = "engine frozen"
    RUN_FULL = "/run full"
    NETWORK_REMOVED = "a session's network removed"
    ALL_CUT = "control node cut off from all hosts"
    DAEMON_KILLED = "daemon killed"
    STATE_FULL = "the state's disk full"
    POSTGRESQL_KILLED = "PostgreSQL killed"
    CLOCK_WRONG = "the control node's clock wrong"
    ENGINE_DISK_FULL = "the engine's disk full"


OF_HOSTS = tuple(Trouble)[: tuple(Trouble).index(Trouble.ALL_CUT)]
OF_SOME = (Trouble.POSTGRESQL_KILLED, Trouble.CLOCK_WRONG, Trouble.ENGINE_DISK_FULL)
OF_CONTROL = tuple(trouble for trouble in Trouble if trouble not in {*OF_HOSTS, *OF_SOME})
_OF_ALL = (*OF_HOSTS, *OF_CONTROL)
# The seconds by which a clock is set forward or back.
_WRONG_BY_S = (-3600, -90, -5, 5, 90, 3600)


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
    """A fault from `tick` until `until`. `host` is empty if it is the control node's.

    `by_s` says how wrong a clock is.
    """

    tick: int
    until: int
    trouble: Trouble
    host: str = ""
    by_s: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    seed: int
    submits: tuple[Submit, ...]
    ends: tuple[End, ...]
    faults: tuple[Fault, ...]
    database: Database = Database.SQLITE

    @property
    def hosts_with_small_disks(self) -> frozenset[str]:
        """Return the hosts whose engine gets a disk that can be filled."""
        return frozenset(fault.host for fault in self.faults if fault.trouble is Trouble.ENGINE_DISK_FULL)

    @property
    def sets_clock(self) -> bool:
        return any(fault.trouble is Trouble.CLOCK_WRONG for fault in self.faults)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, on {self.database}"]
        actions: list[Submit | End | Fault] = [*self.submits, *self.ends, *self.faults]
        for action in sorted(actions, key=lambda action: action.tick):
            match action:
                case Submit():
                    lines.append(f"{action.tick:3}  submit {action.name}: {action.kind}, {action.seconds} s")
                case End():
                    lines.append(f"{action.tick:3}  end {action.name}")
                case Fault():
                    by = f"by {action.by_s} s" if action.by_s else ""
                    what = " ".join(word for word in (action.trouble, action.host, by) if word)
                    lines.append(f"{action.tick:3}  {what}, until {action.until}")
        return "\n".join(lines)


def schedule(seed: int, hosts: Sequence[str]) -> Schedule:
    """Return the schedule of this seed.

    Users and faults draw from streams of their own, so that a change of the one leaves the other as it was. Every
    second control node has PostgreSQL, which is killed once; every third one's clock goes wrong once. In every fourth
    schedule the disk of a host's engine is full for a while.
    """
    users, faults = random.Random(f"{seed} users"), random.Random(f"{seed} faults")
    submits = [
        Submit(users.randrange(TICKS - _QUIET_TICKS), f"s{number}", users.choice(tuple(Kind)), users.randint(2, 12))
        for number in range(users.randint(*_SESSIONS))
    ]
    ended = users.sample(submits, len(submits) // 4)
    ends = [End(users.randint(submit.tick, TICKS - 1), submit.name) for submit in ended]
    found = _faults(faults, hosts)
    database = Database.POSTGRESQL if seed % 2 else Database.SQLITE
    if database is Database.POSTGRESQL:
        found.append(_fault(random.Random(f"{seed} database"), Trouble.POSTGRESQL_KILLED))
    if seed % 3 == 2:
        clock = random.Random(f"{seed} clock")
        found.append(replace(_fault(clock, Trouble.CLOCK_WRONG), by_s=clock.choice(_WRONG_BY_S)))
    if seed % 4 == 1:
        found += _full_disk(random.Random(f"{seed} engine's disk"), hosts, found)
    return Schedule(seed, tuple(submits), tuple(ends), tuple(found), database)


def _faults(chance: random.Random, hosts: Sequence[str]) -> list[Fault]:
    """Return faults, at most one at a time for each host and for the control node."""
    found: list[Fault] = []
    for _ in range(chance.randint(*_FAULTS)):
        trouble = chance.choice(_OF_ALL)
        host = chance.choice(hosts) if trouble in OF_HOSTS else ""
        fault = _fault(chance, trouble, host)
        if not any(_meet(fault, other) for other in found):
            found.append(fault)
    return found


def _full_disk(chance: random.Random, hosts: Sequence[str], others: Sequence[Fault]) -> list[Fault]:
    """Return a time at which the engine's disk is full on a host that has no other fault then, if one is found."""
    tries = (_fault(chance, Trouble.ENGINE_DISK_FULL, chance.choice(hosts)) for _ in range(100))
    return next(([fault] for fault in tries if not any(_meet(fault, other) for other in others)), [])


def _fault(chance: random.Random, trouble: Trouble, host: str = "") -> Fault:
    begin = chance.randrange(1, TICKS - _QUIET_TICKS)
    return Fault(begin, min(TICKS, begin + chance.randint(*_FAULT_TICKS)), trouble, host)


def _meet(one: Fault, other: Fault) -> bool:
    at_once = one.tick <= other.until and other.tick <= one.until
    # All hosts are cut off by the same rules as one of them.
    shares = one.host == other.host or Trouble.ALL_CUT in (one.trouble, other.trouble)
    return at_once and shares
