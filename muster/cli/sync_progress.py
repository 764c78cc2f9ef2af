"""Copying an image to many agents, as its user sees it."""

import threading
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.images.distribution import Synced


class SyncProgress:
    """A line on a terminal with each copy's progress; elsewhere only each copy's result."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._percent: dict[str, int] = {}

    def note(self, agent_id: str, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        with self._lock:
            if self._percent.get(agent_id) != percent:
                self._percent[agent_id] = percent
                self._draw()

    def finished(self, outcome: "Synced") -> None:
        with self._lock:
            self._percent.pop(outcome.agent_id, None)
            self._clear()
            if outcome.error:
                click.echo(f"muster: {outcome.agent_id}: {outcome.error}", err=True)
            else:
                click.echo(f"{outcome.agent_id}: {'copied' if outcome.changed else 'has it'}")
            self._draw()

    def end(self, agent_id: str) -> None:
        """End the line of a transfer that is no copy."""
        with self._lock:
            self._percent.pop(agent_id, None)
            self._clear()

    def _draw(self) -> None:
        self._clear()
        if self._shown:
            click.echo(", ".join(f"{name} {percent} %" for name, percent in self._percent.items()), err=True, nl=False)

    def _clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def outcome_json(outcome: "Synced") -> dict[str, Any]:
    return {"agent": outcome.agent_id, "changed": outcome.changed, "error": outcome.error}
