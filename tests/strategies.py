"""One place for what tests are made of: hypothesis strategies, and plain makers for tables of examples."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from muster.contract.report import report_from_agent
from muster.core.agents.agent import Agent, AgentState, agent_from_report
from muster.core.launch.manifest import KeyPair
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import (
    FINAL,
    PLACED,
    AllocatedSlots,
    Allocation,
    GpuShare,
    Kernel,
    LaunchStep,
    Result,
    Session,
    SessionState,
    kernel_count,
    kernels_of,
)
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import NearestMiss, Wait, WaitCode
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import Slots
from tests.simulated_hosts import host_of

NOW = 1_763_724_000.0
GROUPS = ("default", "gpu")
STATES = tuple(SessionState)
M = 1 << 20
GIB = 1 << 30


def new_id(session: int, kernel: int = 0) -> str:
    """Return a UUID that a person can recognise in a failing example."""
    return str(uuid.UUID(int=(session << 96) | (0x4 << 76) | (0x8 << 60) | kernel, version=4))


def make_session(number: int = 1, *, state: SessionState = SessionState.PENDING, **values: Any) -> Session:
    """Return a session with nothing placed. `values` are fields of the spec, or else of the session."""
    in_spec = {key: values.pop(key) for key in list(values) if key in SessionSpec.model_fields}
    in_spec = {"name": f"s{number}", "image": "busybox", **in_spec}
    spec = SessionSpec.model_validate(in_spec)
    ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
    session = Session(ids[0], spec.name, "ada", spec, kernels_of(spec, ids, spec.image), NOW + number, state)
    return replace(session, **values)


def first_for(passes: int) -> Wait:
    """Return the wait of a session that was the first that did not fit in so many passes."""
    return Wait(WaitCode.BUSY, "busy", passes=passes)


def make_array(number: int, indexes: Iterable[int], **values: Any) -> list[Session]:
    """Return the sessions of one array, as they are submitted."""
    spec = {"name": f"s{number}", "array": ",".join(map(str, indexes)), **values}
    made = [make_session(number + place, **spec) for place, _ in enumerate(indexes)]
    return [
        replace(s, name=f"{s.spec.name}-{index}", array_id=made[0].id, array_index=index, submitted_at=NOW + number)
        for s, index in zip(made, indexes, strict=True)
    ]


def placed_on(session: Session, *agent_ids: str, state: SessionState = SessionState.RUNNING) -> Session:
    """Return the session with its kernels on the agents in turn, launched once."""
    kernels = tuple(
        replace(kernel, allocation=Allocation(agent_ids[kernel.rank % len(agent_ids)])) for kernel in session.kernels
    )
    launched = state in {SessionState.PREPARING, SessionState.RUNNING, SessionState.TERMINATING}
    running = state in {SessionState.RUNNING, SessionState.TERMINATING}
    return replace(
        session,
        kernels=kernels,
        state=state,
        reason="all kernels run" if running else "placed",
        placed_mode="single-node" if len(agent_ids) == 1 else "multi-node",
        step=LaunchStep.STARTING if state is SessionState.PREPARING else None,
        generation=7 if launched else 0,
        started_at=NOW if running else None,
    )


def observed(agent_id: str, report: Mapping[str, Any], inventory: Mapping[str, Any], now: float = NOW) -> Agent:
    """Return the agent of a report as it comes over the wire."""
    return agent_from_report(agent_id, report_from_agent(report), inventory, now)


def reporting(agent: Agent, **changes: Any) -> Agent:
    """Return the agent with other values in its report, which are as they come over the wire."""
    report = report_from_agent({**agent.report.model_dump(mode="json"), **changes})
    return agent_from_report(agent.id, report, agent.inventory, agent.observed_at)


def listed(agent: Agent, **changes: Any) -> Agent:
    """Return the agent with other inventory attributes."""
    return agent_from_report(agent.id, agent.report, {**agent.inventory, **changes}, agent.observed_at)


def make_agent(agent_id: str = "a1", **hardware: Any) -> Agent:
    return observed(agent_id, *host_of(agent_id, **hardware))


def fake_key_pair(comment: str) -> KeyPair:
    """Return invented keys: making real ones would be most of a test's time."""
    return KeyPair("private", f"ssh-ed25519 AAAA {comment}")


