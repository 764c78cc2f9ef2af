"""An image's archive from an agent, on its way into another agent's engine.

`docker load` takes every image and tag that an archive names, and a compromised agent may send any archive. So the
archive is written anew: each file under a name of its own, and an index of ours that gives one image one tag. The index
comes last, once all content has the digests that follow from the image's id. An engine takes nothing from an archive
that breaks off before.

Engines keep images in one of two ways. A storage driver's image has the digest of its configuration as its id. One in
containerd's image store (the default of engines since Docker 29) has that of its manifest, or of an index of manifests.
The archive gets an index for both, so that either kind can load what the other has saved.
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
from muster.engine.image_layout import (
    CONFIG_TYPE,
    INDEX_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    blob_name,
    digest_of,
    layout_of,
)
from muster.engine.tar_stream import Kind, MalformedTarError, tar_entries

_MOST_FILES = 10_000
# The most bytes of a configuration or manifest; a larger file is a layer.
_MOST_OF_A_DOCUMENT = 4 << 20
_MOST_OF_ALL_DOCUMENTS = 64 << 20
_BLOB = re.compile(r"(?:\./)?blobs/sha256/([0-9a-f]{64})")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class RefusedArchiveError(Exception):
    """The archive does not hold the image, or holds more than it may."""


class CheckedArchive:
    """An archive for `docker load` that makes of `chunks`, an archive, the image `image_id` as `reference`.

    Iterate over it once, for its bytes. What belongs to the image is checked against its id, a digest. Raises
    RefusedArchiveError before the part of the archive without which an engine loads nothing: where a digest differs or
    is missing, or beyond `most_bytes`.
    """

    def __init__(self, chunks: Iterator[bytes], image_id: str, reference: str, most_bytes: int) -> None:
        if parse_image_name(reference) is None:
            raise RefusedArchiveError(f"{reference} is no image name")
        self._content = _Content(_Reader(chunks, most_bytes))
        self._image_id = image_id
        self._reference = reference
        self.ids = frozenset({image_id})
        """The ids that an engine may give the image, known at the end."""
        self.config_id: str | None = None
        """The digest of its configuration, known at the end; None where it has several."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._content.rewritten()
            image = self._content.image(self._image_id)
            self.config_id = image.files.config_id if image.files else None
            self.ids |= {known for known in (image.root, self.config_id) if known}
            yield from _indexes_of(image, self._reference)
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
    sizes: dict[str, int] = field(default_factory=dict)

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
            name = blob_name(f"sha256:{blob[1]}") if blob else f"files/{files}"
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
        self.sizes[digest] = size
        if kept:
            self.documents[digest] = kept
            if sum(map(len, self.documents.values())) > _MOST_OF_ALL_DOCUMENTS:
                raise RefusedArchiveError("its archive holds too much that is no layer")

    def image(self, image_id: str) -> "_Image":
        """Return the image of that id, all of which the archive holds."""
        root = self._document(image_id)
        if "rootfs" in root:
            layers = _listed(root["rootfs"], "diff_ids")
            manifest = self._manifest_of(image_id, layers)
            files = _Files(image_id, self._name(image_id), tuple(map(self._name, layers)))
            return _Image(digest_of(manifest), len(manifest), MANIFEST_TYPE, files, manifest)
        self._check_manifest(image_id, root)
        kind = root.get("mediaType") or (INDEX_TYPE if "manifests" in root else MANIFEST_TYPE)
        return _Image(image_id, len(self.documents[image_id]), kind, self._runnable(root), None)

    def _manifest_of(self, config: str, layers: list[Any]) -> bytes:
        parts = [{"mediaType": LAYER_TYPE, **self._descriptor(layer)} for layer in layers]
        described = {"mediaType": CONFIG_TYPE, **self._descriptor(config)}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": described, "layers": parts}
        return json.dumps(manifest).encode()

    def _descriptor(self, digest: object) -> dict[str, Any]:
        self._name(digest)
        return {"digest": digest, "size": self.sizes[str(digest)]}

    def _runnable(self, root: Mapping[str, Any]) -> "_Files | None":
        """Return the files of the one manifest that a container can run; None where there is none, or several.

        Beside an image's manifest an index may hold one of statements about its build, for an unknown system.
        """
        manifests = [self._document(child) for child in self._held(root)] if "manifests" in root else [root]
        found = [files for files in map(self._files_of, manifests) if files is not None]
        return found[0] if len(found) == 1 else None

    def _files_of(self, manifest: Mapping[str, Any]) -> "_Files | None":
        digest, layers = _digest_of(manifest["config"]), list(map(_digest_of, manifest["layers"]))
        try:
            config = self._document(digest)
            is_whole = len(_listed(config.get("rootfs"), "diff_ids")) == len(layers)
        except RefusedArchiveError:  # of another kind than images
            return None
        if not is_whole or config.get("os") == "unknown":
            return None
        return _Files(str(digest), self._name(digest), tuple(map(self._name, layers)))

    def _held(self, index: Mapping[str, Any]) -> list[str]:
        """Return the digests of an index's manifests that the archive holds."""
        listed = map(_digest_of, _listed(index, "manifests"))
        return [digest for digest in listed if isinstance(digest, str) and digest in self.names]

    def _check_manifest(self, digest: str, manifest: Mapping[str, Any]) -> None:
        """Check that a manifest's configuration and layers are there, or those of one of an index's manifests."""
        if "manifests" not in manifest:
            for part in (manifest.get("config"), *_listed(manifest, "layers")):
                self._blob(_digest_of(part))
            return
        held = self._held(manifest)
        if not held:
            raise RefusedArchiveError(f"its archive lacks every manifest of {digest}")
        for part in held:
            child = self._document(part)
            if "manifests" in child:
                raise RefusedArchiveError(f"its file {part} is no image manifest")
            self._check_manifest(part, child)

    def _document(self, digest: object) -> Mapping[str, Any]:
        self._name(digest)
        try:
            document = json.loads(self.documents[str(digest)])
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


@dataclass(frozen=True, slots=True)
class _Files:
    """An image for an engine with a storage driver: its id there, and the names of its files in the archive."""

    config_id: str
    config: str
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Image:
    """An image as both kinds of engines know it.

    `root` is the digest of its manifest or index. `files` are None where it has not just one configuration. `manifest`
    is one that was written for the archive.
    """

    root: str
    root_size: int
    root_type: str
    files: _Files | None
    manifest: bytes | None


def _indexes_of(image: _Image, reference: str) -> Iterator[bytes]:
    """Yield the files that make an image of the archive: for engines with a storage driver, and for containerd's."""
    if image.manifest is not None:
        yield from _file_of(blob_name(image.root), image.manifest)
    if image.files is not None:
        listed = [{"Config": image.files.config, "RepoTags": [reference], "Layers": image.files.layers}]
        yield from _file_of("manifest.json", json.dumps(listed).encode())
    for name, document in layout_of(image.root, image.root_size, image.root_type, reference):
        yield from _file_of(name, document)


def _file_of(name: str, content: bytes) -> Iterator[bytes]:
    yield _header(name, len(content))
    yield content
    yield bytes(-len(content) % tarfile.BLOCKSIZE)


def _header(name: str, size: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)
