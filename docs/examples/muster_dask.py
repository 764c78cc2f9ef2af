"""A Dask cluster in a session: docs/frameworks.md.

    from dask.distributed import Client
    from muster import client
    from muster_dask import MusterCluster

    with client.Client() as muster, MusterCluster(muster, 2, image="cluster-tools", cpu=1, mem="1G") as cluster:
        with Client(cluster.scheduler_address) as dask:
            dask.wait_for_workers(2)
            print(dask.submit(sum, range(10)).result())  # 45

main1 runs the scheduler, and every container a worker. The way from here to the scheduler is that of `muster open`. The
image needs Dask of this one's version.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from muster.client import Client, Session, SessionState

_SCHEDULER_PORT = 8786
_GREETING_S = 10
_PAUSE_S = 0.2
_COMMAND = f"""
[ "$BACKENDAI_CLUSTER_HOST" != main1 ] || dask scheduler --port {_SCHEDULER_PORT} --no-dashboard &
exec dask worker "$(head -n 1 /run/muster/hosts):{_SCHEDULER_PORT}" --nthreads "$OMP_NUM_THREADS" --no-dashboard
"""


class MusterCluster:
    """A Dask cluster with a worker in each container of a session, which ends with it.

    `spec` are fields of a session file, such as `image`, `cpu`, `mem`, `gpu`. Raises SpecError, TimeoutError, and
    RuntimeError if the session ends before its scheduler answers.
    """

    def __init__(self, muster: Client, workers: int, *, timeout: float | None = None, **spec: Any) -> None:
        fields = {"name": "dask", "command": _COMMAND, "run_on": "all", "cluster_size": workers, **spec}
        self.session = muster.submit(fields, publish=[f"scheduler={_SCHEDULER_PORT}"])
        with ExitStack() as stack:
            stack.callback(muster.cancel, self.session)
            self.session = _running(muster.wait(self.session, until="running", timeout=timeout))
            port = stack.enter_context(_tunnel(self.session))
            _wait_for_scheduler(muster, self.session, port)
            self._ending = stack.pop_all()
        self.scheduler_address = f"tcp://127.0.0.1:{port}"

    def close(self) -> None:
        """End the way to the scheduler, and the session."""
        self._ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _running(session: Session) -> Session:
    """Return the session. Raises RuntimeError if it does not run."""
    if session.state is not SessionState.RUNNING:
        raise RuntimeError(f"session {session.name} does not run: {session.reason}")
    return session


def _wait_for_scheduler(muster: Client, session: Session, port: int) -> None:
    """Wait until a scheduler greets: the session runs, and its tunnel is there, some seconds before that listens."""
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_GREETING_S) as scheduler:
            if scheduler.recv(1):
                return
        _running(muster.session(session))
        time.sleep(_PAUSE_S)


@contextmanager
def _tunnel(session: Session) -> Iterator[int]:
    """Yield a port of this machine that leads to the scheduler."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ("muster", "open", session.id, "scheduler", "--port", str(port))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as opening:
        try:
            # It prints the URL once the tunnel is there.
            if opening.stdout is None or not opening.stdout.readline():
                raise RuntimeError(f"`{' '.join(command)}` failed with exit code {opening.wait()}")
            yield port
        finally:
            opening.terminate()
