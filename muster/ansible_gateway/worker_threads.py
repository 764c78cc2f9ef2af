"""Threads in which a play runs its hosts' tasks, in place of a process that Ansible would fork for each.

A fork costs more CPU than a visit's task: it copies each page of memory that it touches, some 4,500. So this is only
for plays that change nothing of their process, each with one task per host that waits for a program: our own visits.
Of Ansible's worker it keeps the parts that need no process of their own (`ansible/executor/process/worker.py`).
"""

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from queue import SimpleQueue
from typing import Any

from ansible._internal import _task
from ansible._internal._errors import _error_utils
from ansible._internal._errors._task_timeout import TaskTimeoutError
from ansible.errors import AnsibleError, AnsibleTaskError
from ansible.executor.task_executor import TaskExecutor
from ansible.executor.task_result import _RawTaskResult
from ansible.plugins import strategy
from ansible.plugins.loader import Jinja2Loader, PluginLoader

from muster.ansible_gateway.bounded_programs import bounded_time

_FAILED = 1
_LONGEST_SLEEP_S = 0.01
_RUNNING: ContextVar["WorkerThread"] = ContextVar("worker")
_ENDED = threading.Event()
_LOADING = threading.RLock()
# The methods by which plugins are found and loaded; all others of a loader go by these.
_LOADS = ("get_with_context", "find_plugin_with_context", "all")


def run_tasks_in_threads() -> None:
    """Let the playbook of this process run its tasks in threads."""
    strategy.WorkerProcess = WorkerThread
    strategy.time = _SleepUntilAWorkerEnds()
    # A loader shows others what it has found or loaded by half.
    for loader in (PluginLoader, Jinja2Loader):
        for name in _LOADS:
            if name in vars(loader):
                setattr(loader, name, _one_at_a_time(getattr(loader, name)))
    # Ansible's own is by a signal, which only a main thread can receive.
    TaskTimeoutError.alarm_timeout = _bounded_time


class WorkerThread:
    """A task of one host, with the attributes and methods of Ansible's `WorkerProcess` that a strategy uses.

    It reports one result: the task's, or that the time is up. A thread that goes on after that is of no more concern.
    """

    def __init__(self, *, final_q: Any, host: Any, task: Any, worker_id: int, **given: Any) -> None:  # noqa: ANN401
        self.exitcode: int | None = None
        self.worker_id = worker_id
        self.worker_queue: SimpleQueue[Any] = SimpleQueue()
        self._results = final_q
        self._host = host
        # Its fields are replaced by their values for this host.
        self._task = task.copy(exclude_parent=True, exclude_tasks=True)
        self._task._parent = task._parent  # noqa: SLF001 - as Ansible does it
        self._given = given
        self._lock = threading.Lock()
        self._is_told = False
        self._thread = threading.Thread(target=self._run, name=f"task-of-{host}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_told

    def terminate(self) -> None:
        """Do nothing: the thread ends with its process."""

    def close(self) -> None:
        """Do nothing: a thread holds nothing that is to be closed."""

    def _run(self) -> None:
        _RUNNING.set(self)
        try:
            with _task.TaskContext(self._task):
                self._tell(self._executed())
        except BaseException:  # noqa: BLE001 - the strategy finds a worker that has failed
            traceback.print_exc()
            self.exitcode = _FAILED
        finally:
            _ENDED.set()

    def _executed(self) -> dict[str, Any]:
        given = self._given
        executor = TaskExecutor(
            self._host,
            self._task,
            given["task_vars"],
            given["play_context"],
            given["loader"],
            given["shared_loader_obj"],
            self._results,
            given["variable_manager"],
        )
        result: dict[str, Any] = executor.run()
        return result

    def _tell(self, result: dict[str, Any]) -> None:
        with self._lock:
            if self._is_told:
                return
            self._is_told = True
        try:
            self._send(result, self._task.dump_attrs())
        except Exception as cause:  # noqa: BLE001 - what a host answers must not cost the others their visit
            error = AnsibleError("Task result omitted due to queue send failure.")
            error.__cause__ = cause
            self._send(_error_utils.result_dict_from_exception(error), {})
        _ENDED.set()

    def _send(self, result: dict[str, Any], fields: dict[str, Any]) -> None:
        self._results.send_task_result(
            _RawTaskResult(host=self._host, task=self._task, return_data=result, task_fields=fields)
        )

    def tell_late(self, timeout: int) -> None:
        """Report that the task has not ended in time, in the words of Ansible."""
        error = AnsibleTaskError(obj=self._task.get_ds())
        error.__cause__ = TaskTimeoutError(timeout)
        result = _error_utils.result_dict_from_exception(error, accept_result_contribution=True)
        self._tell({"changed": False, **result})


class _SleepUntilAWorkerEnds:
    """The module `time` for Ansible's strategies, whose sleep ends when a worker does.

    While all workers are busy, Ansible looks for a free one ten thousand times a second: a fifth of what hundreds of
    agents cost. It also finds a result as it comes, and not with the next look.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a module has
        return getattr(time, name)

    def sleep(self, seconds: float) -> None:
        _ENDED.wait(max(seconds, _LONGEST_SLEEP_S))
        _ENDED.clear()


@contextmanager
def _bounded_time(timeout: int | None) -> Iterator[None]:
    if not timeout:
        yield
        return
    worker = _RUNNING.get()
    with bounded_time(timeout, lambda: worker.tell_late(timeout)):
        yield


def _one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that one thread calls at a time. What it would yield, it returns as a whole."""

    @wraps(method)
    def locked(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - as in Ansible
        with _LOADING:
            found = method(*arguments, **options)
            return iter(list(found)) if isinstance(found, Iterator) else found

    return locked
