"""Values of the core as rows, and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from muster.contract.report import GpuReport, Report
from muster.core.agents.agent import Agent, AgentState, agent_from_report
from muster.core.agents.gpu_health import AcceptedSymptoms, GpuRecord, Symptom, SymptomMark
from muster.core.agents.launch_record import FailedLaunch, LaunchRecord
from muster.core.model.folders import MountedFolder
from muster.core.model.session import (
    Allocation,
    GpuShare,
    Kernel,
    LaunchStep,
    PullProgress,
    Result,
    Session,
    SessionState,
)
from muster.core.model.wait import Wait
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import Slots
from muster.store.database.connection import JsonText

_NOT_AS_THEY_ARE = {
    *("kernels", "spec", "state", "step", "result", "wait", "progress"),
    *("stranded_on", "failed_on", "folders", "spare"),
}
_SESSION_FIELDS = tuple(f.name for f in fields(Session) if f.name not in _NOT_AS_THEY_ARE)
_KERNEL_FIELDS = tuple(f.name for f in fields(Kernel) if f.name not in {"slots", "allocation"})
# In the order in which rows are read. What is JSON is read as text: most of it is empty, or was read before.
_SESSION_REST = (
    *("state", "step", "result", "progress", "stranded_on", "failed_on", "folders"),
    *("spec", "wait_id"),
)
SESSION_COLUMNS = (*_SESSION_FIELDS, *_SESSION_REST)
KERNEL_COLUMNS = (*_KERNEL_FIELDS, "slots", "allocation", "session_id")
_STATES = {state.value: state for state in SessionState}

Row = Mapping[Any, Any]
_UNREADABLE = "its stored report cannot be read; it is observed again"


def session_row(session: Session) -> dict[str, Any]:
    """Return a session's row, without its wait, which a pass writes."""
    return {
        **{name: getattr(session, name) for name in _SESSION_FIELDS},
        "resource_group": session.spec.resource_group,
        "project": session.spec.project,
        "array_name": session.array_name,
        "stranded_on": _plain(session.stranded_on),
        "failed_on": _plain(session.failed_on),
        "folders": [asdict(folder) for folder in session.folders],
        "spec": session.spec.model_dump(mode="json"),
        "state": session.state.value,
        "step": _plain(session.step),
        "progress": progress_row(session.progress),
        "result": _plain(session.result),
    }


def kernel_rows(session: Session) -> list[dict[str, Any]]:
    return [
        {
            **{name: getattr(kernel, name) for name in _KERNEL_FIELDS},
            "session_id": session.id,
            "slots": _slots_text(kernel.slots),
            "allocation": _plain(kernel.allocation),
        }
        for kernel in session.possible_kernels
    ]


@lru_cache(1024)
def _slots_text(slots: Slots) -> JsonText:
    # Kernels of a session request the same, or a few different ones do.
    return JsonText(json.dumps(asdict(slots)))


def columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event's changes of a session or a kernel as column values. An event can only take a wait away."""
    return dict(_column(name, value) for name, value in changes.items())


def progress_row(pulls: Iterable[PullProgress]) -> dict[str, Any]:
    """Return the pulls as the column `progress` holds them; an empty object where there are none."""
    rows = [
        {"agent": pull.agent_id, "image": pull.image, "done_bytes": pull.done, "total_bytes": pull.total}
        for pull in pulls
    ]
    return {"pulls": rows} if rows else {}


def session_from(
    row: Sequence[Any], kernel_rows: Iterable[Sequence[Any]], spec: SessionSpec, wait: Wait | None
) -> Session:
    """Return the session of a row of SESSION_COLUMNS and its kernels' rows of KERNEL_COLUMNS, in rank order."""
    kernels = tuple([_kernel_from(kernel) for kernel in kernel_rows])
    values: dict[str, Any] = dict(zip(_SESSION_FIELDS, row, strict=False))
    state, step, result, progress, stranded_on, failed_on, folders, *_ = row[len(_SESSION_FIELDS) :]
    size = len(kernels)
    if spec.is_elastic:
        size = spec.sizes[0] if values["given"] is None else values["given"]
    return Session(
        **values,
        spec=spec,
        wait=wait,
        progress=() if progress == "{}" else _progress_from(json.loads(progress)),
        stranded_on=() if stranded_on == "[]" else tuple(json.loads(stranded_on)),
        failed_on=() if failed_on == "[]" else tuple(json.loads(failed_on)),
        folders=() if folders == "[]" else tuple(MountedFolder(**folder) for folder in json.loads(folders)),
        state=_STATES[state],
        step=LaunchStep(step) if step else None,
        result=Result(result) if result else None,
        kernels=kernels[:size] if size < len(kernels) else kernels,
        spare=kernels[size:],
    )


