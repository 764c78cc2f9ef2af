"""What agents report of sessions that are placed on them."""

from typing import Any

from muster.contract.report import Report, UseSample, report_from_agent
from muster.core.model.session import Session
from tests.simulated.hosts import report_of


def use_of(**counters: Any) -> dict[str, Any]:
    """Return a kernel's `use` with only these counters known."""
    return {**dict.fromkeys(UseSample.model_fields), "at": 0, **counters}


def kernel_entry(session: Session, name: str, **facts: Any) -> dict[str, Any]:
    kernel = next(kernel for kernel in session.kernels if kernel.name == name)
    return {
        "kernel_id": kernel.id,
        "session_id": session.id,
        "name": name,
        "generation": session.generation,
        "container_id": f"c-{name}",
        "state": "running",
        "released": True,
        "public_key": "ssh-ed25519 AAAA",
        "exit_code": None,
        "oom_killed": False,
        "started_at": "2026-01-01T00:00:00Z",
        "finished_at": None,
        "address": "10.1.2.3",
        "ssh_port": None,
        "gpus": [],
        "uncapped": [],
        "apps": {},
        "use": None,
        "disk_bytes": None,
        "notice": None,
        "signals": 0,
        "signal_receivers": 0,
        **facts,
    }


def reports_of(session: Session, **differing: dict[str, Any] | None) -> dict[str, Report]:
    """Return every agent's report. All kernels run, except those named; None removes the container."""
    reports = {agent_id: {**report_of(agent_id), "generation": session.generation} for agent_id in session.agents}
    for kernel in session.kernels:
        facts = differing.get(kernel.name, {})
        if facts is not None and kernel.allocation is not None:
            reports[kernel.allocation.agent_id]["kernels"].append(kernel_entry(session, kernel.name, **facts))
    return {agent_id: report_from_agent(report) for agent_id, report in reports.items()}
