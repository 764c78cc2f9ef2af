"""The processes that use a GPU, as the driver's management library lists them.

It imports nothing but that library's module: roles put both into the programs that they run on hosts.
"""

from __future__ import annotations

import ctypes

from .nvml_library import INSUFFICIENT_SIZE, NOT_SUPPORTED, Nvml, NvmlError

_NOT_AVAILABLE = (1 << 64) - 1
_FIRST_PROCESSES = 64
# The clients of an MPS server are listed apart from the others. Both structures are the same since version 2.
_PROCESS_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
_PROCESS_LIST_VERSIONS = ("_v3", "_v2")


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    )


def processes_on(nvml: Nvml, device: ctypes.c_void_p) -> list[tuple[int, int | None]] | None:
    """Return (pid, bytes) of the processes on a GPU or an instance, None for bytes that the driver does not know.

    None where it cannot list them. Raises NvmlError if it does not answer.
    """
    lists = [found for function in _PROCESS_LISTS if (found := _process_list(nvml, function, device)) is not None]
    if not lists:
        return None
    # An old driver may name a process in both lists.
    by_pid = {process.pid: process.usedGpuMemory for processes in lists for process in processes}
    return [(pid, None if used == _NOT_AVAILABLE else used) for pid, used in sorted(by_pid.items())]


def _process_list(nvml: Nvml, function: str, device: ctypes.c_void_p) -> list[_Process] | None:
    names = (function + version for version in _PROCESS_LIST_VERSIONS)
    name = next((name for name in names if hasattr(nvml.library, name)), None)
    if name is None:
        return None
    room = _FIRST_PROCESSES
    while True:
        count, entries = ctypes.c_uint(room), (_Process * room)()
        try:
            nvml.call(name, device, ctypes.byref(count), entries)
        except NvmlError as error:
            if error.status == NOT_SUPPORTED:
                return None
            if error.status != INSUFFICIENT_SIZE:
                raise
            room = 2 * max(room, count.value)
        else:
            return list(entries[: count.value])