@dataclass
class Ledger:
    """An independent account of what is used on agents, GPU by GPU."""

    cpu: dict[str, int]
    mem: dict[str, int]
    gpus: dict[str, dict[str, int]]

    @classmethod
    def of(cls, agents: Iterable[Agent]) -> "Ledger":
        agents = list(agents)
        return cls(
            {a.id: a.capacity.cpu for a in agents},
            {a.id: a.capacity.mem for a in agents},
            {a.id: {gpu.uuid: max(gpu.units, 1) * 1000 for gpu in a.gpus} for a in agents},
        )

    def charge(self, kernel: Kernel) -> None:
        assert kernel.allocation is not None
        agent_id = kernel.allocation.agent_id
        self.cpu[agent_id] -= kernel.slots.cpu
        self.mem[agent_id] -= kernel.slots.mem
        for share in kernel.allocation.gpus:
            self.gpus[agent_id][share.uuid] -= share.amount

    @property
    def overdrawn(self) -> list[str]:
        return [
            *(f"cpu of {agent}" for agent, free in self.cpu.items() if free < 0),
            *(f"mem of {agent}" for agent, free in self.mem.items() if free < 0),
            *(uuid for gpus in self.gpus.values() for uuid, free in gpus.items() if free < 0),
        ]


def granted(known: Iterable[Agent], used: Iterable[Kernel], miss: NearestMiss) -> AllocatedSlots:
    """Return what an agent would have to get back, for what it lacks to be free: the least used GPUs first."""
    ledger = Ledger.of(known)
    agent = next(agent for agent in known if agent.id == miss.agent_id)
    for kernel in used:
        if kernel.allocation is not None and kernel.allocation.agent_id in ledger.cpu:
            ledger.charge(kernel)
    free = ledger.gpus[agent.id]
    capacity = {gpu.uuid: gpu.capacity for gpu in agent.gpus}
    shares = []
    wholes, rest = miss.missing.get("gpu", 0), miss.missing.get("fgpu", 0)
    for gpu in sorted((gpu for gpu in free if free[gpu] < capacity[gpu]), key=lambda gpu: -free[gpu]):
        amount = capacity[gpu] - free[gpu] if wholes > 0 else min(rest, capacity[gpu] - free[gpu])
        wholes, rest = (wholes - 1, rest) if wholes > 0 else (0, rest - amount)
        if amount:
            shares.append(GpuShare(gpu, amount, whole=False))
    slots = Slots(cpu=miss.missing.get("cpu", 0), mem=miss.missing.get("mem", 0), fgpu=0, gpu=0)
    return AllocatedSlots(slots, Allocation(agent.id, tuple(shares)))


def share_choices(agent: Agent, slots: Slots, free: dict[str, int]) -> list[tuple[GpuShare, ...]]:
    """Return every way in which the agent's GPUs can serve a kernel. Equal GPUs count as one.

    Written from docs, not from muster/core/model/free_capacity.py, which it judges.
    """
    whole = {gpu.uuid: max(gpu.units, 1) * 1000 for gpu in agent.gpus}
    empty = [uuid for uuid, capacity in whole.items() if free[uuid] == capacity]
    if slots.gpu:
        return [tuple(GpuShare(u, whole[u], whole=True) for u in empty[: slots.gpu])] if len(empty) >= slots.gpu else []
    if not slots.fgpu:
        return [()]
    cut = {gpu.uuid for gpu in agent.gpus if gpu.units}
    if not cut:
        return []
    count, rest = divmod(slots.fgpu, whole[next(iter(cut))])
    empty = [uuid for uuid in empty if uuid in cut]
    if len(empty) < count:
        return []
    wholes = tuple(GpuShare(uuid, whole[uuid], whole=True) for uuid in empty[:count])
    if not rest:
        return [wholes]
    others = [uuid for uuid in cut if free[uuid] >= rest and uuid not in empty[:count]]
    by_free = {free[uuid]: uuid for uuid in sorted(others)}
    return [(*wholes, GpuShare(uuid, rest, whole=False)) for uuid in by_free.values()]


