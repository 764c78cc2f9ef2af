"""Images on agents: pulled from a registry, or copied from another agent through the control node."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import docker
from docker.errors import APIError, ImageNotFound
from docker.models.images import Image

from muster.contract.values import one_line
from muster.core.agents.agent import Agent
from muster.core.images.names import parse_image_name
from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.engine.agent_engine import ANSWER_ERRORS, ENGINE_ERRORS, cause, engine_of
from muster.engine.image_archive import CheckedArchive, RefusedArchiveError

# An engine may write a large image to its own disk before it sends the first byte.
SILENCE_S = 3600
# The engine tells registries' answers apart by their words only.
_PERMANENT = re.compile(r"no matching manifest|invalid reference")
_ABSENT = re.compile(
    r"not found|does not exist|manifest unknown|denied|unauthorized|authentication required|no basic auth credentials"
    r"|403 forbidden|http 40[134]"
)
# For an image that the site did not choose, both cases get one line, which does not reveal other users' images.
_ABSENT_OR_PRIVATE = "its registry has no such image, or not for everybody"

IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}")

Progressed = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ExpectedImage:
    """The image that an agent shall hand over: its id, and the most bytes of the archive."""

    image_id: str
    most_bytes: int


def pull(agent: Agent, reference: str, progressed: Progressed, *, with_credentials: bool = False) -> None:
    """Pull an image; `progressed` gets the bytes done, and those of the layers that have begun.

    `with_credentials`, those of the control node's user (`docker login`) are shown to the registry, and to the agent.
    Raises ImageError, which is permanent when the registry has no such image or does not give it to us. Without
    credentials its line is the same for both.
    """
    # The SDK looks for credentials only where it is given none, not even empty ones.
    auth_config: dict[str, str] | None = None if with_credentials else {}
    layers = _Layers()
    try:
        with engine_of(agent) as client:
            for message in client.api.pull(reference, stream=True, decode=True, auth_config=auth_config):
                if "error" in message:
                    raise _pull_error(agent, reference, str(message["error"]), None, with_credentials)
                if layers.note(message):
                    progressed(layers.done, layers.total)
    except APIError as error:
        raise _pull_error(agent, reference, cause(error), error.status_code, with_credentials) from None
    except docker.errors.InvalidRepository as error:
        raise _pull_error(agent, reference, cause(error), 400, with_credentials) from None
    except AgentUnreachableError as error:
        raise ImageError(f"image {reference} cannot be pulled: {error}", permanent=False) from None
    except ANSWER_ERRORS as error:
        raise _pull_error(agent, reference, cause(error), None, with_credentials) from None


def image_id(agent: Agent, reference: str) -> str | None:
    """Return an image's id; None where the agent has no such image. Raises AgentUnreachableError."""
    with engine_of(agent) as client:
        image = _image(client, agent, reference)
    return image.id if image else None


@dataclass(frozen=True, slots=True)
class CopiedImage:
    """An image that was copied.

    `ids` are those of its source and its target, which differ if only one of the two engines keeps images in
    containerd's store. `config_id` is its configuration's digest; None if it has several configurations.
    """

    ids: frozenset[str]
    config_id: str | None


def copy(source: Agent, target: Agent, reference: str, expected: ExpectedImage, progressed: Progressed) -> CopiedImage:
    """Copy an image under one tag, streamed: nothing is written on the control node. `progressed(bytes done, total)`.

    The target gets the image of the expected id as `reference` and nothing else, whatever the source sends
    (`CheckedArchive`). Raises AgentUnreachableError and ImageError.
    """
    name = parse_image_name(reference)
    if name is None or name.digest or not IMAGE_ID.fullmatch(expected.image_id):
        raise ImageError(f"image {reference} cannot be copied: only a name with a tag can travel", permanent=True)
    with (
        engine_of(source, answer_timeout_s=SILENCE_S) as giving,
        engine_of(target, answer_timeout_s=SILENCE_S) as taking,
    ):
        image = _image(giving, source, expected.image_id)
        if image is None:
            raise ImageError(
                f"image {reference} ({expected.image_id[7:19]}) is not on agent {source.id}", permanent=True
            )
        sent = _saved(giving, expected.image_id)
        archive = CheckedArchive(sent, expected.image_id, name.familiar, expected.most_bytes)
        stream = _checked(archive, source, name.familiar, _size(image, expected.most_bytes), progressed)
        try:
            # A request takes a generator, which the stub does not know.
            taking.images.load(stream)  # type: ignore[arg-type]
        except ANSWER_ERRORS as error:
            raise _copy_error(target, reference, cause(error)) from None
        loaded = _image(taking, target, name.familiar)
    if loaded is None or loaded.id not in archive.ids:
        raise _copy_error(target, reference, "its engine did not load the image")
    return CopiedImage(frozenset({expected.image_id, str(loaded.id)}), archive.config_id)


def _saved(client: docker.DockerClient, image_id: str) -> Iterator[bytes]:
    yield from client.api.get_image(image_id)


def _checked(
    archive: CheckedArchive, agent: Agent, reference: str, total: int, progressed: Progressed
) -> Iterator[bytes]:
    done = 0
    try:
        for chunk in archive:
            yield chunk
            # The archive's own headers come on top of the image's size.
            done = min(done + len(chunk), total)
            progressed(done, total)
    except RefusedArchiveError as error:
        raise _copy_error(agent, reference, str(error)) from None
    except ENGINE_ERRORS as error:
        raise _copy_error(agent, reference, cause(error)) from None


def _size(image: Image, most_bytes: int) -> int:
    """Return the bytes that progress counts to: what the agent says of its image."""
    size = image.attrs.get("Size")
    return min(size, most_bytes) if isinstance(size, int) and size > 0 else most_bytes


def _image(client: docker.DockerClient, agent: Agent, reference: str) -> Image | None:
    try:
        return client.images.get(reference)
    except ImageNotFound:
        return None
    except ANSWER_ERRORS as error:
        raise ImageError(f"image {reference} on agent {agent.id}: {cause(error)}", permanent=False) from None


def _copy_error(agent: Agent, reference: str, problem: str) -> ImageError:
    return ImageError(f"image {reference} cannot be copied; agent {agent.id}: {problem}", permanent=False)


def _pull_error(agent: Agent, reference: str, said: str, status: int | None, of_the_site: bool) -> ImageError:
    problem = one_line(said)
    is_absent = status in {401, 403, 404} or _ABSENT.search(problem.lower()) is not None
    permanent = is_absent or status == 400 or _PERMANENT.search(problem.lower()) is not None
    if is_absent and not of_the_site:
        problem = _ABSENT_OR_PRIVATE
    return ImageError(f"image {reference} cannot be pulled on agent {agent.id}: {problem}", permanent=permanent)


class _Layers:
    """The bytes of layers that are being fetched. A layer's size is known from its first message on."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    def note(self, message: Mapping[str, Any]) -> bool:
        """Add a message to the sums. Return whether it changed them."""
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
