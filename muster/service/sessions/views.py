"""Sessions, kernels, agents and stories as plain data: what `--json` prints and the Ansible module returns."""

from dataclasses import asdict
from typing import Any

from muster.core.model.session import Kernel, PullProgress, Session, StoryLine
from muster.core.model.wait import LimitHit, Wait
from muster.core.values.moment import timestamp


def why_text(session: Session) -> str:
    """One line: why it waits, or why it is as it is."""
    waiting = (session.wait and session.wait.message) or _pulling(session)
    return waiting or session.reason or "it was just submitted; the next pass looks at it"


def _pulling(session: Session) -> str:
    pulls = session.progress
    parts = [f"{pull.image} on {pull.agent_id}: {100 * pull.done // max(1, pull.total)} %" for pull in pulls]
    return f"pulling {'; '.join(parts)}" if parts else ""


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "name": session.name,
        "owner": session.owner,
        "type": "batch" if session.spec.is_batch else "interactive",
        "state": session.state,
        "step": session.step,
        "progress": {"pulls": [_pull_json(pull) for pull in session.progress]} if session.progress else None,
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
        "wait": wait_json(session.wait) if session.wait else None,
        "folders": [asdict(folder) for folder in session.folders],
        "kernels": [kernel_json(kernel) for kernel in session.kernels],
        "spec": session.spec.model_dump(mode="json"),
    }


def _pull_json(pull: PullProgress) -> dict[str, Any]:
    return {"agent": pull.agent_id, "image": pull.image, "done_bytes": pull.done, "total_bytes": pull.total}


def wait_json(wait: Wait, position: int | None = None) -> dict[str, Any]:
    """Return the wait as plain data, with its session's position in the queue where that is known."""
    fields = asdict(wait) | {"limit": _limit_json(wait.limit) if wait.limit else None, "position": position}
    return fields if position is not None else {name: value for name, value in fields.items() if name != "position"}


def _limit_json(hit: LimitHit) -> dict[str, Any]:
    return {
        "scope": hit.scope,
        "counts": hit.counts,
        "value": hit.value,
        "used": hit.used,
        "asked": hit.requested,
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
