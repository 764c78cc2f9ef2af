"""The host's GPUs and what its kernels use of them, from a driver that may be slow or broken."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..uptime import uptime_s
from . import nvml
from .nvml_library import NvmlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATIENCE_S = 15
_PIECE_BYTES = 1 << 16
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_PROC = Path("/proc")
_SETTLED_S = 30
_LIBRARY = "libcuda.so.1"
_MOST_UNCAPPED = 16
# The 22nd field of /proc/PID/stat, counted behind the name.
_START_TICKS = 19
# As far as the Linux kernel keeps the name.
_MPS_SERVER = "nvidia-cuda-mps"


class GpuReading:
    """The driver's answers, read in a process of their own, beside whatever else is done until `result`.

    A driver that hangs, in the kernel even, or crashes takes only that process with it. `read` asks it, and returns
    what can be written as JSON.
    """

    def __init__(self, patience_s: float = PATIENCE_S, read: Callable[[], Any] = nvml.read) -> None:
        self._patience_s = patience_s
        self._give_up_at = time.monotonic() + patience_s
        self._pipe, writing = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            _answer(writing, read)
        os.close(writing)

    def result(self, warn: Callable[[str], None]) -> nvml.Answers:
        """Return the driver's answers. `warn` is called with what it did not answer."""
        answer = self.answer(warn)
        answers = nvml.Answers(*answer) if answer else nvml.Answers([], {}, [], {}, [])
        for trouble in answers.troubles:
            warn(trouble)
        return answers

    def answer(self, warn: Callable[[str], None]) -> Any:  # noqa: ANN401 - of any shape
        """Return what `read` returned, or None. `warn` is called with the reason."""
        text = self._text()
        if text is None:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, os.WNOHANG)  # it may be held up in the kernel, and ends when that lets it go
            warn(f"the GPU driver does not answer within {self._patience_s:g} s")
            return None
        _, status = os.waitpid(self._child, 0)
        if status != 0:
            warn(f"the GPU driver ends the process that asks it (wait status {status})")
            return None
        answer = json.loads(text)
        for error in answer["errors"]:
            warn(error)
        return answer["answers"]

    def _text(self) -> bytes | None:
        """Return all that the child writes, or None if that takes too long."""
        text = bytearray()
        with os.fdopen(self._pipe, "rb", buffering=0) as pipe:
            while select.select([pipe], [], [], max(0, self._give_up_at - time.monotonic()))[0]:
                piece = pipe.read(_PIECE_BYTES)
                if not piece:
                    return bytes(text)
                text += piece
        return None


def _answer(writing: int, read: Callable[[], Any]) -> None:
    """Ask the driver and write what it says; never returns."""
    status = 1
    try:
        # Readers of this module's output wait for its end, which a child that hangs would keep from coming.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        answer: dict[str, Any] = {"answers": None, "errors": []}
        try:
            answer["answers"] = read()
        except NvmlError as error:
            answer["errors"].append(str(error))
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            json.dump(answer, pipe)
        status = 0
    finally:
        os._exit(status)


def processes_by_container(
    answers: nvml.Answers, container_ids: Iterable[str], proc: Path = _PROC
) -> dict[str, dict[str, list[int | None]]]:
    """Return UUID -> container's id -> bytes that each of its processes uses there; None where the driver cannot say.

    GPUs whose processes the driver does not list are left out.
    """
    known = set(container_ids)
    listed = {uuid: processes for uuid, processes in answers.processes.items() if processes is not None}
    found: dict[str, dict[str, list[int | None]]] = {uuid: {of: [] for of in known} for uuid in listed}
    for uuid, processes in listed.items():
        for pid, mem_bytes in processes:
            container_id = _container_of(pid, known, proc)
            if container_id is not None:
                found[uuid][container_id].append(mem_bytes)
    return found


def sum_of_known(amounts: list[int | None] | None) -> int | None:
    """Return the sum, or None if one of the amounts, or all that there is, is not known."""
    known = [amount for amount in amounts or () if amount is not None]
    return sum(known) if amounts is not None and len(known) == len(amounts) else None


def uncapped_processes(
    answers: nvml.Answers,
    kernels: list[dict[str, Any]],
    libraries: Path,
    ask_again: Callable[[], nvml.Answers],
    proc: Path = _PROC,
) -> dict[str, list[int]]:
    """Return by container's id the processes, by their numbers in it, that use a GPU of which it has a share and have
    not loaded the library that caps them. They may have the driver's own by its path, a copy of it, or none.

    `kernels` are a report's entries, `libraries` is the tree that lies at FGPU_PATH. A process that has started another
    program since the driver listed it has other libraries now. So those found are looked at again after the driver has
    listed its processes once more, by `ask_again`.
    """
    found = _without_libraries(answers, kernels, libraries, proc)
    again = _without_libraries(ask_again(), kernels, libraries, proc) if found else {}
    return {
        container_id: [inner for pid, inner in pids if (pid, inner) in again.get(container_id, ())]
        for container_id, pids in found.items()
    }


