"""A web server that was broken into, as its broker sees it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from muster.service.service import Service
from muster.web.separation.broker import Broker
from muster.web.separation.line import Line
from muster.web.separation.operations import Credential


@dataclass
class Server:
    """What somebody has who took over the server: the socket by which it makes its connections."""

    control: socket.socket
    line: Line = field(init=False)

    def __post_init__(self) -> None:
        self.line = Line(self.control)

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"+"], [theirs.fileno()])
        with ours:
            # A broker that does not answer fails a test, and does not hang it.
            ours.settimeout(60)
            yield ours

    def answers(self) -> bool:
        """Return whether the broker serves."""
        return self.line.request("server.heartbeat", None) is not None


@contextmanager
def brokered_server(service: Service) -> Iterator[Server]:
    """Start a broker for a server, and yield the server."""
    ours, theirs = socket.socketpair()
    serving = threading.Thread(target=Broker(service, None).serve, args=(theirs,))
    serving.start()
    with ours:
        yield Server(ours)
    serving.join()
    theirs.close()


def token(secret: str) -> Credential:
    return Credential(kind="token", secret=secret)
