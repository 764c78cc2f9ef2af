"""Make an image of a running container, without Muster's files, its user's keys, or mounted files.

The engine's own commit takes the whole of a container's layer and its whole configuration. So that is made first, under
no name; its newest layer is read back and written anew without what does not belong in an image, and loaded again with
the parent's configuration. The parent's layers stay where they are: both images share them.
"""

import io
import json
import posixpath
import tarfile
from collections.abc import Collection, Mapping
from contextlib import suppress
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
from muster.engine.image_layout import LAYER_TYPE, MANIFEST_TYPE, blob_name, digest_of, layout_of
from muster.engine.images import SILENCE_S, Progressed
from muster.engine.saved_image import copied, read_image

# The label of the whole layer, which has no name: that of the image that is made of it.
_RAW = "muster.commit"
_CREATED_BY = "muster commit"
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
    for image_id in _listed(client, {"label": f"{_RAW}={reference}", "dangling": True}):
        with suppress(docker.errors.ImageNotFound):
            client.images.remove(image_id, force=True)


def _listed(client: docker.DockerClient, filters: Mapping[str, Any], tries: int = 5) -> list[str]:
    try:
        return list(client.api.images(filters=filters, quiet=True))
    except docker.errors.NotFound:
        # With containerd's image store an engine answers so if an image is removed while it makes the list.
        if tries == 1:
            raise
    return _listed(client, filters, tries - 1)


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
    mounts = [str(mount["Destination"]) for mount in container.attrs["Mounts"]]
    with TemporaryFile(dir=spool) as layer, TemporaryFile(dir=spool) as cleaned, TemporaryFile(dir=spool) as archive:
        saved = read_image(client, raw, layer, most_bytes, progressed)
        digest = clean_layer(layer, cleaned, mounts, keys)
        config = json.dumps(_new_config(saved.config, parent, digest, new)).encode()
        if saved.manifest is None:
            image_id = _write_image(archive, cleaned, config, new.reference)
        else:
            image_id = _write_manifest(archive, cleaned, config, saved.manifest, new.reference)
        archive.seek(0)
        client.images.load(archive)
    return image_id


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
    return copied(cleaned, None)


def _new_config(config: Mapping[str, Any], parent: dict[str, Any], digest: str, new: CommittedAs) -> dict[str, Any]:
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


def _write_image(archive: IO[bytes], layer: IO[bytes], config: bytes, reference: str) -> str:
    """Write an archive as `docker load` takes it, without layers that the engine has; return the image's id."""
    image_id = digest_of(config)
    names = [f"{diff_id.partition(':')[2]}/layer.tar" for diff_id in json.loads(config)["rootfs"]["diff_ids"]]
    name = f"{image_id.partition(':')[2]}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": names}]
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, name, config)
        _add_layer(tar, names[-1], layer)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return image_id


def _write_manifest(
    archive: IO[bytes], layer: IO[bytes], config: bytes, whole: Mapping[str, Any], reference: str
) -> str:
    """Do the same for an engine with containerd's image store. `whole` is the manifest with the layer as it was."""
    newest = {"mediaType": LAYER_TYPE, "digest": json.loads(config)["rootfs"]["diff_ids"][-1], "size": _size(layer)}
    described = {**whole["config"], "digest": digest_of(config), "size": len(config)}
    manifest = json.dumps({**whole, "config": described, "layers": [*whole["layers"][:-1], newest]}).encode()
    image_id = digest_of(manifest)
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, blob_name(described["digest"]), config)
        _add_layer(tar, blob_name(newest["digest"]), layer)
        _add(tar, blob_name(image_id), manifest)
        for name, document in layout_of(image_id, len(manifest), whole.get("mediaType") or MANIFEST_TYPE, reference):
            _add(tar, name, document)
    return image_id


def _size(file: IO[bytes]) -> int:
    return file.seek(0, io.SEEK_END)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _add_layer(tar: tarfile.TarFile, name: str, layer: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = _size(layer)
    layer.seek(0)
    tar.addfile(entry, layer)
