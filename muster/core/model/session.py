"""Sessions and kernels: frozen values, changed by `dataclasses.replace` only."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Self

from muster.core.model.folders import MountedFolder
from muster.core.model.wait import Wait
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import NotFoundError
from muster.core.values.slots import Slots, total


class SessionState(StrEnum):
    PENDING = "PENDING"
    SCHEDULED = "SCHEDULED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    CANCELLED = "CANCELLED"
    ERROR = "ERROR"


FINAL = frozenset({SessionState.TERMINATED, SessionState.CANCELLED, SessionState.ERROR})
PLACED = frozenset({SessionState.SCHEDULED, SessionState.PREPARING, SessionState.RUNNING, SessionState.TERMINATING})
EXITED = frozenset({"exited", "dead"})
"""States of a container whose first program has ended."""


class LaunchStep(StrEnum):
    """The step of a session that is PREPARING; or RESTARTING, of one that is TERMINATING and will be launched again."""

    PULLING = "PULLING"
    STARTING = "STARTING"
    RELEASING = "RELEASING"
    RESTARTING = "RESTARTING"


class Result(StrEnum):
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A kernel's part of one physical GPU. `amount` is in thousandths of a unit; `whole`: the whole GPU.

    `capacity` is how much the GPU was in all, as it was cut when the share was given; None: an earlier version did not
    note it.
    """

    uuid: str
    amount: int
    whole: bool
    capacity: int | None = None

    def amount_of(self, capacity: int) -> int:
        """Return the amount in thousandths of a unit of a GPU that is cut into `capacity` of them now.

        It is the same part of the GPU, rounded up. A share of which no one knows how its GPU was cut counts as it is.
        """
        if self.whole:
            return capacity
        return -(-self.amount * capacity // self.capacity) if self.capacity else self.amount


@dataclass(frozen=True, slots=True)
class Allocation:
    """A committed kernel → agent, with the kernel's share of each GPU that it uses.

    It runs on the cores of `numa_nodes`, those of its GPUs; on any where none is named.
    """

    agent_id: str
    gpus: tuple[GpuShare, ...] = ()
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A container of a session. `rank` is 0-based over the session, `index` 1-based within the role.

    `gpu_problem` says how it does not keep to its share of GPUs, as it was when that began. `boot_id` names the boot of
    its host in which its container was last known to live, `agent_generation` the newest manifest that its agent had
    accepted when it was last seen before the launch (None: none). `signals` is the number of the last signal before the
    session's end that was sent to its command, `signal_receivers` how many of its programs got it.
    """

    id: str
    role: str
    index: int
    rank: int
    slots: Slots
    shm: int
    image: str
    command: str | None = None
    allocation: Allocation | None = None
    container_id: str | None = None
    container_state: str | None = None
    address: str | None = None
    ssh_port: int | None = None
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: str | None = None
    finished_at: str | None = None
    gpu_problem: str | None = None
    boot_id: str | None = None
    agent_generation: int | None = None
    signals: int = 0
    signal_receivers: int = 0

    @property
    def name(self) -> str:
        return f"{self.role}{self.index}"

    @property
    def exited(self) -> bool:
        return self.container_state in EXITED


@dataclass(frozen=True, slots=True)
class PullProgress:
    """The bytes of an image's layers that are on the agent, and of all its layers."""

    agent_id: str
    image: str
    done: int
    total: int


class AllocatedSlots(NamedTuple):
    """The slots of a kernel with their allocation, without the kernel."""

    slots: Slots
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Session:
    """A session as the store holds it. Times are seconds since the epoch.

    `wait` is None until a pass has looked at the session, and once it no longer waits. `progress` holds the image pulls
    of its launch that are under way.

    The sessions of one array share an `array_id`. `stranded_on` names the agents that it ran on when it lost one,
    `failed_on` those on which its launches have failed since it last ran.
    An elastic session (`--cluster-size 4-8`) has as many `kernels` as it was `given`; where that is None, as it needs
    at least. Those that it might have beyond them are `spare`: they hold nothing.
    `moved_for` is the id of the session for which it was queued again, until it is placed.
    `notice` is the text that its users are shown before its end, `warned_at` when one said that it is idle.
    `extended_s` is what users have added to its time limit.
    `signals` counts the signals before its end (`--signal`) in this launch, `signalled_at` is when the last one was
    decided on. At `leaves_at` it gives up its place, to a session that still asks for it then; where `ends_for` says
    why, in any case. `updates` counts the changes of its spec while it waited.
    """

    id: str
    name: str
    owner: str
    spec: SessionSpec
    kernels: tuple[Kernel, ...]
    submitted_at: float
    state: SessionState = SessionState.PENDING
    reason: str = ""
    result: Result | None = None
    exit_code: int | None = None
    placed_mode: str | None = None
    generation: int = 0
    attempts: int = 0
    retry_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    public_key: str | None = None
    wait: Wait | None = None
    step: LaunchStep | None = None
    progress: tuple[PullProgress, ...] = ()
    requeue_after_end: bool = False
    requeues: int = 0
    held_by: str | None = None
    array_id: str | None = None
    array_index: int | None = None
    stranded_on: tuple[str, ...] = ()
    failed_on: tuple[str, ...] = ()
    notice: str | None = None
    warned_at: float | None = None
    extended_s: int = 0
    given: int | None = None
    spare: tuple[Kernel, ...] = ()
    moved_for: str | None = None
    signals: int = 0
    signalled_at: float | None = None
    leaves_at: float | None = None
    ends_for: str | None = None
    folders: tuple[MountedFolder, ...] = ()
    updates: int = 0

    @property
    def main(self) -> Kernel:
        return self.kernels[0]

    @property
    def array_name(self) -> str | None:
        """Return what the sessions of its array are called without their indexes."""
        return None if self.array_index is None else self.name.removesuffix(f"-{self.array_index}")

    @property
    def time_limit(self) -> int | None:
        """Return the seconds that it may run, with what was added since it was submitted."""
        return None if self.spec.time_limit is None else self.spec.time_limit + self.extended_s

    @property
    def succeeded(self) -> bool:
        return self.state is SessionState.TERMINATED and self.result is Result.SUCCESS

    @property
    def ends_for_good(self) -> bool:
        """Return whether it is TERMINATING, and will neither be queued nor launched again."""
        restarting = self.step is LaunchStep.RESTARTING
        return self.state is SessionState.TERMINATING and not self.requeue_after_end and not restarting

    @property
    def holds_nothing(self) -> bool:
        """Return whether it has run, ends, and all its processes have ended: its place on its agents is free."""
        ends = self.state is SessionState.TERMINATING and self.step is not LaunchStep.RESTARTING
        return ends and self.started_at is not None and all(kernel.exited for kernel in self.kernels)

    @property
    def may_have_begun(self) -> bool:
        """Return whether some of its commands may have begun in the present launch, which is not known to run yet.

        Over several agents they begin by a second visit; on one agent, by the visit that makes the containers.
        """
        if self.state is not SessionState.PREPARING:
            return False
        return self.step is LaunchStep.RELEASING or (self.step is LaunchStep.STARTING and not self.spans_agents)

    @property
    def slots(self) -> Slots:
        return total(kernel.slots for kernel in self.kernels)

    def runs_command(self, kernel: Kernel) -> bool:
        """Return whether a kernel runs the session's command. A role with a command of its own serves the others."""
        return kernel.rank == 0 or (self.spec.run_on == "all" and kernel.command == self.main.command)

    def gets_signal(self, kernel: Kernel) -> bool:
        """Return whether a kernel's command is to have got `signals` signals by now."""
        return self.state is SessionState.RUNNING and self.signals > 0 and self.runs_command(kernel)

    @property
    def possible_kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels that it has and those that it might have, in rank order."""
        return (*self.kernels, *self.spare) if self.spare else self.kernels

    def of_size(self, given: int | None) -> Self:
        """Return it with so many of its kernels, None: with as many as it needs at least; the others are spare."""
        every = self.possible_kernels
        size = self.spec.sizes[0] if given is None else given
        return replace(self, given=given, kernels=every[:size], spare=every[size:])

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the ids of the agents that hold its kernels, main1's first."""
        return tuple(dict.fromkeys(k.allocation.agent_id for k in self.kernels if k.allocation))

    @property
    def spans_agents(self) -> bool:
        return self.placed_mode == "multi-node"

    @property
    def network(self) -> str:
        """Return the network's name. Each launch has its own overlay: on a lost host, an earlier one may be in use."""
        name = f"muster-{self.id.replace('-', '')[:12]}"
        return f"{name}-{self.generation}" if self.spans_agents else name


@dataclass(frozen=True, slots=True)
class StoryLine:
    """A change in a session's life. `at` is in seconds since the epoch."""

    at: float
    from_state: str | None
    to_state: str
    reason: str


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The output of an ended kernel, gzipped."""

    session_id: str
    kernel_name: str
    gz: bytes


def kernels_of(spec: SessionSpec, kernel_ids: tuple[str, ...], default_image: str) -> tuple[Kernel, ...]:
    """Return the kernels that the session has at least, in rank order: main1 first, then each role's by index.

    `kernel_ids` holds one id for each kernel; the first is the session's own.
    """
    return _kernels(spec, kernel_ids, default_image)[: spec.sizes[0]]


def spare_kernels_of(spec: SessionSpec, kernel_ids: tuple[str, ...], default_image: str) -> tuple[Kernel, ...]:
    """Return those that an elastic session might have beyond `kernels_of`, by rank."""
    return _kernels(spec, kernel_ids, default_image)[spec.sizes[0] :] if spec.is_elastic else ()


def _kernels(spec: SessionSpec, kernel_ids: tuple[str, ...], default_image: str) -> tuple[Kernel, ...]:
    kernels: list[Kernel] = []
    for role in spec.kernel_roles(spec.sizes[1]):
        for index in range(1, role.replicas + 1):
            rank = len(kernels)
            runs_command = rank == 0 or (spec.run_on == "all" and role.command is None)
            kernels.append(
                Kernel(
                    id=kernel_ids[rank],
                    role=role.name,
                    index=index,
                    rank=rank,
                    slots=role.slots,
                    shm=role.shm,
                    image=role.image or default_image,
                    command=(spec.command or ("/run/muster/job" if spec.script else None))
                    if runs_command
                    else role.command,
                )
            )
    return tuple(kernels)


def size_text(spec: SessionSpec, given: int | None) -> str:
    """Return a session's size for people: `4`; of an elastic one `4-8`, and `6 of 4-8` once it was given so many."""
    least, most = spec.sizes
    if least == most:
        return str(least)
    return f"{least}-{most}" if given is None else f"{given} of {least}-{most}"


def kernel_count(spec: SessionSpec) -> int:
    """Return how many kernels it may have at most: so many ids it needs."""
    return spec.sizes[1]


def kernel_named(session: Session, name: str | None) -> Kernel:
    """Return the kernel of that name, main1 where none is given. Raises NotFoundError."""
    if name is None:
        return session.main
    for kernel in session.kernels:
        if kernel.name == name:
            return kernel
    names = ", ".join(kernel.name for kernel in session.kernels[:10])
    raise NotFoundError(f"session {session.name} has no container {name!r}; it has {names}")
