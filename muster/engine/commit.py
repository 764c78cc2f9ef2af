"""Make an image of a running container, without Muster's files, its user's keys, or mounted files.

The engine's own commit takes the whole of a container's layer and its whole configuration. So that is made first, under
no name; its newest layer is read back and written anew without what does not belong in an image, and loaded again with
the parent's configuration. The parent's layers stay where they are: both images share them.
"""

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import docker
from docker.models.containers import Container
from docker.utils import decode_json_header

from muster.core.agents.agent import Agent
from muster.core.images.layer_changes import Entry, kept
from muster.core.model.session import Kernel
from muster.core.spec.mounts import HOME
from muster.core.values.errors import AgentUnreachableError, ImageError
from muster.core.values.units import exact_moment, format_bytes
from muster.engine.agent_engine import ENGINE_ERRORS, MALFORMED_ERRORS, cause, container_of, engine_of
from muster.engine.images import SILENCE_S, Progressed

_CHUNK = 1 << 20
# The label of the whole layer, which has no name: that of the image that is made of it.
_RAW = "muster.commit"
_CREATED_BY = "muster commit"
_MOST_OF_A_CONFIG = 4 << 20
# An archive's headers come on top of its files, and may double what small ones take.
_HEADERS = 16 << 20
_KEYS = f"{HOME}/.ssh"
_STAT = "X-Docker-Container-Path-Stat"


@dataclass(frozen=True, slots=True)
class CommittedAs:
    """The name of a new image, and its entries in the image's history."""

    reference: str
    author: str
    message: str
    at: float


@dataclass(frozen=True, slots=True)
class Made:
    """A new image. `size_bytes` counts the parent's layers too."""

    image_id: str
    size_bytes: int


def parent_id(agent: Agent, kernel: Kernel) -> str:
    """Return the id of the image that the kernel runs. Raises as `container_of`."""
    with container_of(agent, kernel) as container:
        return str(container.attrs["Image"])


def commit(
    agent: Agent, kernel: Kernel, new: CommittedAs, most_bytes: int, spool: Path, progressed: Progressed
) -> Made:
    """Make an image of a container, which stands still while the engine copies its layer.

    `progressed` gets the bytes that were read, and those in total.

    `spool` is a directory on this machine with room for the new layer. Raises ImageError, NotPossibleInStateError when
    the kernel has no container, and AgentUnreachableError.
    """
    with engine_of(agent, answer_timeout_s=SILENCE_S) as client, container_of(agent, kernel) as found:
        try:
            return _committed(client, str(found.id), new, most_bytes, spool, progressed)
        except MALFORMED_ERRORS as error:
            raise AgentUnreachableError(f"agent {agent.id}: {cause(error)}") from None


def _committed(
    client: docker.DockerClient,
    container_id: str,
    new: CommittedAs,
    most_bytes: int,
    spool: Path,
    progressed: Progressed,
) -> Made:
    container = client.containers.get(container_id)
    _check_size(client, container, new.reference, most_bytes)
    _remove_abandoned(client, new.reference)
    keys = {_KEYS, _resolved(client, container_id, _KEYS)}
    raw = str(client.api.commit(container_id, pause=True, changes=[f"LABEL {_RAW}={new.reference}"])["Id"])
    try:
        image_id = _cleaned(client, container, raw, keys, new, most_bytes, spool, progressed)
    finally:
        client.images.remove(raw, force=True)
    size = int(client.images.get(image_id).attrs["Size"])
    if size > most_bytes:
        client.images.remove(new.reference)
        raise _too_large(new.reference, size, most_bytes)
    return Made(image_id, size)


def _remove_abandoned(client: docker.DockerClient, reference: str) -> None:
    """Remove what an interrupted commit to the same name has left: its name is claimed, so nobody is at it now."""
    for image in client.images.list(filters={"label": f"{_RAW}={reference}", "dangling": True}):
        client.images.remove(str(image.id), force=True)


def remove(agent: Agent, reference: str) -> bool:
    """Remove an image; return whether the agent had it. Raises ImageError if it is in use, AgentUnreachableError."""
    with engine_of(agent) as client:
        try:
            client.images.remove(reference)
        except docker.errors.ImageNotFound:
            return False
        except ENGINE_ERRORS as error:
            raise ImageError(f"image {reference} cannot be removed: {cause(error)}", permanent=False) from None
    return True


def _resolved(client: docker.DockerClient, container_id: str, path: str) -> str:
    """Return where a path of a container leads: a layer has its files there, and the links may be in another layer."""
    api, found = client.api, "/"
    for part in path.strip("/").split("/"):
        found = posixpath.join(found, part)
        url = f"{api.base_url}/v{api.api_version}/containers/{container_id}/archive"
        answer = api.head(url, params={"path": found}, timeout=api.timeout)
        # Of what is not there, and below it, there is nothing to say.
        if answer.ok:
            found = str(decode_json_header(answer.headers[_STAT])["linkTarget"]) or found
    return found


def _check_size(client: docker.DockerClient, container: Container, reference: str, most_bytes: int) -> None:
    (listed,) = client.api.containers(all=True, size=True, filters={"id": container.id})
    size = int(listed.get("SizeRootFs") or 0)
    if size > most_bytes:
        raise _too_large(reference, size, most_bytes)


def _too_large(reference: str, size: int, most_bytes: int) -> ImageError:
    return ImageError(
        f"image {reference} would have {format_bytes(size)}, and commit_max_size allows {format_bytes(most_bytes)};"
        " remove files in the session, or have the setting raised",
        permanent=True,
    )


