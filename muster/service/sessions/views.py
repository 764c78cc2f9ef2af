"""Views of sessions: what `--json` prints, the API answers and the Ansible module returns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Protocol, Self

from pydantic import Field

from muster.core.model.apps import apps_of
from muster.core.model.folders import MountedFolder
from muster.core.model.session import (
    EXITED,
    GpuShare,
    Kernel,
    LaunchStep,
    PullProgress,
    Result,
    Session,
    SessionState,
    StoryLine,
    size_text,
)
from muster.core.model.wait import LimitHit, NearestMiss, Wait, WaitCode
from muster.core.values.slots import Slots
from muster.service.view import Moment, View


class SlotsView(View):
    cpu: int = Field(description="in thousandths of a core")
    mem: int = Field(description="in bytes")
    fgpu: int = Field(description="in thousandths of a unit")
    gpu: int = Field(description="whole devices")

    @classmethod
    def of(cls, slots: Slots) -> Self:
        return cls(cpu=slots.cpu, mem=slots.mem, fgpu=slots.fgpu, gpu=slots.gpu)


class LimitView(View):
    scope: str = Field(description="such as `user ada`")
    counts: str = Field(description="such as `running gpu`")
    counted: str = Field(description="the unit of the amounts: sessions, kernels or a slot's name")
    value: int
    used: int
    requested: int = Field(alias="asked", description="what the session adds")

    @classmethod
    def of(cls, hit: LimitHit) -> Self:
        return cls(
            scope=hit.scope,
            counts=hit.counts,
            counted=hit.counted,
            value=hit.value,
            used=hit.used,
            requested=hit.requested,
        )


class WaitView(View):
    """The reason why a session is PENDING."""

    code: WaitCode
    message: str
    position: int | None = Field(default=None, description="in the queue; left out where the queue was not read")
    agents_considered: int
    filtered: dict[str, int] = Field(description="by cause, agents that were left out")
    exhausted: dict[str, int] = Field(description="by slot, agents that have too little of it free")
    nearest: NearestMiss | None
    limit: LimitView | None
    waits_for: tuple[str, ...] = Field(description="ids of sessions")
    until: float | None = Field(description="in seconds since the epoch")
    estimated_start: float | None = Field(description="in seconds since the epoch")
    passes: int
    endless: int = Field(description="running sessions without a time limit because of which the start is unknown")

    @classmethod
    def of(cls, wait: Wait, position: int | None = None) -> Self:
        """Return the view, with the session's position in the queue where that is known."""
        return cls(
            code=wait.code,
            message=wait.message,
            **({} if position is None else {"position": position}),
            agents_considered=wait.agents_considered,
            filtered=dict(wait.filtered),
            exhausted=dict(wait.exhausted),
            nearest=wait.nearest,
            limit=LimitView.of(wait.limit) if wait.limit else None,
            waits_for=wait.waits_for,
            until=wait.until,
            estimated_start=wait.estimated_start,
            passes=wait.passes,
            endless=wait.endless,
        )


class GpuShareView(View):
    """A kernel's share of a GPU. Fields with a default are left out where no report was read."""

    uuid: str
    amount: int = Field(description="in thousandths of a unit, as the GPU was cut when the share was given")
    whole: bool
    capacity: int | None = Field(description="of the GPU as it was cut then; null if an earlier version gave the share")
    mem_bytes: int | None = Field(default=None, description="null for a whole GPU")
    compute: int | None = Field(default=None, description="in thousandths of the GPU; null for a whole one")
    used_bytes: int | None = Field(default=None, description="null if no agent reported it")
    enforced_bytes: int | None = Field(default=None, description="the driver's own limit; null if it has none")
    index: int | None = Field(default=None, description="of the GPU on its agent; null if the agent lost it")
    is_device: bool = Field(default=False, description="whether it is a whole GPU or a MIG instance")
    gpu_mem_bytes: int | None = Field(default=None, description="of the whole GPU; null if the agent lost it")

    @property
    def most_mem_bytes(self) -> int | None:
        """Return how much of the GPU's memory the kernel may use; None where that is not known."""
        return self.gpu_mem_bytes if self.is_device else self.mem_bytes

    @classmethod
    def of(cls, share: GpuShare) -> Self:
        return cls(**asdict(share))


