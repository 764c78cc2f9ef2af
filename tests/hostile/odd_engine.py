"""A Docker engine's socket behind which something else answers, as a test says."""

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from email.message import Message


_UPGRADED = (
    b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n"
    b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
)


class OddEngine(ThreadingMixIn, UnixStreamServer):
    """An engine that answers with `status`, `headers` and `body`, but for its version; `requests` notes what it gets.

    `answers` has, by method, another status and body, `bodies` another body by the end of a path. After the head of an
    answer to a path with one of the `silent` ends it says nothing more; `left` is set once that client has left.
    With an `oldest_version` it refuses requests by an older one, as Docker does, and before it has read their bodies.
    `misses` has, by the end of a path, how many more requests it answers with 404.
    `links` has the targets of symbolic links in its containers, `received` the bodies of requests by the path.
    `spoken` has, by the end of a path, what a program says that starts there, in one piece with the answer's head.
    """

    daemon_threads = True
    request_queue_size = 64
    status = 200
    body = b"{}"
    oldest_version = "1.12"

    def __init__(self, path: Path) -> None:
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, Message]] = []
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.bodies: dict[str, bytes] = {}
        self.misses: dict[str, int] = {}
        self.links: dict[str, str] = {}
        self.received: dict[str, bytes] = {}
        self.silent: set[str] = set()
        self.spoken: dict[str, bytes] = {}
        self.left = threading.Event()
        super().__init__(str(path), _Handler)

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that read no further."""

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    @property
    def path(self) -> str:
        return str(self.server_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OddEngine

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        server = self.server
        is_version = self.path.endswith("/version")
        version = self.path[2:].partition("/")[0] if self.path.startswith("/v1.") else server.oldest_version
        is_refused = not is_version and version < server.oldest_version
        status, body = server.answers.get(self.command, (server.status, server.body))
        body = next((found for end, found in server.bodies.items() if self.path.partition("?")[0].endswith(end)), body)
        if is_version:
            versions = {"ApiVersion": max("1.41", server.oldest_version), "MinAPIVersion": server.oldest_version}
            status, body = 200, json.dumps(versions).encode()
        elif is_refused:
            refusal = f"client version {version} is too old. Minimum supported API version is {server.oldest_version}"
            status, body = 400, json.dumps({"message": refusal}).encode()
        else:
            server.requests.append((self.path, self.headers))
        for end in [end for end, rest in server.misses.items() if rest and self.path.partition("?")[0].endswith(end)]:
            status, body = 404, b'{"message": "content digest: not found"}'
            server.misses[end] -= 1
        self.close_connection = True
        # What is not read when the connection is closed takes the answer with it.
        sent = b"" if is_refused else self.rfile.read(int(self.headers.get("Content-Length", "0")))
        server.received[self.path.partition("?")[0].partition("/")[2].partition("/")[2]] = sent
        if (said := next((found for end, found in server.spoken.items() if self.path.endswith(end)), None)) is not None:
            self.wfile.write(_UPGRADED + said)
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        if self.command == "HEAD" and self.path.partition("?")[0].endswith("/archive"):
            (asked,) = parse_qs(urlsplit(self.path).query)["path"]
            said = json.dumps({"linkTarget": server.links.get(asked, "")}).encode()
            self.send_header("X-Docker-Container-Path-Stat", b64encode(said).decode())
        for name, value in server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if any(self.path.endswith(end) for end in server.silent):
            # As of a program that runs, and to which nobody says anything.
            self.rfile.read(1)
            server.left.set()
        elif self.command != "HEAD":
            frame = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            self.wfile.write(frame + b"0\r\n\r\n")

    do_GET = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - as http.server calls them


@contextmanager
def odd_engine(directory: Path) -> Iterator[OddEngine]:
    server = OddEngine(directory / "docker.sock")
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
