"""How things look: plain columns that awk can read, and the same as JSON."""

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from muster.core.agent import Agent
from muster.core.duration import format_duration
from muster.core.session import Kernel, Session
from muster.core.slots import format_slots
from muster.store.store import StoryLine


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Left-aligned columns, two blanks apart; the last is never cut."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def timestamp(seconds: float | None) -> str | None:
    """RFC 3339, in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def age(since: float | None) -> str:
    return "-" if since is None else format_duration(max(0.0, time.time() - since))


def why_text(session: Session) -> str:
    """One line: why it waits, or why it is as it is."""
    return str(session.wait.get("message") or session.reason or "it was just submitted; the next pass looks at it")


def session_json(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "name": session.name,
        "owner": session.owner,
        "type": "batch" if session.spec.is_batch else "interactive",
        "state": session.state,
        "reason": session.reason,
        "result": session.result,
        "exit_code": session.exit_code,
        "resource_group": session.spec.resource_group,
        "priority": session.spec.priority,
        "cluster_mode": session.placed_mode or session.spec.cluster_mode,
        "cluster_size": len(session.kernels),
        "slots": asdict(session.slots),
        "agents": list(session.agents),
        "submitted_at": timestamp(session.submitted_at),
        "started_at": timestamp(session.started_at),
        "ended_at": timestamp(session.ended_at),
        "wait": session.wait or None,
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
        "container_id": kernel.container_id,
        "state": kernel.container_state,
        "address": kernel.address,
        "ssh_port": kernel.ssh_port,
        "exit_code": kernel.exit_code,
        "oom_killed": kernel.oom_killed,
        "started_at": kernel.started_at,
        "finished_at": kernel.finished_at,
    }


def story_json(line: StoryLine) -> dict[str, Any]:
    return {"at": timestamp(line.at), "from": line.from_state, "to": line.to_state, "reason": line.reason}


def agent_json(agent: Agent, free: dict[str, int], kernels: int) -> dict[str, Any]:
    return {
        "id": agent.id,
        "resource_group": agent.resource_group,
        "state": agent.state,
        "problem": agent.problem or None,
        "capacity": asdict(agent.capacity),
        "free": free,
        "kernels": kernels,
        "gpus": [asdict(gpu) for gpu in agent.gpus],
        "observed_at": timestamp(agent.observed_at),
        "docker": agent.report.get("docker"),
    }


def session_row(session: Session) -> list[object]:
    return [
        session.id[:8],
        session.name,
        session.owner,
        "batch" if session.spec.is_batch else "interactive",
        session.state + (f" ({session.result})" if session.result else ""),
        len(session.kernels),
        format_slots(session.slots),
        ",".join(session.agents) or "-",
        age(session.submitted_at),
        why_text(session) if session.wait or session.reason else "-",
    ]


SESSION_HEADERS = ("ID", "NAME", "OWNER", "TYPE", "STATE", "SIZE", "RESOURCES", "AGENTS", "AGE", "REASON")
