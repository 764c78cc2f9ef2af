"""The Docker Engine API over the engine's local socket, with the standard library alone (ADR 2)."""

from __future__ import annotations

import http.client
import io
import json
import re
import socket
import struct
import tarfile
import threading
import urllib.parse
from base64 import b64decode
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    Json = Any
    Body = dict[str, Any] | bytes | None
    Query = dict[str, str] | None

# The version whose answers the agent's modules were written for; an engine that has dropped it is asked by its oldest.
API_VERSION = "1.41"
SOCKET_PATH = "/var/run/docker.sock"
REQUEST_TIMEOUT_S = 120
# What is said of all containers waits no longer than this for the description of one.
DESCRIPTION_PATIENCE_S = 10
_MOST_OF_A_NAME = 80
_MOST_OF_AN_ERROR = 64 << 10
_MOST_OF_A_FILE = 4 << 20
_MOST_OF_AN_ENTRY = 128 << 10
_TOO_OLD = "is too old"
_FAILED = 500
# The engine's words for a path that leads through a file.
_NOT_A_DIRECTORY = ": not a directory"
_VERSION = re.compile(r"1\.[0-9]{1,3}")
# A reference or an id, with neither an empty part nor one of dots alone, which would lead elsewhere.
_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?"
_IMAGE_NAME = re.compile(rf"{_PART}(/{_PART})*(@[a-z0-9+._-]+:[0-9a-f]+)?")