class KernelView(View):
    id: str
    name: str
    role: str
    image: str
    slots: SlotsView
    agent: str | None
    gpus: list[GpuShareView]
    numa_nodes: list[int]
    container_id: str | None
    state: str | None
    address: str | None
    ssh_port: int | None
    exit_code: int | None
    oom_killed: bool
    started_at: str | None
    finished_at: str | None
    gpu_problem: str | None

    @property
    def exited(self) -> bool:
        return self.state in EXITED

    @classmethod
    def of(cls, kernel: Kernel, shares: Sequence[GpuShareView] | None = None) -> Self:
        """Return the view; `shares` say more of its GPUs than the kernel itself does."""
        allocation = kernel.allocation
        own = [GpuShareView.of(share) for share in allocation.gpus] if allocation else []
        return cls(
            id=kernel.id,
            name=kernel.name,
            role=kernel.role,
            image=kernel.image,
            slots=SlotsView.of(kernel.slots),
            agent=allocation.agent_id if allocation else None,
            gpus=own if shares is None else list(shares),
            numa_nodes=list(allocation.numa_nodes) if allocation else [],
            container_id=kernel.container_id,
            state=kernel.container_state,
            address=kernel.address,
            ssh_port=kernel.ssh_port,
            exit_code=kernel.exit_code,
            oom_killed=kernel.oom_killed,
            started_at=kernel.started_at,
            finished_at=kernel.finished_at,
            gpu_problem=kernel.gpu_problem,
        )


class PullView(View):
    """The progress of an agent's pull of an image for a launch."""

    agent: str
    image: str
    done_bytes: int
    total_bytes: int

    @classmethod
    def of(cls, pull: PullProgress) -> Self:
        return cls(agent=pull.agent_id, image=pull.image, done_bytes=pull.done, total_bytes=pull.total)


class ProgressView(View):
    pulls: list[PullView]

    @classmethod
    def of(cls, pulls: Sequence[PullProgress]) -> Self | None:
        """Return the view; None while nothing is pulled."""
        return cls(pulls=[PullView.of(pull) for pull in pulls]) if pulls else None


SIZE_HELP = "its containers; of an elastic session that waits, how many it needs at least"
SIZE_TEXT_HELP = "such as 4; of an elastic session 4-8, and 6 of 4-8 once it was given so many"


class SessionView(View):
    """A session, as `muster ls --json` prints it."""

    id: str
    name: str
    owner: str
    type: str = Field(description="batch or interactive")
    state: SessionState
    step: LaunchStep | None
    progress: ProgressView | None
    reason: str
    result: Result | None
    exit_code: int | None
    resource_group: str
    project: str
    priority: int
    cluster_mode: str
    cluster_size: int = Field(description=SIZE_HELP)
    size: str = Field(description=SIZE_TEXT_HELP)
    slots: SlotsView
    agents: list[str]
    submitted_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    time_limit_s: int | None = Field(description="how long it may run, with what was added since it was submitted")
    requeues: int
    held_by: str | None
    notice: str | None
    signalled_at: Moment | None = Field(description="when its command was last sent the signal before its end")
    array_id: str | None
    array_index: int | None
    array_name: str | None = Field(description="what the sessions of its array are called without their indexes")
    generation: int = Field(description="the number of its launches")
    ends_for_good: bool = Field(description="whether it is TERMINATING, and neither queued nor launched again")
    wait: WaitView | None
    folders: list[MountedFolder]
    kernels: list[KernelView]
    spec: dict[str, Any]

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(**session_fields(session))


