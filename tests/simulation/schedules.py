"""Schedules: a cluster, what its users do, and what befalls it, all from one seed."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

USERS_AND_FAULTS_END_S = 200.0
"""After this nothing is done to the cluster any more, and everything is in order."""


@dataclass(frozen=True)
class Deed:
    """A deed of a user, or a fault of the cluster, at a time in seconds.

    `target` is a host's id or a session's number, or empty. `values` belong to the kind.
    """

    at: float
    kind: str
    target: str = ""
    values: tuple[tuple[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        return dict(self.values)[name]

    def __str__(self) -> str:
        words = [self.kind, self.target, *(f"{name}={value}" for name, value in self.values)]
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Site:
    """The settings by which a site's queue is worked.

    `limits` are of what may run: the kind as in the settings, the name, what is counted, and the most of it.
    `passes_every_s` is the pause between passes of `muster pass`, None where a daemon works the queue.
    """

    order: str = "fifo"
    placement: str = "pack"
    backfill: bool = True
    reserve_after_passes: int = 20
    preemption: bool = True
    defragment: bool = True
    limits: tuple[tuple[str, str, str, int], ...] = ()
    shares: tuple[tuple[str, float], ...] = ()
    passes_every_s: float | None = None


@dataclass(frozen=True)
class Schedule:
    """A schedule. `hosts` are the facts of each host by its id; `deeds` are in the order of their times."""

    seed: int
    hosts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    deeds: tuple[Deed, ...] = field(default_factory=tuple)
    site: Site = Site()


SUBMIT = "submit"
RESERVE = "reserve"
OWNERS = ("ada", "bob")
REMOVALS_FAIL = "removals fail"
MODULE_DIES_REMOVING = "module dies removing"
REINSTALL = "reinstall"
PRUNE = "prune"
STATE_LOST = "state lost"
LEAVE = "leave"
BACK_UP = "back up"
RESTORE = "restore"
SHRINK = "shrink"
RECUT = "recut"
LIMIT = "limit"
SETTINGS_CHANGE = "settings change"
PULLS_REFUSED = "pulls refused"
PULLS_SLOW = "pulls slow"
DRAIN_AND_END = "drain and end"
EXTEND = "extend"
UPDATE = "update"
OVERTAKES = "overtakes"
"""The value of a user's deed that comes right before so manieth transaction of the process that works the queue."""
# What befalls few schedules, each by a chance of its own.
RARE = frozenset(
    {RESERVE, REMOVALS_FAIL, MODULE_DIES_REMOVING, REINSTALL, PRUNE, STATE_LOST, LEAVE, BACK_UP, RESTORE, SHRINK, RECUT}
    | {PULLS_REFUSED, PULLS_SLOW, DRAIN_AND_END, EXTEND, UPDATE, LIMIT, SETTINGS_CHANGE}
)
# Deeds of users other than submits.
USERS = ("end", "restart", "drain", "resume", "hold", "let go")
# Of these, decisions must heed what comes between their look at the queue and their commit.
HEEDED = frozenset({*USERS, RESERVE, DRAIN_AND_END, EXTEND, UPDATE})
# Each kind of fault with its weight.
FAULTS: dict[str, int] = {
    # A host
    "reboot": 4,
    "cut": 5,
    "engine stops": 3,
    "hang": 3,
    "disk full": 2,
    "launches fail": 2,
    "next launch fails": 3,
    "stops fail": 1,
    "module dies": 4,
    "container dies": 3,
    "container vanishes": 1,
    "network gone": 1,
    "pulls fail": 1,
    "host clock wrong": 2,
    # Answers
    "answer lost": 3,
    "answer late": 3,
    "answer twice": 2,
    "answer malformed": 3,
    "visit breaks off": 3,
    # The control node
    "kill": 8,
    "lock lost": 2,
    "pause": 3,
    "database away": 2,
    "control cut": 3,
    "clock jumps": 2,
    "nudges lost": 2,
    "Ansible fails": 1,
}


def schedule_of(seed: int) -> Schedule:
    """Return the schedule of a seed: always the same one."""
    return Schedule(seed, hosts := _hosts(seed), _ordered(seed, [host_id for host_id, _ in hosts]), _site(seed))