def _without_libraries(
    answers: nvml.Answers, kernels: list[dict[str, Any]], libraries: Path, proc: Path
) -> dict[str, list[tuple[int, int]]]:
    """Return by container's id (pid on this host, pid in the container) of processes without the library.

    Those that end meanwhile are left out. A container has at most _MOST_UNCAPPED of them, since a tenant decides how
    many there are.
    """
    capping = _capping_files(libraries)
    found: dict[str, set[tuple[int, int]]] = {}
    for kernel in kernels:
        parts = [gpu["uuid"] for gpu in kernel["gpus"] if gpu["mem_bytes"] is not None] if capping else []
        for pid, _ in (entry for uuid in parts for entry in answers.processes.get(uuid) or ()):
            if _container_of(pid, {kernel["container_id"]}, proc) and not _has_loaded(pid, capping, proc):
                inner = _pid_in_container(pid, proc)
                if inner is not None:
                    found.setdefault(kernel["container_id"], set()).add((pid, inner))
    return {container_id: sorted(pids)[:_MOST_UNCAPPED] for container_id, pids in found.items()}


def _capping_files(tree: Path) -> set[tuple[int, int]]:
    """Return the libraries that cap, of this tree and of its versions that kernels may have mounted."""
    files = set()
    for path in (tree, *tree.with_name(f"{tree.name}-versions").glob("*")):
        with suppress(FileNotFoundError, NotADirectoryError):  # a removed version, or the lock beside them
            files.add(_file_at(path / "lib" / _LIBRARY))
    return files


def _file_at(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_dev, facts.st_ino


def _has_loaded(pid: int, files: set[tuple[int, int]], proc: Path) -> bool:
    """Return whether a process has one of the files mapped. True also for one that ends and has no memory any more.

    The device number in a line of `maps` is not the file's on every file system, so the mapping itself is followed.
    """
    process = proc / str(pid)
    try:
        # A tenant chooses the names in it, of which Linux escapes newlines and nothing else that ends a line of text.
        mappings = (process / "maps").read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return True
    ranges = [line.partition(b" ")[0].split(b"-") for line in mappings if _LIBRARY.encode() in line]
    # `maps` fills addresses up with zeros, and `map_files` does not.
    followed = [process / "map_files" / "-".join(f"{int(end, 16):x}" for end in ends) for ends in ranges]
    return not mappings or any(_is_one_of(files, path) for path in followed)


def _is_one_of(files: set[tuple[int, int]], path: Path) -> bool:
    try:
        return _file_at(path) in files
    except OSError:  # no longer mapped, or lost by a file server
        return False


def _pid_in_container(pid: int, proc: Path) -> int | None:
    """Return a process's number in its own namespace; None if it has ended."""
    try:
        status = (proc / str(pid) / "status").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    numbers = re.search(r"^NSpid:(?:\s+(\d+))+$", status, re.MULTILINE)
    return int(numbers[1]) if numbers else pid


def percent_by_container(
    answers: nvml.Answers, container_ids: Iterable[str], proc: Path = _PROC
) -> dict[str, dict[str, float]]:
    """Return UUID -> container's id -> how busy its processes keep that GPU, in percent, by the driver's last samples.

    GPUs of which the driver does not say so by process are left out.
    """
    known = set(container_ids)
    listed = {uuid: samples for uuid, samples in answers.utilisation.items() if samples is not None}
    busy: dict[str, dict[str, float]] = {uuid: dict.fromkeys(known, 0.0) for uuid in listed}
    for uuid, samples in listed.items():
        for pid, percent in samples:
            container_id = _container_of(pid, known, proc)
            if container_id is not None:
                busy[uuid][container_id] = min(100.0, busy[uuid][container_id] + percent)
    return busy


def strangers(
    answers: nvml.Answers, container_ids: Iterable[str], proc: Path = _PROC, clock: Callable[[], float] = uptime_s
) -> dict[str, list[int]]:
    """Return by physical GPU the processes that are in none of these containers.

    The server of MPS belongs to the host. What has just begun may be in a container that was not there when the
    containers were listed.
    """
    known = set(container_ids)
    physical = {gpu["uuid"]: gpu["parent_uuid"] or gpu["uuid"] for gpu in answers.gpus}
    found: dict[str, set[int]] = {}
    for uuid, processes in answers.processes.items():
        for pid, _ in processes or ():
            if _container_of(pid, known, proc) is None and _is_settled(pid, proc, clock()):
                found.setdefault(physical[uuid], set()).add(pid)
    return {uuid: sorted(pids) for uuid, pids in found.items()}


def _is_settled(pid: int, proc: Path, now: float) -> bool:
    """Return whether a process of the host lives, has done so for a while, and is no server of MPS."""
    try:
        stat = (proc / str(pid) / "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    name, rest = stat.partition("(")[2].rpartition(")")[::2]
    started = int(rest.split()[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
    return now - started >= _SETTLED_S and not name.startswith(_MPS_SERVER)


def _container_of(pid: int, known: set[str], proc: Path) -> str | None:
    """Return which of the containers a process of the host runs in, by its cgroup (v1 or v2)."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text("ascii", "surrogateescape")
    except (FileNotFoundError, ProcessLookupError):  # it has ended since
        return None
    # An agent that is a container itself may be named there too.
    return next((found for found in _CONTAINER_ID.findall(groups) if found in known), None)


def context_costs(tree: Path) -> dict[str, int]:
    """Return what a context costs on each GPU, by UUID, as it was measured when the GPU libraries were built."""
    try:
        costs = json.loads(tree.joinpath("CONTEXTS").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # they are not there, or of an earlier version
        return {}
    return costs if isinstance(costs, dict) else {}