def _cleaned(
    client: docker.DockerClient,
    container: Container,
    raw: str,
    keys: Collection[str],
    new: CommittedAs,
    most_bytes: int,
    spool: Path,
    progressed: Progressed,
) -> str:
    """Return the new image's id, with its name."""
    parent = client.images.get(container.attrs["Image"]).attrs["Config"] or {}
    attrs = client.images.get(raw).attrs
    newest = str(attrs["RootFS"]["Layers"][-1])
    mounts = [str(mount["Destination"]) for mount in container.attrs["Mounts"]]
    with TemporaryFile(dir=spool) as layer, TemporaryFile(dir=spool) as cleaned, TemporaryFile(dir=spool) as archive:
        stream = _Stream(client.api.get_image(raw), int(attrs["Size"]), most_bytes, progressed)
        config = _read_image(stream, raw.partition(":")[2], newest, layer)
        digest = clean_layer(layer, cleaned, mounts, keys)
        image_id = _write_image(archive, cleaned, _new_config(config, parent, digest, new), new.reference)
        archive.seek(0)
        client.images.load(archive)
    return image_id


def _read_image(stream: "_Stream", config_hex: str, newest: str, layer: IO[bytes]) -> dict[str, Any]:
    """Return the image's configuration, and write its newest layer to `layer`. Raises ImageError without them."""
    config: dict[str, Any] | None = None
    has_layer = False
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None:
                continue
            stem = member.name.rpartition("/")[2].removesuffix(".json")
            if stem == config_hex and member.size <= _MOST_OF_A_CONFIG:
                config = json.load(content)
            elif not has_layer and (stem == "layer.tar" or stem == newest.partition(":")[2]):
                # Older engines do not name a layer's file by its digest.
                layer.seek(0)
                layer.truncate()
                has_layer = _copied(content, layer) == newest
    if config is None or not has_layer:
        raise ImageError("the agent's engine keeps images in a way from which they cannot be committed", permanent=True)
    return config


def clean_layer(
    layer: IO[bytes], cleaned: IO[bytes], mount_targets: Collection[str], key_directories: Collection[str]
) -> str:
    """Writes the layer's archive anew, without what does not belong in an image; its digest."""
    layer.seek(0)
    with (
        tarfile.open(fileobj=layer, mode="r:") as old,
        tarfile.open(fileobj=cleaned, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        members = old.getmembers()
        selected = kept(
            [Entry(member.name, member.isdir(), member.linkname, member.issym()) for member in members],
            mount_targets,
            key_directories,
        )
        for member in members:
            if member.name in selected:
                new.addfile(member, old.extractfile(member) if member.isreg() else None)
    cleaned.seek(0)
    return _copied(cleaned, None)


def _new_config(config: dict[str, Any], parent: dict[str, Any], digest: str, new: CommittedAs) -> dict[str, Any]:
    """Return a configuration that starts as the parent does, with nothing of how the kernel was started."""
    created = exact_moment(new.at)
    history = [*config["history"][:-1], {"created": created, "created_by": _CREATED_BY, "comment": new.message}]
    plain = {key: value for key, value in parent.items() if value is not None and key not in {"Hostname", "Image"}}
    kept_keys = ("architecture", "os", "os.version", "variant")
    return {
        **{key: config[key] for key in kept_keys if key in config},
        "author": new.author,
        "created": created,
        "config": plain,
        "history": history,
        "rootfs": {"type": "layers", "diff_ids": [*config["rootfs"]["diff_ids"][:-1], digest]},
    }


def _write_image(archive: IO[bytes], layer: IO[bytes], config: dict[str, Any], reference: str) -> str:
    """Write an archive as `docker load` takes it, without layers that the engine has; return the image's id."""
    encoded = json.dumps(config).encode()
    digest = hashlib.sha256(encoded).hexdigest()
    names = [f"{diff_id.partition(':')[2]}/layer.tar" for diff_id in config["rootfs"]["diff_ids"]]
    manifest = [{"Config": f"{digest}.json", "RepoTags": [reference], "Layers": names}]
    layer.seek(0, io.SEEK_END)
    size = layer.tell()
    layer.seek(0)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content, length in (
            (f"{digest}.json", io.BytesIO(encoded), len(encoded)),
            (names[-1], layer, size),
            ("manifest.json", io.BytesIO(json.dumps(manifest).encode()), len(json.dumps(manifest))),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = length
            tar.addfile(entry, content)
    return f"sha256:{digest}"


def _copied(source: IO[bytes], target: IO[bytes] | None) -> str:
    """Copy all that there is to read; return its digest."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return f"sha256:{digest.hexdigest()}"


class _Stream(io.RawIOBase):
    """An engine's chunks as a file that is read once, with a limit: a compromised agent's would fill a disk."""

    def __init__(
        self, chunks: Iterator[bytes], total: int, most_bytes: int, progressed: Callable[[int, int], None]
    ) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self._read, self._most = 0, 2 * most_bytes + _HEADERS
        self._done, self._total = 0, total
        self._progressed = progressed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as in io.RawIOBase
        if not self._rest:
            self._rest = next(self._chunks, b"")
            self._read += len(self._rest)
            if self._read > self._most:
                raise ImageError("the agent's engine sends more than the image can have", permanent=True)
            self._done = min(self._done + len(self._rest), self._total)
            self._progressed(self._done, self._total)
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)
