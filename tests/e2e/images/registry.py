"""A registry that serves one image, for engines on this machine."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_LAYER_BYTES = 4 << 20


@dataclass(frozen=True)
class Registry:
    """A registry: it has `image`, denies `secret` to everybody, and knows nothing else."""

    address: str
    image_id: str
    layer_bytes: int

    @property
    def image(self) -> str:
        return f"{self.address}/there:1"

    @property
    def secret(self) -> str:
        return f"{self.address}/secret:1"

    @property
    def unknown(self) -> str:
        return f"{self.address}/there:2"


@dataclass(frozen=True)
class ServedImage:
    """What a registry answers about an image, by path."""

    files: dict[str, bytes]
    id: str
    layer_bytes: int


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _layer() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("noise")
        entry.size = _LAYER_BYTES
        archive.addfile(entry, io.BytesIO(os.urandom(_LAYER_BYTES)))
    return file.getvalue()


def served_image(architecture: str) -> ServedImage:
    """Return a new image `there:1` with one layer of noise."""
    plain = _layer()
    layer = gzip.compress(plain, 1)
    rootfs = {"type": "layers", "diff_ids": [_digest(plain)]}
    config = json.dumps({"architecture": architecture, "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": _digest(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(layer),
                    "digest": _digest(layer),
                }
            ],
        }
    ).encode()
    files = {
        "/v2/": b"{}",
        "/v2/there/manifests/1": manifest,
        f"/v2/there/manifests/{_digest(manifest)}": manifest,
        f"/v2/there/blobs/{_digest(config)}": config,
        f"/v2/there/blobs/{_digest(layer)}": layer,
    }
    return ServedImage(files, _digest(config), len(layer))


def content_type(path: str) -> str:
    return _MANIFEST if "/manifests/" in path else "application/octet-stream"


@contextmanager
def registry(architecture: str) -> Iterator[Registry]:
    image = served_image(architecture)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Engines with containerd's image store ask by TLS first, and need an answer that is HTTP to ask otherwise.
        default_request_version = "HTTP/1.0"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self.wfile.write(self._answer())

        def _answer(self) -> bytes:
            body = image.files.get(self.path)
            status, kind = 200, content_type(self.path)
            if body is None:
                status, code = (403, "DENIED") if "/secret/" in self.path else (404, "MANIFEST_UNKNOWN")
                body = json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode()
                kind = "application/json"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Content-Digest", _digest(body))
            self.end_headers()
            return body

        def log_message(self, *_arguments: object) -> None:
            """Print nothing: requests are no news."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Registry(f"127.0.0.1:{server.server_port}", image.id, image.layer_bytes)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
