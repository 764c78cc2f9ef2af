"""What a play that waits is sent: its hosts and variables, as one line."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

AWAITS = "MUSTER_PLAY_AWAITS"
"""The variable that names where a playbook's order comes from."""


@dataclass(frozen=True, slots=True)
class PlayOrder:
    """The `limit` of a play's hosts, as `ansible-playbook --limit` takes it, and more extra variables."""

    limit: str
    variables: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def received_order(fifo: Path) -> PlayOrder | None:
    """Wait for the order, and take the fifo away as a sign of its receipt. None if nobody will send one any more."""
    try:
        # Without waiting for the other end, which may be gone; what is read then is the end.
        reading = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(reading, "rb") as order:
        os.set_blocking(reading, True)
        line = order.readline()
    if not line.endswith(b"\n"):
        return None
    fifo.unlink()
    return PlayOrder(**json.loads(line))
