"""Python functions in sessions, much as with submitit: docs/frameworks.md.

    from muster.client import Client
    from muster_map import Executor

    with Client() as muster:
        executor = Executor(muster, image="cluster-tools", cpu=1, mem="512M")
        jobs = executor.map_array(pow, [2, 3, 4], [10, 10, 10])
        print([job.result() for job in jobs])  # [1024, 59049, 1048576]

A function, its arguments and its result travel by the API: no file system is shared. All calls of one array may hold
1 MiB, and so may a result; put more into a data folder, and pass its path. The image needs Python of this one's version
and cloudpickle.
"""

import base64
import pickle
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from muster.client import Client, Result, Session

_RESULT = "muster-result:"
# Runs in the container: it makes the call of its session's index, and prints the result.
_CALL = f"""
import base64, os, pickle, sys
import cloudpickle
function, calls = pickle.loads(base64.b64decode(sys.stdin.read()))
result = function(*calls[int(os.environ.get("MUSTER_ARRAY_INDEX", "0"))])
print("\\n{_RESULT}" + base64.b64encode(cloudpickle.dumps(result)).decode(), flush=True)
"""


class FailedError(Exception):
    """A call failed: the text is the session's reason, and the end of its log with the traceback."""


@dataclass(frozen=True)
class Job:
    """A call in a session of its own."""

    muster: Client
    session: Session

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the call and return its result. Raises FailedError and TimeoutError."""
        ended = self.muster.wait(self.session, timeout=timeout)
        log = self.muster.logs(ended)
        if ended.result is not Result.SUCCESS:
            raise FailedError(f"{ended.reason}\n{log[-2000:]}")
        return pickle.loads(base64.b64decode(log.rpartition(_RESULT)[2]))

    def cancel(self) -> None:
        """End the session, whether it waits or runs."""
        self.muster.cancel(self.session)


class Executor:
    """Calls of functions as sessions; `spec` are fields of a session file, such as `image`, `cpu`, `mem`, `gpu`."""

    def __init__(self, muster: Client, **spec: Any) -> None:
        self._muster = muster
        self._spec = spec

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Job:
        """Queue one call."""
        (job,) = self._queue(function, [arguments])
        return job

    def map_array(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Job]:
        """Queue a call for each element, as `map` does: an array of sessions."""
        return self._queue(function, list(zip(*arguments, strict=True)))

    def _queue(self, function: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[Job]:
        if not calls:
            return []
        spec = {
            "name": getattr(function, "__name__", "call").strip("<>"),
            "command": shlex.join(["python3", "-c", _CALL]),
            "input": base64.b64encode(cloudpickle.dumps((function, calls))).decode(),
            **({"array": f"0-{len(calls) - 1}"} if len(calls) > 1 else {}),
            **self._spec,
        }
        return [Job(self._muster, session) for session in self._muster.submit_many(spec)]
