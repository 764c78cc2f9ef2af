"""Values of the core as rows, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from muster.core.agent import Agent, AgentState, agent_from_report
from muster.core.session import Allocation, GpuShare, Kernel, Result, Session, SessionState
from muster.core.slots import Slots
from muster.core.spec import SessionSpec

_SESSION_FIELDS = tuple(f.name for f in fields(Session) if f.name not in {"kernels", "spec", "state", "result"})
_KERNEL_FIELDS = tuple(f.name for f in fields(Kernel) if f.name not in {"slots", "allocation"})

Row = Mapping[Any, Any]


def session_row(session: Session) -> dict[str, Any]:
    return {
        **{name: getattr(session, name) for name in _SESSION_FIELDS},
        "resource_group": session.spec.resource_group,
        "spec": session.spec.model_dump(mode="json"),
        "state": session.state,
        "result": session.result,
    }


def kernel_rows(session: Session) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(kernel, name) for name in _KERNEL_FIELDS},
            "session_id": session.id,
            "slots": asdict(kernel.slots),
            "allocation": _plain_allocation(kernel.allocation),
        }
        for kernel in session.kernels
    ]


def columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """An event's changes of a session or a kernel, as column values."""
    return {
        name: _plain_allocation(value) if isinstance(value, Allocation) else value for name, value in changes.items()
    }


def session_from(row: Row, kernel_rows: Iterable[Row]) -> Session:
    return Session(
        **{name: row[name] for name in _SESSION_FIELDS},
        spec=SessionSpec.model_validate(row["spec"]),
        state=SessionState(row["state"]),
        result=Result(row["result"]) if row["result"] else None,
        kernels=tuple(_kernel_from(kernel) for kernel in kernel_rows),
    )


def agent_from(row: Row) -> Agent:
    agent = agent_from_report(row["id"], row["report"], row["observed_at"])
    return Agent(
        id=agent.id,
        resource_group=agent.resource_group,
        capacity=agent.capacity,
        gpus=agent.gpus,
        state=AgentState(row["state"]),
        report=agent.report,
        observed_at=agent.observed_at,
        problem=row["problem"],
    )


def agent_row(agent: Agent) -> dict[str, Any]:
    return {
        "id": agent.id,
        "report": dict(agent.report),
        "state": agent.state,
        "problem": agent.problem,
        "observed_at": agent.observed_at,
    }


def _kernel_from(row: Row) -> Kernel:
    return Kernel(
        **{name: row[name] for name in _KERNEL_FIELDS},
        slots=Slots(**row["slots"]),
        allocation=_allocation_from(row["allocation"]),
    )


def _plain_allocation(allocation: Allocation | None) -> dict[str, Any] | None:
    return asdict(allocation) if allocation else None


def _allocation_from(value: Row | None) -> Allocation | None:
    return Allocation(value["agent_id"], tuple(GpuShare(**share) for share in value["gpus"])) if value else None