def _site(seed: int) -> Site:
    chance = random.Random(f"{seed} site")
    return Site(
        order=chance.choice(("fifo", "fifo", "lifo", "drf", "fair_share")),
        placement=chance.choice(("fragmentation", "fragmentation", "pack", "spread", "round_robin")),
        backfill=chance.random() < 0.7,
        reserve_after_passes=chance.choice((1, 2, 20)),
        preemption=chance.random() < 0.7,
        defragment=chance.random() < 0.7,
        limits=_limits(chance),
        shares=chance.choice(((), (), (("ada", 2.0),), (("ada", 0.5), ("bob", 3.0)))),
        passes_every_s=chance.choice((None,) * 8 + (15.0, 60.0)),
    )


def _limits(chance: random.Random) -> tuple[tuple[str, str, str, int], ...]:
    """Return the limits of what may run; mostly none."""
    whom = (("users", "*"), ("users", "ada"), ("projects", "*"), ("resource_groups", "default"))
    most = (("sessions", 1), ("sessions", 2), ("kernels", 3), ("kernels", 5), ("cpu", 2), ("cpu", 4))
    count = chance.choice((0, 0, 0, 1, 1, 2))
    return tuple(
        (*of, *bound) for of, bound in zip(chance.sample(whom, count), chance.sample(most, count), strict=True)
    )


def _hosts(seed: int) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
    chance = random.Random(f"{seed} hosts")
    hosts = []
    for number in range(1, chance.choice((1, 2, 2, 3, 3, 3)) + 1):
        gpus = chance.choice((0, 0, 1, 2))
        facts = {"cpus": chance.choice((2, 4)), "gpus": gpus, "units_per_gpu": chance.choice((0, 1)) if gpus else 0}
        swarm = "manager" if number == 1 else chance.choice(("manager", "worker"))
        hosts.append((f"a{number}", (*facts.items(), ("swarm", swarm))))
    return tuple(hosts)


def _ordered(seed: int, hosts: list[str]) -> tuple[Deed, ...]:
    users = random.Random(f"{seed} users")
    faults = random.Random(f"{seed} faults")
    count = users.choice((1, 1, 2, 2, 3, 4))
    usage = random.Random(f"{seed} usage")
    sizes = random.Random(f"{seed} sizes")
    deeds = [_elastic(sizes, _used(usage, _submission(users, number))) for number in range(1, count + 1)]
    deeds += _urgent(random.Random(f"{seed} urgent"), count + 1, hosts)
    is_recut = random.Random(f"{seed} is recut").random() < 0.15
    deeds += _sharing(random.Random(f"{seed} sharing"), count + 2) if is_recut else []
    deeds = [_owned(random.Random(f"{seed} owner {deed.target}"), deed) for deed in deeds]
    deeds = [_pinned(random.Random(f"{seed} pinned {deed.target}"), deed, hosts) for deed in deeds]
    deeds = [_signalled(random.Random(f"{seed} signal {deed.target}"), deed) for deed in deeds]
    deeds += _before_the_end(random.Random(f"{seed} before the end"), deeds, hosts)
    deeds += _reserved(random.Random(f"{seed} reserved"), hosts)
    deeds += _updated(random.Random(f"{seed} updated"), count)
    for _ in range(users.choice((0, 0, 1, 1, 2))):
        kind = users.choice(("end", "end", "end", "restart", "drain", "resume", "hold", "let go"))
        on_host = kind in {"drain", "resume"}
        target = users.choice(hosts) if on_host else str(users.randint(1, count))
        deeds.append(Deed(_time(users), kind, target))
    kinds, weights = list(FAULTS), list(FAULTS.values())
    for _ in range(faults.choice((0, 1, 1, 2, 2, 3, 4))):
        kind = faults.choices(kinds, weights)[0]
        deeds.append(_fault(faults, kind, hosts))
    deeds += _resisting(random.Random(f"{seed} removals"), hosts)
    deeds += _dying(random.Random(f"{seed} dying"), hosts)
    deeds += _reinstalled(random.Random(f"{seed} reinstalled"), hosts)
    deeds += _by_administrators(random.Random(f"{seed} administrators"), hosts)
    deeds += _restored(random.Random(f"{seed} restored"))
    deeds += _shrunk(random.Random(f"{seed} shrunk"), hosts)
    deeds += _pulling(random.Random(f"{seed} pulling"), hosts)
    deeds += _recut(random.Random(f"{seed} recut"), hosts) if is_recut else []
    deeds += _limited(random.Random(f"{seed} limited"))
    deeds += _changed(random.Random(f"{seed} changed"))
    deeds = [_overtaking(random.Random(f"{seed} overtaking {deed}"), deed) for deed in deeds]
    return tuple(sorted(deeds, key=lambda deed: (deed.at, str(deed))))


