"""Views of agents, their GPUs and reservations."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from pydantic import Field

from muster.core.agents.agent import AgentState, Gpu
from muster.core.agents.numa import NumaNode
from muster.core.model.reservation import Reservation
from muster.core.model.session import Kernel, Result, Session, SessionState
from muster.service.agents.agents import AgentOccupancy
from muster.service.agents.gpu_map import GpuOccupancy, KernelShare
from muster.service.sessions.views import GpuShareView, SlotsView
from muster.service.sessions.visibility import Sees
from muster.service.view import Moment, View


class AgentSessionView(View):
    id: str
    name: str
    state: SessionState

    @classmethod
    def of(cls, session: Session) -> Self:
        return cls(id=session.id, name=session.name, state=session.state)


class AgentView(View):
    """An agent, as `muster agents --json` prints it."""

    id: str
    resource_group: str
    state: AgentState
    problem: str | None
    capacity: SlotsView
    free: SlotsView
    kernels: int
    gpus: list[Gpu]
    fgpu_problem: str | None
    observed_at: Moment
    docker: dict[str, Any] | None
    labels: dict[str, str]
    rack: str | None
    zone: str | None
    numa: list[NumaNode]
    drain: str | None = Field(description="DRAINING or DRAINED; null in service")
    drain_reason: str | None
    unreachable_since: Moment | None
    suspect: str | None = Field(description="why it gets no new sessions for a while; null where launches go well")
    suspect_until: Moment | None
    leftovers: int = Field(description="of ended sessions: the number of things that it could not remove yet")
    sessions: list[AgentSessionView]

    @classmethod
    def of(cls, use: AgentOccupancy, sees: Sees = lambda _session: True) -> Self:
        return cls(**agent_fields(use, sees))


def agent_fields(use: AgentOccupancy, sees: Sees) -> dict[str, Any]:
    """Return the fields of an `AgentView`; of the sessions only those that its reader sees."""
    agent = use.agent
    return {
        "id": agent.id,
        "resource_group": agent.resource_group,
        "state": agent.state,
        "problem": "; ".join(filter(None, (agent.problem, use.kept))) or None,
        "capacity": SlotsView.of(agent.capacity),
        "free": SlotsView.of(use.free),
        "kernels": len(use.kernels),
        "gpus": list(agent.gpus),
        "fgpu_problem": agent.fgpu_obstacle or None,
        "observed_at": agent.observed_at,
        "docker": agent.report.docker.model_dump() if agent.report.docker.version else None,
        "labels": dict(agent.labels),
        "rack": agent.rack or None,
        "zone": agent.zone or None,
        "numa": list(agent.numa),
        "drain": use.drain or None,
        "drain_reason": agent.drain_reason,
        "unreachable_since": agent.unreachable_since,
        "suspect": agent.launch_record.reason or None,
        "suspect_until": agent.launch_record.suspect_until,
        "leftovers": len(agent.report.leftovers or ()),
        "sessions": [AgentSessionView.of(session) for session in use.sessions if sees(session)],
    }


class AgentsView(View):
    items: list[AgentView]


class AgentKernelView(View):
    """A kernel on an agent, with its session."""

    id: str
    name: str
    slots: SlotsView
    session_id: str
    session: str
    owner: str
    state: SessionState = Field(description="of the session")
    result: Result | None = Field(description="of the session")

    @classmethod
    def of(cls, session: Session, kernel: Kernel) -> Self:
        return cls(
            id=kernel.id,
            name=kernel.name,
            slots=SlotsView.of(kernel.slots),
            session_id=session.id,
            session=session.name,
            owner=session.owner,
            state=session.state,
            result=session.result,
        )


def share_views(shares: Mapping[str, Sequence[KernelShare]]) -> dict[str, list[GpuShareView]]:
    """Return by kernel id the shares, with what they are in bytes and in thousandths of the GPU."""
    return {kernel_id: [_share_view(held) for held in of_kernel] for kernel_id, of_kernel in shares.items()}


def _share_view(held: KernelShare) -> GpuShareView:
    gpu = held.gpu
    return GpuShareView(
        **_share_fields(held),
        amount=held.share.amount,
        capacity=held.share.capacity,
        index=gpu.index if gpu else None,
        gpu_mem_bytes=gpu.mem if gpu else None,
    )


def _share_fields(held: KernelShare) -> dict[str, Any]:
    return {
        "uuid": held.share.uuid,
        "whole": held.share.whole,
        "mem_bytes": held.mem_bytes,
        "compute": held.compute,
        "used_bytes": held.used_bytes,
        "enforced_bytes": held.enforced_bytes,
        "is_device": held.is_device,
    }


class GpuHolderView(View):
    """A kernel's share of a GPU, with the kernel that has it."""

    session_id: str
    session: str
    kernel_id: str
    kernel: str
    problem: str | None
    uuid: str
    amount: int = Field(description="in thousandths of a unit, as the GPU is cut now")
    whole: bool
    mem_bytes: int | None
    compute: int | None
    used_bytes: int | None
    enforced_bytes: int | None = Field(description="the driver's own limit; null if it has none")
    is_device: bool = Field(description="whether it is a whole GPU or a MIG instance")

    @classmethod
    def of(cls, held: KernelShare) -> Self:
        return cls(
            session_id=held.session.id,
            session=held.session.name,
            kernel_id=held.kernel.id,
            kernel=held.kernel.name,
            problem=held.kernel.gpu_problem,
            **_share_fields(held),
            amount=held.amount,
        )


