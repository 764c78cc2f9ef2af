"""Images on their way to agents, beside everything else."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from muster.core.images.names import familiar
from muster.core.model.agent import Agent
from muster.core.model.session import Session
from muster.core.values.errors import ImageError
from muster.service.queue.visits import Start

_PROGRESS_INTERVAL_S = 1.0


class PullImage(Protocol):
    """Brings an image to an agent. Raises ImageError."""

    def __call__(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Bytes of the layers that are there, and of all."""

    agent_id: str
    image: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class PullOver:
    """A pull has ended; `error` says why it failed."""

    agent_id: str
    image: str
    error: ImageError | None = None


class Pulls:
    """The pulls under way and what came of them. Both are forgotten when the worker ends: a pull may be repeated."""

    def __init__(self, pull_image: PullImage, start: Start, tell: Callable[[PullProgress | PullOver], None]) -> None:
        self._pull_image = pull_image
        self._start = start
        self._tell = tell
        self._under_way: dict[tuple[str, str], PullProgress] = {}
        self._done: set[tuple[str, str]] = set()
        self._failures: dict[tuple[str, str], ImageError] = {}

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def missing(self, session: Session, agents: Mapping[str, Agent]) -> dict[str, set[str]]:
        """By image, the session's agents that lack it."""
        missing: dict[str, set[str]] = {}
        for kernel in session.kernels:
            agent = agents.get(kernel.allocation.agent_id) if kernel.allocation else None
            if agent is None or (agent.id, kernel.image) in self._done:
                continue
            if not _holds(agent, kernel.image):
                missing.setdefault(kernel.image, set()).add(agent.id)
        return missing

    def begin(self, agent: Agent, image: str) -> None:
        """Unless it is under way; how an earlier one ended is forgotten."""
        key = (agent.id, image)
        if key not in self._under_way:
            self._failures.pop(key, None)
            self._under_way[key] = PullProgress(agent.id, image, 0, 0)
            self._start(lambda: self._pull(agent, image))

    def progressed(self, progress: PullProgress) -> None:
        self._under_way[progress.agent_id, progress.image] = progress

    def over(self, end: PullOver) -> None:
        key = (end.agent_id, end.image)
        self._under_way.pop(key, None)
        if end.error:
            self._failures[key] = end.error
        else:
            self._done.add(key)

    def reported(self, agent: Agent) -> None:
        """From when a report shows an image, the reports tell whether the agent holds it."""
        shown = {(agent_id, image) for agent_id, image in self._done if agent_id == agent.id and _holds(agent, image)}
        self._done -= shown

    def failure(self, missing: dict[str, set[str]]) -> ImageError | None:
        """Why one of these did not come."""
        keys = [(agent_id, image) for image, agent_ids in missing.items() for agent_id in sorted(agent_ids)]
        failures = [self._failures[key] for key in keys if key in self._failures]
        return next((f for f in failures if f.permanent), failures[0] if failures else None)

    def progress(self, missing: dict[str, set[str]]) -> dict[str, object]:
        """Of these, how far each pull that is under way has come."""
        keys = [(agent_id, image) for image, agent_ids in sorted(missing.items()) for agent_id in sorted(agent_ids)]
        known = [self._under_way[key] for key in keys if key in self._under_way]
        return {
            "pulls": [
                {"agent": pull.agent_id, "image": pull.image, "done_bytes": pull.done, "total_bytes": pull.total}
                for pull in known
            ]
        }

    def _pull(self, agent: Agent, image: str) -> None:
        told_at = 0.0

        def progressed(done: int, total: int) -> None:
            nonlocal told_at
            if time.monotonic() - told_at >= _PROGRESS_INTERVAL_S:
                told_at = time.monotonic()
                self._tell(PullProgress(agent.id, image, done, total))

        error = None
        try:
            self._pull_image(agent, image, progressed)
        except ImageError as raised:
            error = raised
        finally:
            self._tell(PullOver(agent.id, image, error))


def _holds(agent: Agent, image: str) -> bool:
    return bool(agent.images & {image, familiar(image)})
