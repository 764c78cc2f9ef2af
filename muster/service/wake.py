"""A nudge for the daemon. It only wakes: what is true is read again from the store and the agents."""

import socket
from pathlib import Path

LOOK = b"queue"
LOOK_AT_AGENTS = b"agents"


def wake(path: Path, message: bytes = LOOK) -> bool:
    """Whether a daemon was there to be woken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            sender.sendto(message, str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except BlockingIOError:
            return True  # its queue is full of nudges
    return True
