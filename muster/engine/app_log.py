"""What an app of a running session has written: main1 keeps it in memory, beside the kernel's own log."""

from collections.abc import Iterator
from typing import cast

from docker.models.containers import Container

# The older of the two files first.
_ALL = 'cd /run/muster-apps && for f in "$2.log.1" "$2.log"; do [ ! -e "$f" ] || "$1" cat "$f"; done'
_LAST = f'({_ALL}) | "$1" tail -n "$3"'
# By name: a new file takes the old one's place when that is full.
_FOLLOW = 'exec "$1" tail -n "$3" -F "/run/muster-apps/$2.log"'


def app_log(container: Container, runtime_path: str, app: str, *, tail: int | None, follow: bool) -> Iterator[bytes]:
    """Yield the app's output in pieces; only the last `tail` lines, and on until main1 ends with `follow`."""
    busybox = f"{runtime_path}/bin/busybox"
    script = _FOLLOW if follow else _ALL if tail is None else _LAST
    lines = "+1" if tail is None else str(tail)
    done = container.exec_run([busybox, "sh", "-c", script, "sh", busybox, app, lines], stream=True, stderr=False)
    yield from cast("Iterator[bytes]", done.output)