def _time(chance: random.Random) -> float:
    """Return a time at which something happens: mostly early, when sessions are launched."""
    most = chance.choice((6.0, 15.0, 40.0, USERS_AND_FAULTS_END_S - 20))
    return round(chance.uniform(1.0, most), 3)


def _submission(chance: random.Random, number: int) -> Deed:
    size = chance.choice((1, 1, 2, 2, 3, 4))
    is_batch = chance.random() < 0.75
    spec: dict[str, Any] = {
        "cluster_size": size,
        "cluster_mode": chance.choice(("single-node", "multi-node", "multi-node")),
        "cpu": chance.choice(("500m", "1", "1", "2")),
        "mem": "256M",
        "fgpu": chance.choice((0, 0, 0, "0.5")),
        "requeue": chance.random() < 0.35,
        "run_on": chance.choice(("main", "main", "all")) if is_batch else "main",
        "command": "work" if is_batch else None,
        "image": chance.choice(("busybox", "busybox", "busybox", "debian:13")),
        "priority": chance.choice((50, 50, 50, 80)),
        "time_limit": chance.choice((None, None, None, None, "60s")),
    }
    if number > 1 and chance.random() < 0.3:
        spec[chance.choice(("after", "after_ok", "after_any"))] = chance.randint(1, number - 1)
    behaviour = {
        "run_s": chance.choice((0.0, 0.3, 2.0, 10.0, 40.0)),
        "exit_code": chance.choice((0, 0, 0, 1, 3)),
        "oom": chance.choice(("", "", "", "", "killed", "survived")),
    }
    at = round(chance.uniform(0.0, chance.choice((5.0, 5.0, 60.0))), 3)
    return Deed(at, SUBMIT, str(number), (*spec.items(), *behaviour.items()))


def _elastic(chance: random.Random, submission: Deed) -> Deed:
    """Return the submission, sometimes of a session that also runs with more kernels."""
    values = dict(submission.values)
    if chance.random() < 0.3:
        least = values["cluster_size"]
        values["cluster_size"] = f"{least}-{least + chance.choice((1, 2, 4))}"
    return replace(submission, values=tuple(values.items()))


def _pinned(chance: random.Random, submission: Deed, hosts: list[str]) -> Deed:
    """Return the submission, sometimes of a session that may run on one host only."""
    if chance.random() > 0.1:
        return submission
    return replace(submission, values=(*submission.values, ("agents", (chance.choice(hosts),))))


def _owned(chance: random.Random, submission: Deed) -> Deed:
    return replace(submission, values=(*submission.values, ("owner", chance.choice(OWNERS))))


def _signalled(chance: random.Random, submission: Deed) -> Deed:
    """Return the submission, sometimes of a session whose command gets a signal before its end."""
    values = dict(submission.values)
    if values["command"] is None or chance.random() > 0.3:
        return submission
    values["signal"] = f"USR1@{chance.choice((3, 10, 30))}"
    values["heeds_signal"] = chance.random() < 0.3
    if chance.random() < 0.5:
        values |= {"time_limit": "60s", "run_s": 150.0, "busy_s": 1000.0}
    return replace(submission, values=tuple(values.items()))


def _before_the_end(chance: random.Random, submissions: list[Deed], hosts: list[str]) -> list[Deed]:
    """Return what brings a session's end nearer or puts it off; mostly nothing."""
    found = []
    if chance.random() < 0.1:
        found.append(Deed(_time(chance), DRAIN_AND_END, chance.choice(hosts)))
    limited = [deed.target for deed in submissions if dict(deed.values)["time_limit"]]
    if limited and chance.random() < 0.3:
        values = (("by_s", chance.choice((10, 40))),)
        found.append(Deed(round(chance.uniform(10.0, 90.0), 3), EXTEND, chance.choice(limited), values))
    return found


