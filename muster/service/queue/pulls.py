"""Image pulls beside the queue's worker. They are started here, and their results come as facts."""

import time
from collections.abc import Callable
from typing import Protocol

from muster.core.agents.agent import Agent
from muster.core.model.session import PullProgress
from muster.core.turn.facts import PullOver
from muster.core.turn.pulls import ImagePull
from muster.core.values.errors import ImageError, MusterError
from muster.service.queue.visits import Start

_PROGRESS_INTERVAL_S = 1.0


class PullImage(Protocol):
    """A function that brings an image to an agent. It raises ImageError."""

    def __call__(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None: ...


class PullRunner:
    """A runner of pulls, each by `start`. `send` gets a pull's progress at most once a second, and its end."""

    def __init__(self, pull_image: PullImage, start: Start, send: Callable[[PullProgress | PullOver], None]) -> None:
        self._pull_image = pull_image
        self._start = start
        self._send = send

    def begin(self, pull: ImagePull) -> None:
        self._start(lambda: self._pull(pull.agent, pull.image))

    def _pull(self, agent: Agent, image: str) -> None:
        sent_at = 0.0

        def progressed(done: int, total: int) -> None:
            nonlocal sent_at
            if time.monotonic() - sent_at >= _PROGRESS_INTERVAL_S:
                sent_at = time.monotonic()
                self._send(PullProgress(agent.id, image, done, total))

        # Kept until it has ended well: a pull that breaks off has brought nothing.
        error: ImageError | None = ImageError(f"the pull of image {image} broke off", permanent=False)
        try:
            self._pull_image(agent, image, progressed)
            error = None
        except ImageError as raised:
            error = raised
        except MusterError as raised:
            error = ImageError(f"image {image} cannot be brought there: {raised}", permanent=False)
        finally:
            self._send(PullOver(agent.id, image, error))
