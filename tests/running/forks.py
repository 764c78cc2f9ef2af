"""A pytest plugin that runs tests in forks of one process: `-p tests.running.forks --forks 3`.

Libraries are loaded, tests collected and the scheduler compiled once for all workers. A worker of pytest-xdist does all
of that for itself: 8 s of CPU each before its first test.
"""

import itertools
import os
import signal
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

# As many tests are handed out at once, fewer towards the end: a worker then holds none that another could begin.
_MOST_AT_ONCE = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in so many forks of this process")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(_Hooks)


class _Hooks:
    def pytest_before_forks(self, session: pytest.Session) -> None:
        """Do what all workers are to find done."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in forks; leave it to pytest where none are wanted or nothing can run."""
    forks: int = session.config.getoption("forks")
    if not forks or session.testsfailed or session.config.option.collectonly:
        return None
    session.config.hook.pytest_before_forks(session=session)
    _Run(session, min(forks, len(session.items))).to_its_end()
    return True


@dataclass
class _Worker:
    """A fork, as its parent sees it: the test that it runs, and those that it was given and has not begun."""

    name: str
    process_id: int
    connection: Connection
    running: int | None = None
    given: list[int] = field(default_factory=list)


@dataclass
class _Run:
    session: pytest.Session
    forks: int
    workers: dict[Connection, _Worker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._waiting = deque(range(len(self.session.items)))

    def to_its_end(self) -> None:
        """Hand out tests until all have run. Raises what pytest's own loop raises when it is to stop."""
        reporter = self.session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            # The tests of several files run at the same time.
            reporter.showfspath = False
        # Made before there are workers to make it at the same time.
        _directories(self.session.config).getbasetemp()
        try:
            for number in range(self.forks):
                self._start(f"worker{number}")
            while self.workers:
                for connection in wait(list(self.workers)):
                    assert isinstance(connection, Connection)
                    self._receive(self.workers[connection])
        finally:
            for worker in self.workers.values():
                # A test may have left a handler of any other signal, such as a daemon's.
                os.kill(worker.process_id, signal.SIGKILL)
                os.waitpid(worker.process_id, 0)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def _start(self, name: str) -> None:
        ours, theirs = Pipe()
        process_id = os.fork()
        if process_id == 0:
            for connection in (ours, *self.workers):
                connection.close()
            _work(self.session, theirs, name)
        theirs.close()
        self.workers[ours] = _Worker(name, process_id, ours)

    def _receive(self, worker: _Worker) -> None:
        config, items = self.session.config, self.session.items
        try:
            kind, value = worker.connection.recv()
        except EOFError:
            self._bury(worker)
            return
        match kind:
            case "next":
                given = self._next()
                worker.given += given
                worker.connection.send(given)
            case "begin":
                worker.running = value
                worker.given.remove(value)
                item = items[value]
                config.hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            case "report":
                report = config.hook.pytest_report_from_serializable(config=config, data=value)
                config.hook.pytest_runtest_logreport(report=report)
            case "end":
                worker.running = None
                item = items[value]
                config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case "warning":
                message, when, nodeid, location = value
                config.hook.pytest_warning_recorded.call_historic(
                    kwargs={"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
                )
            case _:
                raise RuntimeError(f"{worker.name} failed outside its tests:\n{value}")

    def _next(self) -> list[int]:
        if self.session.shouldfail or self.session.shouldstop:
            return []
        count = max(1, min(_MOST_AT_ONCE, len(self._waiting) // (4 * self.forks)))
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def _bury(self, worker: _Worker) -> None:
        """Take a worker that has ended from the list. If it died, its test failed, and another does the rest."""
        del self.workers[worker.connection]
        worker.connection.close()
        _, status = os.waitpid(worker.process_id, 0)
        if status == 0:
            return
        ended = f"{worker.name} ended with {os.waitstatus_to_exitcode(status)}"
        if worker.running is None:
            raise RuntimeError(f"{ended} outside its tests")
        item = self.session.items[worker.running]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", f"{ended} in this test", "call")
        self.session.config.hook.pytest_runtest_logreport(report=report)
        self._waiting.extendleft(reversed(worker.given))
        if self._waiting:
            self._start(f"{worker.name}-again")


def _work(session: pytest.Session, parent: Connection, name: str) -> NoReturn:
    """Run what the parent hands out, in a fork; then end the process without what the parent does at its end."""
    code = 1
    try:
        config = session.config
        _take_apart_from_siblings(config, name)
        config.pluginmanager.register(_Telling(config, parent))
        # A test is followed by another or by the end of all fixtures: the next is known before it begins.
        for item, next_item in itertools.pairwise(itertools.chain(_handed_out(parent), [None])):
            assert item is not None
            following = None if next_item is None else session.items[next_item]
            parent.send(("begin", item))
            config.hook.pytest_runtest_protocol(item=session.items[item], nextitem=following)
            parent.send(("end", item))
        code = 0
    except BaseException:  # noqa: BLE001 - the parent raises it
        parent.send(("error", traceback.format_exc()))
    finally:
        os._exit(code)


def _handed_out(parent: Connection) -> Iterator[int]:
    while True:
        parent.send(("next", None))
        numbers: list[int] = parent.recv()
        if not numbers:
            return
        yield from numbers


def _take_apart_from_siblings(config: pytest.Config, name: str) -> None:
    """Leave reports to the parent; capture into files, and make temporary directories, that no other worker has."""
    plugins = config.pluginmanager
    for name_of_plugin in ("terminalreporter", "tests.tiers.reports"):
        if plugins.has_plugin(name_of_plugin):
            plugins.unregister(name=name_of_plugin)
    capturing = plugins.getplugin("capturemanager")
    assert capturing is not None
    capturing.stop_global_capturing()
    capturing.start_global_capturing()
    capturing.suspend_global_capture()
    factory = _directories(config)
    factory._basetemp = factory.mktemp(name, numbered=False)


def _directories(config: pytest.Config) -> Any:
    return getattr(config, "_tmp_path_factory")  # noqa: B009 - pytest has no other way to it than a fixture


@dataclass(eq=False)
class _Telling:
    """Tells the parent what came of tests; registered in a worker."""

    config: pytest.Config
    parent: Connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.parent.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        # A warning need not be picklable; its text is.
        said = warnings.WarningMessage(
            str(warning_message.message), warning_message.category, warning_message.filename, warning_message.lineno
        )
        self.parent.send(("warning", (said, when, nodeid, location)))