def _reserved(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return that an administrator reserves a host or all of them, for a user or for maintenance; mostly none."""
    if chance.random() > 0.25:
        return []
    values = {
        "begins_in_s": chance.choice((0.0, 0.0, 20.0, 70.0)),
        "for_s": round(chance.uniform(5, 150), 2),
        "users": chance.choice(((), ("ada",), ("bob",))),
    }
    return [Deed(_time(chance), RESERVE, chance.choice(("", *hosts)), tuple(values.items()))]


def _overtaking(chance: random.Random, deed: Deed) -> Deed:
    """Return the deed, sometimes as one that comes while a decision is made."""
    if deed.kind not in HEEDED or chance.random() > 0.4:
        return deed
    return replace(deed, values=(*deed.values, (OVERTAKES, chance.randint(1, 6))))


def _urgent(chance: random.Random, number: int, hosts: list[str]) -> list[Deed]:
    """Return a session that needs a good part of each host, and that others may have to make room for; mostly none."""
    if chance.random() > 0.2:
        return []
    submission = _used(chance, _submission(chance, number))
    urgent = {"priority": 90, "cluster_size": len(hosts), "cluster_mode": "multi-node", "cpu": "2", "fgpu": 0}
    return [replace(submission, at=_time(chance), values=tuple({**dict(submission.values), **urgent}.items()))]


def _limited(chance: random.Random) -> list[Deed]:
    """Return that an administrator sets limits for a time, while the queue is worked; mostly none."""
    if chance.random() > 0.15:
        return []
    whom = (("user", "*"), ("user", "ada"), ("project", "*"), ("resource_group", "default"))
    most = (("sessions", 0), ("sessions", 1), ("kernels", 2), ("kernels", 4), ("cpu", 1000), ("cpu", 3000))
    deeds = []
    for (of, name), (counted, bound) in zip(chance.sample(whom, 2), chance.sample(most, 2), strict=True):
        values = (("of", of), ("counted", counted), ("most", bound), ("for_s", round(chance.uniform(5, 90), 2)))
        deeds.append(Deed(_time(chance), LIMIT, name, values))
    return deeds


def _changed(chance: random.Random) -> list[Deed]:
    """Return that the daemon is started anew with other settings; mostly not."""
    if chance.random() > 0.1:
        return []
    values = (("site", _site(chance.getrandbits(32))), ("for_s", round(chance.uniform(0.5, 5), 2)))
    return [Deed(_time(chance), SETTINGS_CHANGE, values=values)]


def _updated(chance: random.Random, count: int) -> list[Deed]:
    """Return updates of sessions, which may wait then; mostly none."""
    deeds = []
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        values: dict[str, Any] = {
            "cpu": chance.choice((500, 1000, 2000)),
            "cluster_size": chance.choice((1, 2, 3, "1-3")),
            "cluster_mode": chance.choice(("single-node", "multi-node")),
            "priority": chance.choice((20, 60)),
            "time_limit": chance.choice((None, "40s")),
        }
        fields = chance.sample(sorted(values), chance.randint(1, 3))
        target = str(chance.randint(1, count))
        deeds.append(Deed(_time(chance), UPDATE, target, tuple((name, values[name]) for name in fields)))
    return deeds


def _sharing(chance: random.Random, number: int) -> list[Deed]:
    """Return sessions that share GPUs and request little else."""
    submissions = [_used(chance, _submission(chance, number + more)) for more in range(3)]
    shares = {"cluster_size": chance.choice((1, 1, 2, 3)), "cpu": "100m", "fgpu": chance.choice(("0.5", "0.5", "0.3"))}
    return [
        replace(submission, values=tuple({**dict(submission.values), **shares}.items())) for submission in submissions
    ]


def _resisting(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return a time at which a host can remove nothing, or no files; mostly none."""
    if chance.random() > 0.1:
        return []
    values = (("for_s", round(chance.uniform(5, 120), 2)), ("of", chance.choice(("all", "files"))))
    return [Deed(_time(chance), REMOVALS_FAIL, chance.choice(hosts), values)]


def _dying(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return a time from which a host's module dies once, between containers and files; mostly none."""
    if chance.random() > 0.15:
        return []
    return [Deed(_time(chance), MODULE_DIES_REMOVING, chance.choice(hosts))]


def _reinstalled(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return a reboot after which a host has nothing of what it had, as one without disks; mostly none."""
    if chance.random() > 0.1:
        return []
    return [Deed(_time(chance), REINSTALL, chance.choice(hosts), (("for_s", round(chance.uniform(1, 60), 2)),))]


def _by_administrators(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return what administrators do to hosts without regard to sessions; mostly nothing."""
    deeds = []
    for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 1, 2))):
        kind = chance.choice((PRUNE, PRUNE, STATE_LOST, LEAVE, LEAVE))
        values: tuple[tuple[str, Any], ...] = ()
        if kind == PRUNE:
            values = (("all_images", chance.random() < 0.5),)
        elif kind == LEAVE:
            values = (("for_s", round(chance.choice((chance.uniform(1, 45), chance.uniform(45, 190))), 2)),)
        deeds.append(Deed(_time(chance), kind, chance.choice(hosts), values))
    return deeds