def agent_from(row: Row, report: Report | None) -> Agent:
    """Return the agent of a row with its report, None if that cannot be read."""
    return replace(
        agent_from_report(
            row["id"],
            report or Report(),
            row["inventory"],
            row["observed_at"],
            _gpu_record_from(row["gpu_record"]),
            accepted_symptoms_from(row["gpu_accepted"]),
        ),
        state=AgentState(row["state"]),
        problem=row["problem"] if report else _UNREADABLE,
        unreachable_since=row["unreachable_since"],
        reached=row["reached"],
        silence_counts_from=row["silence_counts_from"],
        drain_reason=row["drain_reason"],
        launch_record=launch_record_from(row["launch_record"]),
    )


def agent_row(agent: Agent) -> dict[str, Any]:
    """Return an observed agent's row, without its drain and the symptoms that are accepted, which users set."""
    return {
        "id": agent.id,
        "report": JsonText(agent.report.model_dump_json()),
        "inventory": dict(agent.inventory),
        "state": agent.state.value,
        "problem": agent.problem,
        "observed_at": agent.observed_at,
        "unreachable_since": agent.unreachable_since,
        "reached": agent.reached,
        "silence_counts_from": agent.silence_counts_from,
        "gpu_record": _gpu_record_row(agent.gpu_record),
    }


def launch_record_row(record: LaunchRecord) -> dict[str, Any]:
    """Return a launch record as its column holds it."""
    return {
        "failures": [list(failure) for failure in record.failures],
        "suspect_until": record.suspect_until,
        "reason": record.reason,
    }


def launch_record_from(column: Row) -> LaunchRecord:
    failures = tuple(FailedLaunch(*failure) for failure in column.get("failures", ()))
    return LaunchRecord(failures, column.get("suspect_until"), column.get("reason", ""))


def accepted_symptoms_row(accepted: AcceptedSymptoms) -> dict[str, Any]:
    """Return accepted symptoms as their column holds them."""
    return {uuid: [list(mark) for mark in marks] for uuid, marks in accepted.items()}


def accepted_symptoms_from(column: Row) -> AcceptedSymptoms:
    return {uuid: tuple(SymptomMark(*mark) for mark in marks) for uuid, marks in column.items()}


def _gpu_record_row(record: GpuRecord) -> dict[str, Any]:
    return {
        "boot_id": record.boot_id,
        "symptoms": {uuid: [list(astuple(symptom)) for symptom in all_] for uuid, all_ in record.symptoms.items()},
        "missing": [gpu.model_dump(mode="json") for gpu in record.missing],
    }


def _gpu_record_from(column: Row) -> GpuRecord | None:
    """Return the record; None of a row that an older version wrote."""
    if not column:
        return None
    symptoms = {uuid: tuple(Symptom(*symptom) for symptom in all_) for uuid, all_ in column.get("symptoms", {}).items()}
    missing = tuple(GpuReport.model_validate(gpu) for gpu in column.get("missing", ()))
    return GpuRecord(column.get("boot_id"), symptoms, missing)


def _kernel_from(row: Sequence[Any]) -> Kernel:
    values: dict[str, Any] = dict(zip(_KERNEL_FIELDS, row, strict=False))
    slots, allocation, _ = row[len(_KERNEL_FIELDS) :]
    return Kernel(**values, slots=_slots_from(slots), allocation=_allocation_from(allocation))


@lru_cache(maxsize=4096)
def _slots_from(text: str) -> Slots:
    """Return the slots; kernels that ask for the same share one value."""
    return Slots(**json.loads(text))


def _column(name: str, value: Any) -> tuple[str, object]:  # noqa: ANN401 - of any field
    match name:
        case "wait":
            return "wait_id", None
        case "progress":
            return name, progress_row(value)
        case _:
            return name, _plain(value)


def _progress_from(column: Row) -> tuple[PullProgress, ...]:
    pulls = column.get("pulls", ())
    return tuple(PullProgress(pull["agent"], pull["image"], pull["done_bytes"], pull["total_bytes"]) for pull in pulls)


def _plain(value: object) -> object:
    if isinstance(value, Allocation):
        return asdict(value)
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, StrEnum) else value


def _allocation_from(text: str | None) -> Allocation | None:
    value = None if text is None else json.loads(text)
    if value is None:
        return None
    shares = tuple(GpuShare(**share) for share in value["gpus"])
    return Allocation(value["agent_id"], shares, tuple(value.get("numa_nodes", ())))
