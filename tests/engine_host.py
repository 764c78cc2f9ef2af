"""An engine on this machine with a network, mounts and /run of its own."""

import ctypes
import os
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

_NAMESPACES = ("net", "mnt")
# Its containers' mounts and networks must not be this machine's: an engine without a bridge removes the docker0 that it
# finds, and one that shares /run shares the socket.
_START = """
set -eu
{prepare}
mkdir "$1/data"
mount --bind "$1/data" /var/lib/docker
mount -t tmpfs -o mode=0755 run /run
ip link set lo up
echo '{{}}' >"$1/daemon.json"
directory=$1
shift
exec dockerd --host=unix:///run/docker.sock --host="unix://$directory/docker.sock" \\
  --config-file="$directory/daemon.json" --bridge=none --iptables=false --ip-forward=false "$@"
"""


class EngineHost:
    """The engine's namespaces."""

    def __init__(self, engine: subprocess.Popen[bytes]) -> None:
        self._pid = engine.pid

    def do(self, action: Callable[[], object]) -> None:
        """Do something there, in a process of its own. Raises AssertionError with what it raised."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                self._enter()
                action()
            except BaseException:  # noqa: BLE001 - whatever it is, the test raises it
                os.write(writing, traceback.format_exc().encode()[-4000:])
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as output:
            said = output.read().decode()
        os.waitpid(child, 0)
        assert not said, said

    def _enter(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for name in _NAMESPACES:
            descriptor = os.open(f"/proc/{self._pid}/ns/{name}", os.O_RDONLY)
            assert libc.setns(descriptor, 0) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def engine_host(
    directory: Path,
    *,
    options: Sequence[str] = (),
    prepare: str = "",
    environment: Mapping[str, str] | None = None,
) -> Iterator[EngineHost]:
    """Start an engine with options and variables. A shell runs `prepare` among its mounts; $1 is `directory`."""
    log = directory / "log"
    start = ["sh", "-c", _START.format(prepare=prepare), "sh", str(directory), *options]
    with log.open("wb") as output:
        engine = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", *start],
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=output,
        )
    host = EngineHost(engine)
    try:
        deadline = time.monotonic() + 60
        while not (directory / "docker.sock").exists():
            assert engine.poll() is None, log.read_text("utf-8")
            assert time.monotonic() < deadline, log.read_text("utf-8")
            time.sleep(0.1)
        yield host
    finally:
        engine.terminate()
        engine.wait(60)