def _restored(chance: random.Random) -> list[Deed]:
    """Return that a backup is taken, and put in the database's place later; mostly nothing."""
    if chance.random() > 0.1:
        return []
    taken_at = _time(chance)
    restored_at = round(min(taken_at + chance.choice((10.0, 90.0)) * chance.random(), USERS_AND_FAULTS_END_S - 1), 3)
    return [Deed(taken_at, BACK_UP), Deed(restored_at, RESTORE, values=(("hold", chance.random() < 0.7),))]


def _shrunk(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return that a host has less for a time, while what runs there goes on; mostly nothing."""
    if chance.random() > 0.1:
        return []
    values = (("part", chance.choice(("cpu", "gpu"))), ("for_s", round(chance.uniform(5, 150), 2)))
    return [Deed(_time(chance), SHRINK, chance.choice(hosts), values)]


def _recut(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return that a host's GPUs are cut otherwise for a time, while sessions share them."""
    values = (("units", chance.choice((0, 1, 2, 2, 4))), ("for_s", round(chance.uniform(5, 150), 2)))
    return [Deed(_time(chance), RECUT, chance.choice(hosts), values)]


def _pulling(chance: random.Random, hosts: list[str]) -> list[Deed]:
    """Return that a host's pulls take long, or are refused as those of no image there is; mostly nothing."""
    if chance.random() > 0.1:
        return []
    values: tuple[tuple[str, Any], ...] = (("for_s", round(chance.uniform(5, 150), 2)),)
    if (kind := chance.choice((PULLS_REFUSED, PULLS_SLOW))) == PULLS_SLOW:
        values = (*values, ("by_s", round(chance.uniform(10, 120), 2)))
    return [Deed(round(chance.uniform(0.5, 40.0), 3), kind, chance.choice(hosts), values)]


def _used(chance: random.Random, submission: Deed) -> Deed:
    """Return the submission with what users do with the session, and what it allows."""
    values = {
        "preemptible": chance.random() < 0.5,
        "idle_timeout": chance.choice((None, None, None, "30s", "60s", "100s")),
        "busy_s": chance.choice((0.0, 20.0, 1000.0, 1000.0)),
    }
    return replace(submission, values=(*submission.values, *values.items()))


def _outage_s(short_s: float) -> float:
    """Return for how long nobody works the queue: mostly for a moment, sometimes for longer than sessions may last."""
    return short_s if short_s < 17.0 else 6 * short_s


def _fault(chance: random.Random, kind: str, hosts: list[str]) -> Deed:
    values: dict[str, Any] = {}
    for_s = round(chance.choice((chance.uniform(1, 12), chance.uniform(10, 45), chance.uniform(45, 190))), 2)
    match kind:
        case "reboot" | "cut" | "engine stops" | "hang" | "disk full" | "launches fail" | "stops fail" | "pulls fail":
            values["for_s"] = for_s
        case "database away" | "control cut" | "nudges lost" | "Ansible fails" | "pause":
            values["for_s"] = for_s
        case "next launch fails":
            values["how"] = chance.choice(("transient", "transient", "permanent"))
        case "container dies":
            values = {"exit_code": chance.choice((0, 1, 137)), "oom": chance.random() < 0.2}
        case "answer late":
            values["by_s"] = for_s
        case "kill":
            values = {
                "commits": chance.randint(1, 8),
                "after": chance.random() < 0.5,
                "visits_go_on": chance.random() < 0.6,
                "for_s": round(_outage_s(chance.uniform(0.5, 20)), 2),
            }
        case "host clock wrong":
            values = {"for_s": for_s, "by_s": chance.choice((-3600, -90, -5, 5, 90, 3600))}
        case "clock jumps":
            values["by_s"] = chance.choice((-3600, -90, -5, 5, 90, 3600))
    if kind == "pause":
        values |= {"commits": chance.randint(1, 6), "after": chance.random() < 0.5}
    on_control_node = {"kill", "lock lost", "pause", "database away", "control cut", "clock jumps", "nudges lost"}
    target = "" if kind in on_control_node | {"Ansible fails"} else chance.choice(hosts)
    return Deed(_time(chance), kind, target, tuple(values.items()))