class GpuView(View):
    """A GPU of an agent, or a MIG instance of one, with the kernels that share it."""

    agent: str
    uuid: str
    index: int
    model: str
    mem: int
    units: int
    numa_node: int | None
    exclusive: bool
    parent_uuid: str | None
    mig_profile: str | None
    fraction: int
    quarantine: str | None = Field(description="why it gets no new kernels; null for one that gets some")
    quarantined_by: list[str] = Field(description="the symptoms behind that, such as xid-79")
    warning: str | None = Field(description="what else is wrong with it; null if nothing is")
    capacity: int = Field(description="in thousandths of a unit")
    free: int = Field(description="in thousandths of a unit")
    mem_used: int | None
    shares: list[GpuHolderView]

    @classmethod
    def of(cls, use: GpuOccupancy) -> Self:
        return cls(
            agent=use.agent_id,
            **{
                **asdict(use.gpu),
                "quarantine": use.gpu.quarantine or None,
                "quarantined_by": list(use.gpu.quarantined_by),
                "warning": use.gpu.warning or None,
            },
            capacity=use.gpu.capacity,
            free=use.free,
            mem_used=use.mem_used_bytes,
            shares=[GpuHolderView.of(held) for held in use.held],
        )


class GpusView(View):
    items: list[GpuView]


class AgentResourcesView(AgentView):
    """An agent with the kernels and GPU shares on it, as its page shows it."""

    used: SlotsView
    choosable_labels: dict[str, str] = Field(description="the labels, and that of the architecture")
    os: str
    linux: str = Field(description="the version of the Linux kernel")
    architecture: str
    disk_bytes: int = Field(description="of the disk for images; 0 if it is not known")
    disk_free_bytes: int
    visible_kernels: list[AgentKernelView]
    other_kernels: int = Field(description="the number of other users' kernels")
    devices: list[GpuView]

    @classmethod
    def with_gpus(cls, use: AgentOccupancy, sees: Sees, devices: Sequence[GpuOccupancy]) -> Self:
        """Return the view; of the kernels only those that its reader sees."""
        report = use.agent.report
        visible = [AgentKernelView.of(session, kernel) for session, kernel in use.kernels if sees(session)]
        return cls(
            **agent_fields(use, sees),
            used=SlotsView.of(use.agent.capacity - use.free),
            choosable_labels=dict(use.agent.choosable_labels),
            os=report.os,
            linux=report.kernel,
            architecture=report.architecture,
            disk_bytes=report.disk.total_bytes,
            disk_free_bytes=report.disk.free_bytes,
            visible_kernels=visible,
            other_kernels=len(use.kernels) - len(visible),
            devices=[GpuView.of(device) for device in devices],
        )


class GroupResourcesView(View):
    """A resource group with some of its agents; the other fields are about all of them."""

    name: str
    agent_count: int
    states: dict[AgentState, int] = Field(description="agents by state")
    drained: int
    suspect: int
    capacity: SlotsView
    used: SlotsView
    agents: list[AgentResourcesView]


class ReservationView(View):
    name: str
    begins_at: Moment
    ends_at: Moment
    maintenance: bool
    resource_group: str | None
    agents: list[str]
    users: list[str]
    projects: list[str]
    reason: str | None

    @classmethod
    def of(cls, reservation: Reservation) -> Self:
        return cls(
            name=reservation.name,
            begins_at=reservation.begins_at,
            ends_at=reservation.ends_at,
            maintenance=reservation.is_maintenance,
            resource_group=reservation.resource_group,
            agents=sorted(reservation.agents),
            users=sorted(reservation.users),
            projects=sorted(reservation.projects),
            reason=reservation.reason or None,
        )


class MadeReservationView(ReservationView):
    """A reservation that was just made."""

    running_into: list[str] = Field(description="sessions that run now, and may still run when it begins")


class ReservationsView(View):
    items: list[ReservationView]
