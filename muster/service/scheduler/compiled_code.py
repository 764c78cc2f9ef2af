"""The scheduler's compiled code, made before a command needs it: docs/adr/0009."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from muster.contract.report import Report, SwarmReport
from muster.core.agents.agent import Agent, Gpu
from muster.core.model.policy import PACK
from muster.core.scheduling.placement import Gang, PlacementState, choose
from muster.core.values.slots import Slots

log = logging.getLogger("muster.queue")
_LONG_S = 5.0
_COMPILING = "the scheduler is being compiled, which may take minutes; sessions start when that is done"
_KERNEL = Slots(cpu=1000, mem=1 << 30, gpu=1)


def compile_placement() -> float | None:
    """Compile the placement and return how many seconds that took; None if this user's code was there."""
    before, began = _compilations(), time.monotonic()
    agents = [_agent(f"a{number}") for number in (1, 2)]
    state = PlacementState.of(agents, {}, PACK)
    state.place(Gang((_KERNEL,)))
    state.place(Gang((_KERNEL,) * 3, spread=True))
    state.take_as(state, Gang((_KERNEL,)))
    state.place_each([Gang((_KERNEL,))])
    for entry_point in _entry_points():
        for index in _indexes(entry_point):
            # What was kept holds for the sources as they are now, also where others than its own have changed since.
            with suppress(OSError):
                os.utime(index)
    return time.monotonic() - began if _compilations() > before else None


@contextmanager
def compiling_beside(on_done: Callable[[], None]) -> Iterator[None]:
    """Compile beside the caller and call `on_done` then, from another thread.

    In a process of its own, so that the caller goes on at its full speed; where no directory can keep the code, in a
    thread.
    """
    process = _start_process() if _is_kept() else None

    def work() -> None:
        began = time.monotonic()
        slow = threading.Timer(_LONG_S, log.info, [_COMPILING])
        slow.daemon = True
        slow.start()
        try:
            if process is None:
                compile_placement()
            elif process.wait() > 0:
                log.warning("the scheduler could not be compiled beside the queue: exit code %d", process.returncode)
        finally:
            slow.cancel()
            on_done()
        if time.monotonic() - began > _LONG_S:
            log.info("the scheduler was compiled in %.0f s; sessions start now", time.monotonic() - began)

    threading.Thread(target=work, name="compile", daemon=True).start()
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def is_compiled() -> bool:
    """Return whether this user's code was kept after its source last changed: then it is loaded within a second."""
    source = Path(choose.__file__).parent
    changed_at = max(path.stat().st_mtime_ns for path in source.glob("*.py"))
    return all(
        any(path.stat().st_mtime_ns > changed_at for path in _indexes(entry_point)) for entry_point in _entry_points()
    )


def _indexes(entry_point: Any) -> Iterable[Path]:  # noqa: ANN401 - numba's own
    """Return numba's lists of what is kept of a function."""
    place = entry_point.stats.cache_path
    return () if place is None else Path(place).glob(f"*.{entry_point.__name__}-*.nbi")


def _start_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "muster.service.scheduler.compiled_code"], stdin=subprocess.DEVNULL)


def _is_kept() -> bool:
    """Return whether what one process compiles is there for the next."""
    entry_point: Any = choose.on_one_agent
    return entry_point.stats.cache_path is not None


def _compilations() -> int:
    return sum(sum(entry_point.stats.cache_misses.values()) for entry_point in _entry_points())


def _entry_points() -> list[Any]:
    return [choose.on_one_agent, choose.each_in_turn, choose.over_agents, choose.take_places]


def _agent(name: str) -> Agent:
    gpus = tuple(Gpu(f"{name}-{index}", index, "any", 1 << 30) for index in range(2))
    report = Report(cpu_count=2, swarm=SwarmReport(state="active", manager=True))
    return Agent(name, "default", Slots(cpu=2000, mem=2 << 30, gpu=2), gpus, report=report)


if __name__ == "__main__":
    compile_placement()
