"""The scheduler's compiled code, made before a command needs it: docs/adr/0009."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba

from muster.contract.report import Report, SwarmReport
from muster.core.agents.agent import Agent, Gpu
from muster.core.model.policy import PACK
from muster.core.scheduling.placement import Gang, PlacementState, choose
from muster.core.scheduling.placement.compiled import revision
from muster.core.values.errors import UnwritableError
from muster.core.values.slots import Slots
from muster.whole_files import write_whole

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
    if (stamp := _stamp()) is not None and not is_compiled():
        # Where it cannot be written, the next process only looks once more.
        with suppress(UnwritableError):
            write_whole(stamp, _made_of().encode(), mode=0o644)
    return time.monotonic() - began if _compilations() > before else None


@contextmanager
def compiling_beside(on_done: Callable[[], None]) -> Iterator[None]:
    """Compile beside the caller and call `on_done` then, from another thread.

    In a process of its own, so that the caller goes on at its full speed; where no directory can keep the code, in a
    thread.
    """
    process = _start_process() if _stamp() is not None else None

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
    """Return whether all of it is kept for this user, these sources and this processor.

    Then it is loaded within a second.
    """
    stamp = _stamp()
    if stamp is None:
        return False
    try:
        return stamp.read_text(encoding="utf-8") == _made_of()
    except (OSError, UnicodeDecodeError):
        return False


def _stamp() -> Path | None:
    """Return the file that says what the kept code was made of; None where no directory can keep it.

    It lies beside the code: who removes that removes it too.
    """
    entry_point: Any = choose.on_one_agent
    place = entry_point.stats.cache_path
    return None if place is None else Path(place) / "muster-compiled"


def _made_of() -> str:
    """Return all by which numba tells whether kept code may be used."""
    source = Path(choose.__file__).stat()
    return "\n".join(
        [
            f"{sys.implementation.cache_tag}, numba {numba.__version__}, llvmlite {llvmlite.__version__}",
            f"{choose.__file__} {source.st_mtime_ns} {source.st_size} {revision()}",
            f"{llvmlite.binding.get_host_cpu_name()} {llvmlite.binding.get_host_cpu_features().flatten()}",
            "",
        ]
    )


def _start_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "muster.service.scheduler.compiled_code"], stdin=subprocess.DEVNULL)


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