def some_arrangement_exists(kernels: Sequence[Kernel], agents: Sequence[Agent], used: Iterable[Kernel] = ()) -> bool:
    """Return whether the kernels fit on the agents together at all, by an exhaustive search for small cases."""
    ledger = Ledger.of(agents)
    for kernel in used:
        ledger.charge(kernel)
    by_id = {agent.id: agent for agent in agents}
    tried: set[object] = set()

    def search(rest: Sequence[Kernel]) -> bool:
        if not rest:
            return True
        state = (
            len(rest),
            *ledger.cpu.values(),
            *ledger.mem.values(),
            *(tuple(g.values()) for g in ledger.gpus.values()),
        )
        if state in tried:
            return False
        tried.add(state)
        kernel, *others = rest
        for agent in by_id.values():
            if kernel.slots.cpu > ledger.cpu[agent.id] or kernel.slots.mem > ledger.mem[agent.id]:
                continue
            for shares in share_choices(agent, kernel.slots, ledger.gpus[agent.id]):
                before = ledger.cpu[agent.id], ledger.mem[agent.id], dict(ledger.gpus[agent.id])
                ledger.charge(replace(kernel, allocation=Allocation(agent.id, shares)))
                found = search(others)
                ledger.cpu[agent.id], ledger.mem[agent.id], ledger.gpus[agent.id] = before
                if found:
                    return True
        return False

    return search(list(kernels))


def uneven(*roles: dict[str, Any], **main: Any) -> Session:
    """Return a session over several agents with its main1 and these roles."""
    entries = [
        {"name": name, "replicas": 1, **role} for name, role in zip(("ps", "worker", "loader"), roles, strict=False)
    ]
    return make_session(1, **{"cluster_mode": "multi-node", "mem": "1G", "shm": 0, **main, "roles": entries})


def joined_agent(agent_id: str, **hardware: Any) -> Agent:
    return make_agent(agent_id, swarm="manager", **hardware)


@st.composite
def uneven_gangs(draw: st.DrawFn) -> tuple[tuple[Agent, ...], Session]:
    """Draw a few agents that an overlay joins, and a gang that asks for about as much as they have."""
    agents = tuple(
        joined_agent(
            f"a{number}",
            cpus=draw(st.sampled_from((4, 6, 8))),
            mem=draw(st.sampled_from((8, 16, 32))) * GIB,
            gpus=draw(st.sampled_from((0, 1, 2))),
            units_per_gpu=draw(st.sampled_from((1, 1, 0))),
        )
        for number in range(draw(st.integers(2, 3)))
    )

    def resources() -> dict[str, Any]:
        kind = draw(st.sampled_from(("none", "none", "gpu", "fgpu")))
        return {
            "cpu": draw(st.sampled_from((1, 2, 3, 4, 6))),
            "mem": f"{draw(st.sampled_from((1, 4, 8, 12)))}G",
            "gpu": draw(st.integers(1, 2)) if kind == "gpu" else 0,
            "fgpu": draw(st.sampled_from((0.3, 0.5, 0.7, 1, 1.5))) if kind == "fgpu" else 0,
        }

    roles = [{"replicas": draw(st.integers(1, 2)), **resources()} for _ in range(draw(st.integers(1, 2)))]
    return agents, uneven(*roles, **resources())


def slots() -> st.SearchStrategy[Slots]:
    amounts = st.integers(0, 1 << 50)
    return st.builds(Slots, cpu=amounts, mem=amounts, fgpu=amounts, gpu=st.integers(0, 64))


def session_names() -> st.SearchStrategy[str]:
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)


@st.composite
def mounts(draw: st.DrawFn) -> list[dict[str, Any]]:
    folders = draw(st.lists(st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5}){0,2}", fullmatch=True), max_size=3, unique=True))
    return [
        {"folder": folder, "target": f"/data/{number}{folder}", "read_only": draw(st.booleans())}
        for number, folder in enumerate(folders)
    ]


