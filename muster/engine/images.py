"""Images on agents: pulled from a registry, or copied from another agent through the control node."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound
from docker.models.images import Image

from muster.core.agents.agent import Agent
from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.engine.agent_engine import ANSWER_ERRORS, ENGINE_ERRORS, cause, engine_of, one_line

# An engine may write a large image to its own disk before it sends the first byte.
SILENCE_S = 3600
# The engine tells registries' answers apart by their words only.
_PERMANENT = re.compile(
    r"not found|does not exist|manifest unknown|no matching manifest|denied|unauthorized|invalid reference"
)

Progressed = Callable[[int, int], None]


def pull(agent: Agent, reference: str, progressed: Progressed, *, with_credentials: bool = False) -> None:
    """`progressed(bytes done, bytes of the layers that have begun)`, as often as the engine speaks.

    `with_credentials`, those of the control node's user (`docker login`) are shown to the registry, and to the agent.
    Raises ImageError, which is permanent when the registry has no such image or does not give it to us.
    """
    # The SDK looks for credentials only where it is given none, not even empty ones.
    auth_config: dict[str, str] | None = None if with_credentials else {}
    layers = _Layers()
    try:
        with engine_of(agent) as client:
            for message in client.api.pull(reference, stream=True, decode=True, auth_config=auth_config):
                if "error" in message:
                    raise _pull_error(agent, reference, str(message["error"]), None)
                if layers.note(message):
                    progressed(layers.done, layers.total)
    except APIError as error:
        raise _pull_error(agent, reference, cause(error), error.status_code) from None
    except docker.errors.InvalidRepository as error:
        raise _pull_error(agent, reference, cause(error), 400) from None
    except AgentUnreachableError as error:
        raise ImageError(f"image {reference} cannot be pulled: {error}", permanent=False) from None
    except ANSWER_ERRORS as error:
        raise _pull_error(agent, reference, cause(error), None) from None


def image_id(agent: Agent, reference: str) -> str | None:
    """None where the agent has no such image. Raises AgentUnreachableError."""
    with engine_of(agent) as client:
        image = _image(client, agent, reference)
    return image.id if image else None


def copy(source: Agent, target: Agent, reference: str, progressed: Progressed) -> None:
    """Image and tag, streamed: nothing is written on the control node. `progressed(bytes done, bytes total)`.

    Raises AgentUnreachableError and ImageError.
    """
    with (
        engine_of(source, answer_timeout_s=SILENCE_S) as giving,
        engine_of(target, answer_timeout_s=SILENCE_S) as taking,
    ):
        image = _image(giving, source, reference)
        if image is None:
            raise ImageError(f"image {reference} is not on agent {source.id}", permanent=True)
        stream = _saved(giving, source, reference, int(image.attrs["Size"]), progressed)
        try:
            # A request takes a generator, which the stub does not know.
            taking.images.load(stream)  # type: ignore[arg-type]
        except ENGINE_ERRORS as error:
            raise _copy_error(target, reference, cause(error)) from None


def _saved(
    client: docker.DockerClient, agent: Agent, reference: str, total: int, progressed: Progressed
) -> Iterator[bytes]:
    done = 0
    try:
        for chunk in client.api.get_image(reference):
            yield chunk
            # The archive's own headers come on top of the image's size.
            done = min(done + len(chunk), total)
            progressed(done, total)
    except ENGINE_ERRORS as error:
        raise _copy_error(agent, reference, cause(error)) from None


def _image(client: docker.DockerClient, agent: Agent, reference: str) -> Image | None:
    try:
        return client.images.get(reference)
    except ImageNotFound:
        return None
    except ENGINE_ERRORS as error:
        raise ImageError(f"image {reference} on agent {agent.id}: {cause(error)}", permanent=False) from None


def _copy_error(agent: Agent, reference: str, problem: str) -> ImageError:
    return ImageError(f"image {reference} cannot be copied; agent {agent.id}: {problem}", permanent=False)


def _pull_error(agent: Agent, reference: str, problem: str, status: int | None) -> ImageError:
    problem = one_line(problem)
    permanent = status in {400, 401, 403, 404} or _PERMANENT.search(problem.lower()) is not None
    return ImageError(f"image {reference} cannot be pulled on agent {agent.id}: {problem}", permanent=permanent)


class _Layers:
    """Bytes of the layers that are being fetched: a layer's size is known from its first message on."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    def note(self, message: Mapping[str, Any]) -> bool:
        """Whether the message changed the sums."""
        before = dict(self._layers)
        layer, detail = message.get("id"), message.get("progressDetail") or {}
        if message.get("status") == "Downloading" and layer and detail.get("total"):
            self._layers[layer] = (int(detail["current"]), int(detail["total"]))
        elif message.get("status") in {"Download complete", "Pull complete"} and layer in self._layers:
            total = self._layers[layer][1]
            self._layers[layer] = (total, total)
        return self._layers != before

    @property
    def done(self) -> int:
        return sum(current for current, _ in self._layers.values())

    @property
    def total(self) -> int:
        return sum(total for _, total in self._layers.values())