def session_fields(session: Session, shares: Mapping[str, Sequence[GpuShareView]] | None = None) -> dict[str, Any]:
    """Return the fields of a `SessionView`; `shares` by kernel id as `KernelView.of` takes them."""
    return {
        "id": session.id,
        "name": session.name,
        "owner": session.owner,
        "type": "batch" if session.spec.is_batch else "interactive",
        "state": session.state,
        "step": session.step,
        "progress": ProgressView.of(session.progress),
        "reason": session.reason,
        "result": session.result,
        "exit_code": session.exit_code,
        "resource_group": session.spec.resource_group,
        "project": session.spec.project,
        "priority": session.spec.priority,
        "cluster_mode": session.placed_mode or session.spec.cluster_mode,
        "cluster_size": len(session.kernels),
        "size": size_text(session.spec, session.given),
        "slots": SlotsView.of(session.slots),
        "agents": list(session.agents),
        "submitted_at": session.submitted_at,
        "started_at": session.started_at,
        "ended_at": session.ended_at,
        "time_limit_s": session.time_limit,
        "requeues": session.requeues,
        "held_by": session.held_by,
        "notice": session.notice,
        "signalled_at": session.signalled_at,
        "array_id": session.array_id,
        "array_index": session.array_index,
        "array_name": session.array_name,
        "generation": session.generation,
        "ends_for_good": session.ends_for_good,
        "wait": WaitView.of(session.wait) if session.wait else None,
        "folders": list(session.folders),
        "kernels": [KernelView.of(kernel, (shares or {}).get(kernel.id)) for kernel in session.kernels],
        "spec": session.spec.model_dump(mode="json"),
    }


class SessionKernelView(View):
    """A kernel of a session, as the pages show it that are about one kernel."""

    session: SessionView
    kernel: KernelView
    logged_apps: tuple[str, ...] = Field(description="names of the session's apps that write a log")

    @classmethod
    def of(cls, session: Session, kernel: Kernel) -> Self:
        apps = tuple(app.name for app in apps_of(session.spec) if app.command is not None)
        return cls(session=SessionView.of(session), kernel=KernelView.of(kernel), logged_apps=apps)


def session_views(sessions: Iterable[Session]) -> list[SessionView]:
    return [SessionView.of(session) for session in sessions]


class SessionsView(View):
    items: list[SessionView]


class SubmittedView(View):
    items: list[SessionView]
    impossible: dict[str, WaitView] = Field(description="by session id, why it can never start unchanged")
    again: bool = Field(description="whether this is the result of an earlier submit with the same Idempotency-Key")
    warnings: list[str] = Field(description="what may go wrong, such as an image that nobody knows; a line each")

    @classmethod
    def of(
        cls,
        sessions: Iterable[Session],
        impossible: Mapping[str, Wait],
        *,
        again: bool = False,
        warnings: Iterable[str] = (),
    ) -> Self:
        return cls(
            items=session_views(sessions),
            impossible={key: WaitView.of(wait, wait.position) for key, wait in impossible.items()},
            again=again,
            warnings=list(warnings),
        )


class UpdatedView(View):
    """Sessions after an update of what they ask for, with what it changed, a phrase for each field."""

    items: list[SessionView]
    changes: list[str] = Field(description="such as `cpu 1 → 2`; none where they asked for that already")
    impossible: dict[str, WaitView] = Field(description="by session id, why it can never start unchanged")
    warnings: list[str] = Field(description="what may go wrong, such as an image that nobody knows; a line each")

    @classmethod
    def of(
        cls,
        sessions: Iterable[Session],
        changes: Iterable[str],
        impossible: Mapping[str, Wait] = MappingProxyType({}),
        warnings: Iterable[str] = (),
    ) -> Self:
        return cls(
            items=session_views(sessions),
            changes=list(changes),
            impossible={key: WaitView.of(wait, wait.position) for key, wait in impossible.items()},
            warnings=list(warnings),
        )


class StoryLineView(View):
    at: Moment
    from_: SessionState | None = Field(alias="from")
    to: SessionState
    reason: str

    @classmethod
    def of(cls, line: StoryLine) -> Self:
        return cls(at=line.at, from_=line.from_state, to=line.to_state, reason=line.reason)


class StoryView(View):
    items: list[StoryLineView]


class Explained(Protocol):
    """The reason for a session's state in a view."""

    @property
    def wait(self) -> WaitView | None: ...

    @property
    def progress(self) -> ProgressView | None: ...

    @property
    def reason(self) -> str: ...


def why_text(session: Explained) -> str:
    """Return one line: why the session waits, or why it is as it is."""
    waiting = (session.wait and session.wait.message) or _pulling(session.progress)
    return waiting or session.reason or "it was just submitted; the scheduler looks at it next"


def _pulling(progress: ProgressView | None) -> str:
    pulls = progress.pulls if progress else ()
    parts = [f"{pull.image} on {pull.agent}: {100 * pull.done_bytes // max(1, pull.total_bytes)} %" for pull in pulls]
    return f"pulling {'; '.join(parts)}" if parts else ""