@st.composite
def role_entries(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw roles that a spec accepts, without resources that could disagree with the session's."""
    names = draw(st.lists(st.sampled_from(("ps", "worker", "sub", "data-loader")), max_size=3, unique=True))
    return [
        {
            "name": name,
            "replicas": draw(st.integers(1, 3)),
            "image": draw(st.none() | st.just("debian:12")),
            "command": draw(st.none() | texts().filter(str.strip)),
            "cpu": draw(st.none() | st.sampled_from((1, "500m", "0.25", 2.5))),
            "mem": draw(st.none() | st.sampled_from(("1G", "512M", 1 << 30))),
        }
        for name in names
    ]


@st.composite
def specs(draw: st.DrawFn) -> SessionSpec:
    """Draw valid specs that use every field."""
    roles = draw(role_entries())
    listed = 1 + sum(int(str(role["replicas"])) for role in roles)
    may_grow = not any(role["name"] == "sub" for role in roles)
    cluster_size = draw(st.none() | st.integers(listed, listed + 3 if may_grow else listed))
    command = draw(st.none() | texts().filter(str.strip))
    script = draw(st.just("#!/bin/sh\ntrue\n")) if command is None and draw(st.booleans()) else None
    is_batch = command is not None or script is not None
    gpu = draw(st.integers(0, 3))
    names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
    return SessionSpec.model_validate(
        {
            "name": draw(st.just("") | session_names()),
            "image": draw(st.sampled_from(("", "busybox", "registry.example:5000/team/image:1"))),
            "type": draw(st.sampled_from((None, "batch" if is_batch else "interactive"))),
            "command": command,
            "script": script,
            "run_on": draw(st.sampled_from(("main", "all"))),
            "cluster_size": cluster_size,
            "cluster_mode": draw(st.sampled_from(("single-node", "multi-node"))),
            "roles": roles,
            "cpu": draw(st.sampled_from((1, "0.5", "1500m", 64))),
            "mem": draw(st.sampled_from(("64M", "1G", "1.5GiB", 1 << 33))),
            "shm": draw(st.sampled_from(("64M", 0, "1K"))),
            "disk": draw(st.sampled_from((None, "1M", "1.5GiB", 1 << 40))),
            "gpu": gpu,
            "fgpu": 0 if gpu else draw(st.sampled_from((0, "0.25", 1, "3.5"))),
            "env": draw(st.dictionaries(names, texts(), max_size=3)),
            "mounts": draw(mounts()),
            "priority": draw(st.integers(0, 100)),
            "time_limit": draw(st.none() | st.sampled_from((5, "90s", "1-12:00:00", "2h30m", "1:30:00"))),
            "resource_group": draw(st.sampled_from(GROUPS)),
            "distributed_env": draw(st.booleans()),
            "requeue": draw(st.booleans()),
            "ssh_keys": draw(st.lists(st.just("ssh-ed25519 AAAA me@laptop"), max_size=1)),
            **draw(what_is_asked_of_time_and_place()),
        }
    )


@st.composite
def what_is_asked_of_time_and_place(draw: st.DrawFn) -> dict[str, Any]:
    """Draw fields of a spec that say when and where it may start."""
    ids = st.lists(st.integers(1, 9).map(new_id), max_size=2)
    agents = st.lists(st.sampled_from(("a1", "a2", "a3")), max_size=2)
    return {
        "project": draw(st.sampled_from(("default", "vision"))),
        "after": draw(ids),
        "after_ok": draw(ids),
        "after_any": draw(ids),
        "begin": draw(st.none() | st.floats(NOW, NOW + 10**6)),
        "hold": draw(st.booleans()),
        "array": draw(st.sampled_from((None, "0-3", "1,3,5-9:2", "0-99%8"))),
        "preemptible": draw(st.booleans()),
        "gpu_models": draw(st.lists(st.sampled_from(("A100", "H100")), max_size=2)),
        "labels": draw(st.dictionaries(st.sampled_from(("disk", "site/zone")), texts(), max_size=2)),
        "agents": draw(agents),
        "exclude_agents": draw(st.sampled_from(((), ("a4",)))),
        "topology": draw(st.sampled_from(("any", "prefer-rack", "one-rack"))),
    }


@st.composite
def gang_specs(draw: st.DrawFn, *, never_spread: bool = False) -> SessionSpec:
    """Draw small gangs whose amounts are of the size of a small agent's: they compete."""

    def resources() -> dict[str, Any]:
        kind = draw(st.sampled_from(("none", "none", "gpu", "fgpu", "fgpu")))
        return {
            "cpu": f"{draw(st.sampled_from((250, 500, 1000, 1500, 3000)))}m",
            "mem": draw(st.sampled_from((64, 128, 512, 1024, 3000))) * M,
            "shm": 0,
            "gpu": draw(st.integers(1, 2)) if kind == "gpu" else 0,
            "fgpu": f"{draw(st.sampled_from((250, 300, 400, 500, 750, 1000, 1500, 2500)))}m" if kind == "fgpu" else 0,
        }

    names = draw(st.lists(st.sampled_from(("ps", "worker")), max_size=2, unique=True))
    roles = [{"name": name, "replicas": draw(st.integers(1, 2)), **resources()} for name in names]
    modes = ("single-node",) if never_spread else ("single-node", "multi-node")
    extra = draw(st.integers(0, 2))
    return SessionSpec.model_validate(
        {
            "name": "gang",
            "image": "busybox",
            "roles": roles,
            "cluster_size": 1 + sum(int(str(role["replicas"])) for role in roles) + extra,
            "cluster_mode": draw(st.sampled_from(modes)),
            "priority": draw(st.sampled_from((40, 50, 50, 60))),
            "time_limit": draw(st.sampled_from((None, None, "10m", "1h"))),
            "preemptible": draw(st.booleans()),
            "requeue": draw(st.booleans()),
            "resource_group": draw(st.sampled_from(("default", "default", "gpu"))),
            **resources(),
        }
    )


@st.composite
def agents(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 3) -> tuple[Agent, ...]:
    """Draw small agents with GPUs cut into units, in a swarm or not, now and then away or drained."""
    return tuple(
        replace(
            make_agent(
                f"a{number}",
                cpus=draw(st.sampled_from((0, 1, 2, 4, 8))),
                mem_bytes=draw(st.sampled_from((0, 512, 1024, 4096, 8192))) * M,
                gpus=draw(st.integers(0, 3)),
                units_per_gpu=draw(st.sampled_from((0, 1, 1, 2, 4))),
                resource_group=draw(st.sampled_from(("default", "default", "gpu"))),
                swarm=draw(st.sampled_from(("manager", "manager", "worker", ""))),
            ),
            state=draw(st.sampled_from((*[AgentState.ALIVE] * 4, AgentState.UNREACHABLE, AgentState.LOST))),
            drain_reason=draw(st.sampled_from((None, None, None, None, "disks"))),
        )
        for number in range(1, draw(st.integers(min_size, max_size)) + 1)
    )


def _maybe_placed(draw: st.DrawFn, session: Session, known: Sequence[Agent], ledger: Ledger) -> Session | None:
    """Return the session placed anywhere that has room for it, which need not be the scheduler's choice."""
    kernels = []
    trial = Ledger(dict(ledger.cpu), dict(ledger.mem), {agent: dict(gpus) for agent, gpus in ledger.gpus.items()})
    group = [agent for agent in known if agent.resource_group == session.spec.resource_group]
    if not group:
        return None
    here = draw(st.sampled_from(group))
    for kernel in session.kernels:
        agent = draw(st.sampled_from(group)) if session.spec.cluster_mode == "multi-node" else here
        choices = share_choices(agent, kernel.slots, trial.gpus[agent.id])
        if not choices:
            return None
        placed = replace(kernel, allocation=Allocation(agent.id, draw(st.sampled_from(choices))))
        trial.charge(placed)
        if trial.overdrawn:
            return None
        kernels.append(placed)
    ledger.cpu, ledger.mem, ledger.gpus = trial.cpu, trial.mem, trial.gpus
    launched = replace(session, kernels=tuple(kernels), generation=7)
    mode = "single-node" if len(launched.agents) == 1 else "multi-node"
    state = draw(st.sampled_from(sorted(PLACED)))
    step = draw(st.sampled_from(LaunchStep)) if state is SessionState.PREPARING else None
    started_at = NOW - draw(st.integers(0, 500)) if state in {SessionState.RUNNING, SessionState.TERMINATING} else None
    return replace(launched, placed_mode=mode, state=state, step=step, started_at=started_at, reason="placed")


@st.composite
def group_policies(draw: st.DrawFn) -> GroupPolicy:
    return GroupPolicy(
        backfill=draw(st.booleans()),
        reserve_after_passes=draw(st.integers(1, 3)),
        preemption=draw(st.booleans()),
    )


@st.composite
def snapshots(draw: st.DrawFn, *, max_sessions: int = 6, never_spread: bool = False) -> Snapshot:
    """Draw agents, sessions that run on them, and sessions that wait. Allocations never exceed capacities."""
    known = draw(agents())
    ledger = Ledger.of(known)
    sessions = []
    for number in range(1, draw(st.integers(0, max_sessions)) + 1):
        spec = draw(gang_specs(never_spread=never_spread)).model_copy(update={"name": f"s{number}"})
        ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
        at = NOW - draw(st.integers(0, 3))
        session = Session(ids[0], spec.name, "ada", spec, kernels_of(spec, ids, spec.image), at)
        placed = _maybe_placed(draw, session, known, ledger) if draw(st.booleans()) else None
        retry_at = draw(st.sampled_from((None, None, None, None, NOW - 1, NOW + 5)))
        wait = draw(st.sampled_from((None, None, first_for(1), first_for(3))))
        sessions.append(placed or replace(session, retry_at=retry_at, wait=wait))
    slow = draw(st.sets(st.sampled_from([agent.id for agent in known]), max_size=1)) if known else ()
    policy = SchedulingPolicy(draw(group_policies()))
    return Snapshot(known, tuple(sessions), NOW, frozenset(slow) if draw(st.booleans()) else frozenset(), policy)


@st.composite
def sessions_in_any_state(draw: st.DrawFn, number: int = 1) -> Session:
    """Draw one session in any of its states, with the facts that such a state comes with."""
    spec = draw(specs())
    spec = spec.model_copy(update={"name": spec.name or f"s{number}", "image": "busybox"})
    ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
    session = Session(ids[0], spec.name, "ada", spec, kernels_of(spec, ids, spec.image), NOW)
    state = draw(st.sampled_from(STATES))
    if state in PLACED:
        session = placed_on(session, *draw(st.sampled_from((("a1",), ("a1", "a2")))), state=state)
    if state in {SessionState.TERMINATING, SessionState.TERMINATED, SessionState.ERROR}:
        session = replace(
            session, result=draw(st.sampled_from(tuple(Result))), exit_code=draw(st.none() | st.integers(0, 255))
        )
    if state in FINAL:
        session = replace(session, ended_at=NOW + 60)
    return replace(
        session,
        state=state,
        held_by=draw(st.sampled_from((None, "eve"))),
        array_id=draw(st.none() | st.just(new_id(number + 1))),
        array_index=draw(st.none() | st.integers(0, 9999)),
        stranded_on=draw(st.sampled_from(((), ("a1",), ("a1", "a2")))),
    )


@st.composite
def limited_queues(draw: st.DrawFn) -> Snapshot:
    """Draw sessions that run, and some that wait, all with time limits."""

    def shape() -> dict[str, Any]:
        return {"cpu": draw(st.integers(1, 4)), "time_limit": draw(st.sampled_from((600, 1200, 1800, 3600))), "shm": 0}

    runs = []
    for number, agent in enumerate(draw(st.lists(st.sampled_from(("a1", "a2")), max_size=4, unique=True))):
        runs.append(placed_on(make_session(number, **shape()), agent))
    waiting = [make_session(number, **shape()) for number in range(10, 10 + draw(st.integers(1, 7)))]
    policy = SchedulingPolicy(GroupPolicy(backfill=draw(st.booleans())))
    agents = (make_agent("a1", cpus=4), make_agent("a2", cpus=4))
    return Snapshot(agents, (*runs, *waiting), NOW, policy=policy)
