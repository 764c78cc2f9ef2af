"""The host's GPUs, read from NVIDIA's management library through ctypes: agents need no Python package for it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

_NAME_BYTES = 96
_LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )


class NvmlError(Exception):
    """The management library is there but does not answer."""


def gpus() -> list[dict[str, Any]]:
    """Return the host's GPUs in the driver's order; none where there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return []
    _call(library, "nvmlInit_v2")
    try:
        count = ctypes.c_uint()
        _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [_gpu(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()


def _gpu(library: ctypes.CDLL, index: int) -> dict[str, Any]:
    device = ctypes.c_void_p()
    _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
    memory, pci = _Memory(), _PciInfo()
    _call(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    _call(library, "nvmlDeviceGetPciInfo_v3", device, ctypes.byref(pci))
    return {
        "index": index,
        "uuid": _text(library, "nvmlDeviceGetUUID", device),
        "model": _text(library, "nvmlDeviceGetName", device),
        "mem_bytes": memory.total,
        "numa_node": _numa_node(pci),
    }


def _text(library: ctypes.CDLL, function: str, device: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    _call(library, function, device, buffer, ctypes.c_uint(_NAME_BYTES))
    return buffer.value.decode()


def _numa_node(pci: _PciInfo) -> int | None:
    path = Path(f"/sys/bus/pci/devices/{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0/numa_node")
    if not path.exists():
        return None
    node = int(path.read_text("ascii"))
    # The kernel says -1 where the machine has one node only.
    return node if node >= 0 else None


def _call(library: ctypes.CDLL, function: str, *arguments: Any) -> None:  # noqa: ANN401 - ctypes takes anything
    status = getattr(library, function)(*arguments)
    if status != 0:
        library.nvmlErrorString.restype = ctypes.c_char_p
        reason = library.nvmlErrorString(status)
        raise NvmlError(f"the GPU driver does not answer: {function}: {reason.decode()}")
