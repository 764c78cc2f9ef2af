"""A nudge for the loop that works the queue. It carries no facts: the loop reads store and agents again."""

import socket
from pathlib import Path

from muster.settings import Settings
from muster.store.store import Store

QUEUE = "queue"
AGENTS = "agents"


def wake(settings: Settings, store: Store, message: str = QUEUE) -> None:
    """Wake the loop: by the database where possible, which reaches any control node; else by the local socket."""
    if not store.notify(message):
        send(settings.wake_socket, message)


def send(path: Path, message: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(message.encode(), str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return  # nothing works the queue now; the next worker reads it anyhow
        except BlockingIOError:
            return  # its queue is full of nudges
