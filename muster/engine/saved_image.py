"""An image's configuration and newest layer, read out of the archive that its engine saves.

The archive of an engine with a storage driver names them by the digests that the engine has told before. That of an
engine with containerd's image store holds blobs, in the order of their digests: which one is the newest layer, and
which the configuration, is only in the manifest. So such an archive is read twice, each time as far as is needed.
"""

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import docker

from muster.core.values.errors import ImageError

_CHUNK = 1 << 20
_MOST_OF_A_DOCUMENT = 4 << 20
# An archive's headers come on top of its files, and may double what small ones take.
_HEADERS = 16 << 20
_GZIP = b"\x1f\x8b"
# A field of the engine's status if its images are in containerd's store.
_DRIVER_TYPE = "driver-type"


@dataclass(frozen=True, slots=True)
class SavedImage:
    """What is said of an image: its configuration, and with containerd's image store its manifest."""

    config: Mapping[str, Any]
    manifest: Mapping[str, Any] | None = None


def read_image(
    client: docker.DockerClient,
    image_id: str,
    layer: IO[bytes],
    most_bytes: int,
    progressed: Callable[[int, int], None],
) -> SavedImage:
    """Read an image from its engine, and write its newest layer to `layer`, uncompressed.

    Raises ImageError where the archive holds more than twice `most_bytes` or lacks a part, and as the Docker SDK.
    """
    attrs = client.images.get(image_id).attrs
    newest, size = str(attrs["RootFS"]["Layers"][-1]), int(attrs["Size"])
    limit = 2 * most_bytes + _HEADERS
    hexes = {_hex(image_id)}

    def stream(told: Callable[[int, int], None]) -> "_Stream":
        return _Stream(client.api.get_image(image_id), size, limit, told)

    try:
        if not _has_manifests(client):
            manifest, parts = None, {"layer.tar", _hex(newest)}
        else:
            with stream(lambda _done, _total: None) as saved:
                manifest = _document(saved, hexes)
            hexes, parts = {_hex(manifest["config"]["digest"])}, {_hex(manifest["layers"][-1]["digest"])}
        with stream(progressed) as saved:
            config = _config_and_layer(saved, hexes, parts, newest, layer, limit)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        raise _unreadable() from None
    progressed(size, size)
    return SavedImage(config, manifest)


def _has_manifests(client: docker.DockerClient) -> bool:
    """Return whether the engine keeps images in containerd's store, where an image's id is that of a manifest."""
    return _DRIVER_TYPE in {entry[0] for entry in client.info().get("DriverStatus") or ()}


def _hex(digest: str) -> str:
    return digest.partition(":")[2]


def _files(stream: "_Stream") -> Iterator[tuple[str, tarfile.TarInfo, io.BufferedReader]]:
    """Yield each file's last name without the suffix of a document, its entry and its content."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if isinstance(content, io.BufferedReader):
                yield member.name.rpartition("/")[2].removesuffix(".json"), member, content


def _document(stream: "_Stream", names: set[str]) -> dict[str, Any]:
    for name, member, content in _files(stream):
        if name in names and member.size <= _MOST_OF_A_DOCUMENT:
            return dict(json.load(content))
    raise _unreadable()


def _config_and_layer(
    stream: "_Stream", configs: set[str], layers: set[str], newest: str, layer: IO[bytes], limit: int
) -> dict[str, Any]:
    """Return the configuration, and write the layer of the digest `newest` to `layer`; read no further than both."""
    config: dict[str, Any] | None = None
    has_layer = False
    for name, member, content in _files(stream):
        if name in configs and member.size <= _MOST_OF_A_DOCUMENT:
            config = dict(json.load(content))
        elif not has_layer and name in layers:
            # Older engines do not name a layer's file by its digest.
            layer.seek(0)
            layer.truncate()
            has_layer = _unpacked(content, layer, limit) == newest
        if config is not None and has_layer:
            return config
    raise _unreadable()


def _unpacked(content: io.BufferedReader, layer: IO[bytes], limit: int) -> str:
    """Copy a layer, uncompressed; return its digest. Raises ImageError where it has more than `limit` bytes."""
    if content.peek(2)[:2] == _GZIP:
        with gzip.GzipFile(fileobj=content) as plain:
            return copied(plain, layer, limit)
    return copied(content, layer, limit)


def copied(source: IO[bytes] | gzip.GzipFile, target: IO[bytes] | None, limit: int | None = None) -> str:
    """Copy all that there is to read; return its digest. Raises ImageError where it has more than `limit` bytes."""
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK):
        done += len(chunk)
        if limit is not None and done > limit:
            raise _too_much()
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return f"sha256:{digest.hexdigest()}"


def _unreadable() -> ImageError:
    return ImageError("the agent's engine keeps images in a way from which they cannot be committed", permanent=True)


def _too_much() -> ImageError:
    return ImageError("the agent's engine sends more than the image can have", permanent=True)


class _Stream(io.RawIOBase):
    """An engine's chunks as a file that is read once, with a limit: a compromised agent's would fill a disk."""

    def __init__(
        self, chunks: Iterator[bytes], total: int, most_bytes: int, progressed: Callable[[int, int], None]
    ) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self._read, self._most = 0, most_bytes
        self._done, self._total = 0, total
        self._progressed = progressed

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Read no more: the engine need not send the rest."""
        if isinstance(self._chunks, Generator):
            self._chunks.close()
        super().close()

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as in io.RawIOBase
        if not self._rest:
            self._rest = next(self._chunks, b"")
            self._read += len(self._rest)
            if self._read > self._most:
                raise _too_much()
            self._done = min(self._done + len(self._rest), self._total)
            self._progressed(self._done, self._total)
        taken, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)
