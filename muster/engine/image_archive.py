"""An image's archive from an agent, on its way into another agent's engine.

`docker load` takes every image and tag that an archive names, and a compromised agent may send any archive. So the
archive is written anew: each file under a name of its own, and an index of ours that gives one image one tag. The index
comes last, once all content has the digests that follow from the image's id. An engine takes nothing from an archive
that breaks off before.
"""

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.images.names import parse_image_name
from muster.core.values.units import format_bytes
from muster.engine.tar_stream import Kind, MalformedTarError, tar_entries

_MOST_FILES = 10_000
# The most bytes of a configuration or manifest; a larger file is a layer.
_MOST_OF_A_DOCUMENT = 4 << 20
_MOST_OF_ALL_DOCUMENTS = 64 << 20
_BLOB = re.compile(r"(?:\./)?blobs/sha256/([0-9a-f]{64})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


class RefusedArchiveError(Exception):
    """The archive does not hold the image, or holds more than it may."""


def checked_archive(chunks: Iterator[bytes], image_id: str, reference: str, most_bytes: int) -> Iterator[bytes]:
    """Yield an archive for `docker load` that makes of `chunks`, an archive, the image `image_id` as `reference`.

    What belongs to the image is checked against its id, a digest. Raises RefusedArchiveError before the part of the
    archive without which an engine loads nothing: where a digest differs or is missing, or beyond `most_bytes`.
    """
    content = _Content(_Reader(chunks, most_bytes))
    try:
        yield from content.rewritten()
        yield from content.index_of(image_id, reference)
    except MalformedTarError as error:
        raise RefusedArchiveError(f"its answer is no image archive: {error}") from None
    yield bytes(2 * tarfile.BLOCKSIZE)


class _Reader:
    """A file, read once, of chunks with at most `most` bytes."""

    def __init__(self, chunks: Iterator[bytes], most: int) -> None:
        self._chunks = chunks
        self._rest = b""
        self._most = most
        self._done = 0

    def read(self, size: int) -> bytes:
        parts = []
        while size:
            if not self._rest:
                self._rest = next(self._chunks, b"")
                if not self._rest:
                    break
                self._done += len(self._rest)
                if self._done > self._most:
                    raise RefusedArchiveError(
                        f"it sends more than image_max_size allows, which is {format_bytes(self._most)}"
                    )
            part, self._rest = self._rest[:size], self._rest[size:]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


@dataclass
class _Content:
    """The archive's files by digest: the names that they are given, and what documents say."""

    reader: _Reader
    names: dict[str, str] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)

    def rewritten(self) -> Iterator[bytes]:
        """Yield each file of the archive under the name that its digest or its place gives it."""
        files = 0
        for entry, content in tar_entries(self.reader.read):
            if entry.kind is not Kind.FILE:
                continue
            files += 1
            if files > _MOST_FILES:
                raise RefusedArchiveError(f"its archive holds more than {_MOST_FILES} files")
            blob = _BLOB.fullmatch(entry.path)
            name = f"blobs/sha256/{blob[1]}" if blob else f"files/{files}"
            yield from self._file(name, entry.size, content, f"sha256:{blob[1]}" if blob else None)

    def _file(self, name: str, size: int, content: Iterator[bytes], expected: str | None) -> Iterator[bytes]:
        yield _header(name, size)
        hashed = hashlib.sha256()
        kept: bytes | None = b""
        for chunk in content:
            hashed.update(chunk)
            if kept is not None:
                kept = kept + chunk if size <= _MOST_OF_A_DOCUMENT and (kept or chunk)[:1] == b"{" else None
            yield chunk
        yield bytes(-size % tarfile.BLOCKSIZE)
        digest = f"sha256:{hashed.hexdigest()}"
        if expected not in {None, digest}:
            raise RefusedArchiveError(f"its file {expected} has another content")
        self.names[digest] = name
        if kept:
            self.documents[digest] = kept
            if sum(map(len, self.documents.values())) > _MOST_OF_ALL_DOCUMENTS:
                raise RefusedArchiveError("its archive holds too much that is no layer")

    def index_of(self, image_id: str, reference: str) -> Iterator[bytes]:
        """Yield the files that make an image of the archive."""
        root = self._document(image_id)
        if "rootfs" in root:
            yield from self._docker_index(image_id, root, reference)
        else:
            self._check_manifest(image_id, root)
            yield from _oci_index(image_id, root, len(self.documents[image_id]), reference)

    def _docker_index(self, image_id: str, config: Mapping[str, Any], reference: str) -> Iterator[bytes]:
        layers = [self._name(digest) for digest in _listed(config["rootfs"], "diff_ids")]
        manifest = [{"Config": self._name(image_id), "RepoTags": [reference], "Layers": layers}]
        yield from _document_file("manifest.json", manifest)

    def _check_manifest(self, digest: str, manifest: Mapping[str, Any]) -> None:
        """Check that a manifest's configuration and layers are there, or those of one of an index's manifests."""
        if "manifests" not in manifest:
            for part in (manifest.get("config"), *_listed(manifest, "layers")):
                self._blob(_digest_of(part))
            return
        held = [part for part in map(_digest_of, _listed(manifest, "manifests")) if part in self.names]
        if not held:
            raise RefusedArchiveError(f"its archive lacks every manifest of {digest}")
        for part in held:
            child = self._document(part)
            if "manifests" in child:
                raise RefusedArchiveError(f"its file {part} is no image manifest")
            self._check_manifest(part, child)

    def _document(self, digest: str) -> Mapping[str, Any]:
        self._name(digest)
        try:
            document = json.loads(self.documents[digest])
        except (KeyError, ValueError, RecursionError):
            raise RefusedArchiveError(f"its file {digest} is no image configuration or manifest") from None
        return document if isinstance(document, dict) else {}

    def _name(self, digest: object) -> str:
        if not isinstance(digest, str) or digest not in self.names:
            shown = digest if isinstance(digest, str) and _DIGEST.fullmatch(digest) else "a file"
            raise RefusedArchiveError(f"its archive lacks {shown}, which belongs to the image")
        return self.names[digest]

    def _blob(self, digest: object) -> None:
        if not self._name(digest).startswith("blobs/"):
            raise RefusedArchiveError(f"its archive holds {digest} under another name")


def _listed(document: object, key: str) -> list[Any]:
    found = document.get(key) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise RefusedArchiveError(f"the image's description has no list of {key}")
    return found


def _digest_of(descriptor: object) -> object:
    return descriptor.get("digest") if isinstance(descriptor, dict) else None


def _oci_index(digest: str, root: Mapping[str, Any], size: int, reference: str) -> Iterator[bytes]:
    """Yield what says of a manifest or an index how it is called, as engines with containerd's image store read it."""
    name = parse_image_name(reference)
    if name is None:
        raise RefusedArchiveError(f"{reference} is no image name")
    kind = _INDEX_TYPE if "manifests" in root else _MANIFEST_TYPE
    annotations = {
        "io.containerd.image.name": f"{name.registry}/{name.path}:{name.tag or 'latest'}",
        "org.opencontainers.image.ref.name": name.tag or "latest",
    }
    entry = {"mediaType": root.get("mediaType") or kind, "digest": digest, "size": size, "annotations": annotations}
    yield from _document_file("oci-layout", {"imageLayoutVersion": "1.0.0"})
    yield from _document_file("index.json", {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [entry]})


def _document_file(name: str, document: object) -> Iterator[bytes]:
    encoded = json.dumps(document).encode()
    yield _header(name, len(encoded))
    yield encoded
    yield bytes(-len(encoded) % tarfile.BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)
