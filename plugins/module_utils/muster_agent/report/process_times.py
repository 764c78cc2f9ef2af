"""The state and times of a container's process, by the engine's answer."""

from __future__ import annotations

from typing import Any

# The engine's word for what has not come.
NEVER = "0001-01-01T00:00:00Z"


def session_times(state: dict[str, Any]) -> dict[str, Any]:
    """Return exit code and times of a container's process, from the engine's `State`."""
    ended = state["Status"] in {"exited", "dead"}
    return {
        "exit_code": state["ExitCode"] if ended else None,
        "oom_killed": state["OOMKilled"],
        "started_at": _moment(state["StartedAt"]),
        "finished_at": _moment(state["FinishedAt"]) if ended else None,
    }


def _moment(engine_time: str) -> str | None:
    return None if engine_time == NEVER else engine_time
