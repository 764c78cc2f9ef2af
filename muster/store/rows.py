"""Values of the core as rows, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from enum import StrEnum
from typing import Any

from muster.core.model.agent import Agent, AgentState, agent_from_report
from muster.core.model.folders import MountedFolder
from muster.core.model.session import Allocation, GpuShare, Kernel, LaunchStep, Result, Session, SessionState
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import Slots

_NOT_AS_THEY_ARE = {"kernels", "spec", "state", "step", "result", "stranded_on", "folders", "wait"}
_SESSION_FIELDS = tuple(f.name for f in fields(Session) if f.name not in _NOT_AS_THEY_ARE)
_KERNEL_FIELDS = tuple(f.name for f in fields(Kernel) if f.name not in {"slots", "allocation"})

Row = Mapping[Any, Any]


def session_row(session: Session) -> dict[str, Any]:
    """Why it waits is for a pass to say."""
    return {
        **{name: getattr(session, name) for name in _SESSION_FIELDS},
        "resource_group": session.spec.resource_group,
        "project": session.spec.project,
        "array_name": session.array_name,
        "stranded_on": _plain(session.stranded_on),
        "folders": [asdict(folder) for folder in session.folders],
        "spec": session.spec.model_dump(mode="json"),
        "state": session.state.value,
        "step": _plain(session.step),
        "result": _plain(session.result),
    }


def kernel_rows(session: Session) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(kernel, name) for name in _KERNEL_FIELDS},
            "session_id": session.id,
            "slots": asdict(kernel.slots),
            "allocation": _plain(kernel.allocation),
        }
        for kernel in session.kernels
    ]


def columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """An event's changes of a session or a kernel, as column values. A wait can only be taken away by one."""
    return {
        "wait_id" if name == "wait" else name: None if name == "wait" else _plain(value)
        for name, value in changes.items()
    }


def session_from(row: Row, kernel_rows: Iterable[Row], spec: SessionSpec, wait: dict[str, object]) -> Session:
    return Session(
        **{name: row[name] for name in _SESSION_FIELDS},
        spec=spec,
        wait=wait,
        stranded_on=tuple(row["stranded_on"]),
        folders=tuple(MountedFolder(**folder) for folder in row["folders"]),
        state=SessionState(row["state"]),
        step=LaunchStep(row["step"]) if row["step"] else None,
        result=Result(row["result"]) if row["result"] else None,
        kernels=tuple(_kernel_from(kernel) for kernel in kernel_rows),
    )


def agent_from(row: Row) -> Agent:
    return replace(
        agent_from_report(row["id"], row["report"], row["observed_at"]),
        state=AgentState(row["state"]),
        problem=row["problem"],
        unreachable_since=row["unreachable_since"],
        drain_reason=row["drain_reason"],
    )


def agent_row(agent: Agent) -> dict[str, Any]:
    """What observing an agent tells; its drain is a user's word."""
    return {
        "id": agent.id,
        "report": dict(agent.report),
        "state": agent.state.value,
        "problem": agent.problem,
        "observed_at": agent.observed_at,
        "unreachable_since": agent.unreachable_since,
    }


def _kernel_from(row: Row) -> Kernel:
    return Kernel(
        **{name: row[name] for name in _KERNEL_FIELDS},
        slots=Slots(**row["slots"]),
        allocation=_allocation_from(row["allocation"]),
    )


def _plain(value: object) -> object:
    if isinstance(value, Allocation):
        return asdict(value)
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, StrEnum) else value


def _allocation_from(value: Row | None) -> Allocation | None:
    if value is None:
        return None
    shares = tuple(GpuShare(**share) for share in value["gpus"])
    return Allocation(value["agent_id"], shares, tuple(value.get("numa_nodes", ())))