class EngineError(Exception):
    """The Docker engine refused a request, or did not answer (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def with_remedy(self) -> str:
        """Return one line for an operator: what is wrong, and what to do about it."""
        if self.status == 0:
            return f"{self}. Start it (systemctl start docker), or install it with playbooks/site.yml."
        return f"the Docker engine refuses a request: {self}"


class EngineSilentError(EngineError):
    """The Docker engine took a request, and has not answered it in time."""


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, socket_path: str, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._socket_path)


class EngineApi:
    """A client of the engine. Each call has a connection of its own, so that threads may share it."""

    def __init__(self, socket_path: str = SOCKET_PATH) -> None:
        self._socket_path = socket_path
        self.version = API_VERSION
        self._facts: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def info(self) -> dict[str, Any]:
        return self._json("GET", "/info")

    def facts(self) -> dict[str, Any]:
        """Return what the engine says of itself, as it was at the first look: the answer takes it a while."""
        with self._lock:
            if self._facts is None:
                self._facts = self.info()
            return self._facts

    def expect_facts(self) -> None:
        """Begin to read the facts, so that `facts` has them sooner. Whatever goes wrong, `facts` tries again."""

        def read() -> None:
            with suppress(EngineError):
                self.facts()

        threading.Thread(target=read, daemon=True).start()

    def image(self, reference: str) -> dict[str, Any]:
        """Raise EngineError 404 for what no image can be called: its path would be another of the engine's."""
        if not _IMAGE_NAME.fullmatch(reference):
            raise EngineError(404, f"{reference[:_MOST_OF_A_NAME]!r} is not the name of an image")
        return self._json("GET", f"/images/{reference}/json")

    def images(self, tries: int = 5) -> list[dict[str, Any]]:
        try:
            return self._json("GET", "/images/json")
        except EngineError as error:
            # With containerd's image store an engine answers so if an image is removed while it makes the list.
            if error.status != 404 or tries == 1:
                raise
        return self.images(tries - 1)

    def networks(self, *labels: str) -> list[dict[str, Any]]:
        """Return all networks with these labels."""
        return self._json("GET", "/networks", {"filters": json.dumps({"label": labels})})

    def network(self, name: str) -> dict[str, Any]:
        return self._json("GET", f"/networks/{name}")

    def is_unused(self, network: str) -> bool:
        """Return whether a network is there and no container that runs is on it."""
        try:
            return not self.network(network).get("Containers")
        except EngineError as error:
            if error.status != 404:
                raise
            return False

    def create_network(self, body: dict[str, Any]) -> str:
        return self._json("POST", "/networks/create", body=body)["Id"]

    def connect_network(self, name: str, container_id: str, alias: str = "") -> None:
        """Put a container on a network, under a name that the others there know it by."""
        body = {"Container": container_id, "EndpointConfig": {"Aliases": [alias] if alias else []}}
        self._act("POST", f"/networks/{name}/connect", body=body)

    def disconnect_network(self, name: str, container_id: str) -> None:
        self._act("POST", f"/networks/{name}/disconnect", body={"Container": container_id, "Force": True})

    def remove_network(self, name: str) -> None:
        """Remove a network; one that is gone already is fine."""
        self._act("DELETE", f"/networks/{name}", fine=(404,))

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """Return all containers with these labels, also those that do not run."""
        return self._json("GET", "/containers/json", {"all": "1", "filters": json.dumps({"label": labels})})

    def container(self, container_id: str, timeout_s: float = REQUEST_TIMEOUT_S) -> dict[str, Any]:
        """Raise EngineSilentError while the engine is at work on the container, be it for as long as a driver hangs."""
        return self._json("GET", f"/containers/{container_id}/json", timeout_s=timeout_s)

    def create_container(self, body: dict[str, Any], name: str = "") -> str:
        return self._json("POST", "/containers/create", {"name": name} if name else None, body)["Id"]

    def start_container(self, container_id: str) -> None:
        """Start a container; one that runs (304) is fine."""
        self._act("POST", f"/containers/{container_id}/start", fine=(304,))

    def stop_container(self, container_id: str, grace_s: int) -> None:
        """Send the stop signal, and SIGKILL after the grace; a container that does not run (304) is fine."""
        path = f"/containers/{container_id}/stop"
        self._act("POST", path, {"t": str(grace_s)}, fine=(304,), timeout_s=grace_s + REQUEST_TIMEOUT_S)

    def remove_container(self, container_id: str, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Remove, killed if need be, with its anonymous volumes; one that is gone already is fine.

        Raises EngineError 409 while another removal of it is under way. One that is not over in time goes on.
        """
        query = {"force": "1", "v": "1"}
        self._act("DELETE", f"/containers/{container_id}", query, fine=(404,), timeout_s=timeout_s)

    def logs(self, container_id: str, tail: str = "all") -> Iterator[bytes]:
        """Yield the output, both streams as they came, in pieces and without the engine's framing."""
        query = {"stdout": "1", "stderr": "1", "tail": tail}
        with self._request("GET", f"/containers/{container_id}/logs", query) as response:
            yield from unframed(response)

    def path_stat(self, container_id: str, path: str) -> dict[str, Any] | None:
        """Return what the engine says of a path in a container (name, size, mode, linkTarget), or None."""
        try:
            try:
                return self._path_stat("HEAD", container_id, path)
            except EngineError as error:
                if error.status != _FAILED:
                    raise
                # Why, only an answer with a body tells.
                return self._path_stat("GET", container_id, path)
        except EngineError as error:
            if error.status == 404 or (error.status == _FAILED and str(error).endswith(_NOT_A_DIRECTORY)):
                return None
            raise

    def _path_stat(self, method: str, container_id: str, path: str) -> dict[str, Any]:
        with self._request(method, f"/containers/{container_id}/archive", {"path": path}) as response:
            try:
                return json.loads(b64decode(response.headers["X-Docker-Container-Path-Stat"] or ""))
            except ValueError as error:
                raise EngineError(response.status, f"it says nothing of {path}") from error

    def read_file(self, container_id: str, path: str) -> bytes | None:
        """Return a file's bytes, a symbolic link followed; None when there is no such file.

        Raise EngineError 400 for one that is larger than an account file can be: an image's maker chose it.
        """
        stat = self.path_stat(container_id, path)
        if stat is None:
            return None
        query = {"path": stat["linkTarget"] or path}
        try:
            with self._request("GET", f"/containers/{container_id}/archive", query) as response:
                return _first_file(path, response.read(_MOST_OF_A_FILE + 1))
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    def folder_entry(self, container_id: str, path: str) -> tarfile.TarInfo | None:
        """Return what the engine's archive of a directory says of the directory itself; None if it says nothing."""
        try:
            with self._request("GET", f"/containers/{container_id}/archive", {"path": path}) as response:
                beginning = response.read(_MOST_OF_AN_ENTRY)
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        try:
            with tarfile.open(fileobj=io.BytesIO(beginning), mode="r:") as archive:
                return archive.next()
        except tarfile.TarError:
            return None

    def put_archive(self, container_id: str, tar_bytes: bytes) -> None:
        """Unpack a tar at the container's root."""
        self._act("PUT", f"/containers/{container_id}/archive", {"path": "/"}, tar_bytes)

    def _json(
        self,
        method: str,
        path: str,
        query: Query = None,
        body: Body = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Json:
        with self._request(method, path, query, body, timeout_s=timeout_s) as response:
            try:
                return json.load(response)
            except (ValueError, RecursionError) as error:
                raise EngineError(response.status, f"it answers {path} with something that is no JSON") from error

    def _act(
        self,
        method: str,
        path: str,
        query: Query = None,
        body: Body = None,
        *,
        fine: tuple[int, ...] = (),
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        try:
            with self._request(method, path, query, body, timeout_s=timeout_s) as response:
                response.read()
        except EngineError as error:
            if error.status not in fine:
                raise

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        query: Query = None,
        body: Body = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Iterator[http.client.HTTPResponse]:
        version = self.version
        with ExitStack() as opened:
            try:
                answer = self._answer(version, method, path, query, body, timeout_s=timeout_s)
                response = opened.enter_context(answer)
            except EngineError as error:
                if error.status != 400 or _TOO_OLD not in str(error):
                    raise
                self.version = self._oldest_version(version, error)
                answer = self._answer(self.version, method, path, query, body, timeout_s=timeout_s)
                response = opened.enter_context(answer)
            yield response

    def _oldest_version(self, refused: str, refusal: EngineError) -> str:
        """Return the oldest version of the API that the engine has, after it has refused one.

        Raises the refusal if the engine names no other.
        """
        with self._answer("", "GET", "/version", None, None, timeout_s=REQUEST_TIMEOUT_S) as response:
            try:
                found = str(json.load(response)["MinAPIVersion"])
            except (ValueError, RecursionError, KeyError, TypeError) as error:
                raise refusal from error
        if not _VERSION.fullmatch(found) or found == refused:
            raise refusal
        return found

    @contextmanager
    def _answer(
        self, version: str, method: str, path: str, query: Query, body: Body, *, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        prefix = f"/v{version}" if version else ""
        url = f"{prefix}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        headers = {"Host": "docker", "Connection": "close"}
        if isinstance(body, dict):
            headers["Content-Type"] = "application/json"
            body = json.dumps(body).encode()
        elif body is not None:
            headers["Content-Type"] = "application/x-tar"
        connection = _SocketConnection(self._socket_path, timeout_s)
        try:
            # An engine may refuse a request, as one by a version that it has dropped, before it has read all of it.
            with suppress(BrokenPipeError):
                connection.request(method, url, body, headers)
            with connection.getresponse() as response:
                if not 200 <= response.status < 300:
                    message = _error_message(response.read(_MOST_OF_AN_ERROR), response.reason)
                    raise EngineError(response.status, message or f"it answers {path} with {response.status}")
                yield response
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            kind = EngineSilentError if isinstance(error, socket.timeout) else EngineError
            raise kind(0, f"the Docker engine does not answer at {self._socket_path}: {reason}") from error
        finally:
            connection.close()


def unframed(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the payloads of a log stream's frames: a byte for the stream, three of padding, the length, the payload."""
    while True:
        header = _exactly(stream, 8)
        if len(header) < 8:
            return
        yield _exactly(stream, struct.unpack(">4xI", header)[0])


def _exactly(stream: IO[bytes], size: int) -> bytes:
    pieces = []
    while size:
        piece = stream.read(size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _first_file(path: str, tar_bytes: bytes) -> bytes | None:
    """Return the file's bytes. They are read by root, so that they are counted before."""
    if len(tar_bytes) <= _MOST_OF_A_FILE:
        try:
            with tarfile.open(fileobj=io.BytesIO(tar_bytes), mode="r:") as archive:
                member = archive.next()
                if member is None or not member.isreg():
                    return None
                content = archive.extractfile(member)
                if member.size <= _MOST_OF_A_FILE:
                    return content.read() if content is not None else None
        except tarfile.TarError as error:
            raise EngineError(200, f"it answers {path} with something that is no archive") from error
    raise EngineError(400, f"{path} of the image is larger than {_MOST_OF_A_FILE >> 20} MiB")


def _error_message(body: bytes, reason: str) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace") or reason
    return _one_line(message)


def _one_line(text: str) -> str:
    return " ".join(text.split())
