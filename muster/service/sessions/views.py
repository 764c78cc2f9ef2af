"""Sessions, kernels, agents and stories as plain data: what `--json` prints and the Ansible module returns."""

from dataclasses import asdict
from typing import Any, cast

from muster.core.model.session import Kernel, Session, StoryLine
from muster.core.values.moment import timestamp


def why_text(session: Session) -> str:
    """One line: why it waits, or why it is as it is."""
    waiting = session.wait.get("message") or _pulling(session)
    return str(waiting or session.reason or "it was just submitted; the next pass looks at it")


def _pulling(session: Session) -> str:
    pulls = cast("list[dict[str, Any]]", session.progress.get("pulls", []))
    parts = [f"{p['image']} on {p['agent']}: {100 * p['done_bytes'] // max(1, p['total_bytes'])} %" for p in pulls]
    return f"pulling {'; '.join(parts)}" if parts else ""


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "name": session.name,
        "owner": session.owner,
        "type": "batch" if session.spec.is_batch else "interactive",
        "state": session.state,
        "step": session.step,
        "progress": session.progress or None,
        "reason": session.reason,
        "result": session.result,
        "exit_code": session.exit_code,
        "resource_group": session.spec.resource_group,
        "project": session.spec.project,
        "priority": session.spec.priority,
        "cluster_mode": session.placed_mode or session.spec.cluster_mode,
        "cluster_size": len(session.kernels),
        "slots": asdict(session.slots),
        "agents": list(session.agents),
        "submitted_at": timestamp(session.submitted_at),
        "started_at": timestamp(session.started_at),
        "ended_at": timestamp(session.ended_at),
        "requeues": session.requeues,
        "held_by": session.held_by,
        "notice": session.notice,
        "array_id": session.array_id,
        "array_index": session.array_index,
        "wait": session.wait or None,
        "folders": [asdict(folder) for folder in session.folders],
        "kernels": [kernel_json(kernel) for kernel in session.kernels],
        "spec": session.spec.model_dump(mode="json"),
    }


def kernel_json(kernel: Kernel) -> dict[str, Any]:
    return {
        "id": kernel.id,
        "name": kernel.name,
        "role": kernel.role,
        "image": kernel.image,
        "slots": asdict(kernel.slots),
        "agent": kernel.allocation.agent_id if kernel.allocation else None,
        "gpus": [asdict(share) for share in kernel.allocation.gpus] if kernel.allocation else [],
        "numa_nodes": list(kernel.allocation.numa_nodes) if kernel.allocation else [],
        "container_id": kernel.container_id,
        "state": kernel.container_state,
        "address": kernel.address,
        "ssh_port": kernel.ssh_port,
        "exit_code": kernel.exit_code,
        "oom_killed": kernel.oom_killed,
        "started_at": kernel.started_at,
        "finished_at": kernel.finished_at,
        "gpu_problem": kernel.gpu_problem,
    }


def story_json(line: StoryLine) -> dict[str, Any]:
    return {"at": timestamp(line.at), "from": line.from_state, "to": line.to_state, "reason": line.reason}
