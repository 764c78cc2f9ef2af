"""What a GPU's driver says of its health. What a driver or a card does not know is None."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from .nvml_library import SUCCESS, Nvml

if TYPE_CHECKING:
    from collections.abc import Mapping

_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0
_CLOCK_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
# What protects the hardware. That clocks follow a power cap or an idle GPU is no trouble.
_SLOWED_BY = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat of the hardware", 0x80: "power brake"}
_RECOVERY_ACTION = 230
_RECOVERIES = {
    1: "reset of the GPU",
    2: "reboot of the host",
    3: "drain of peer-to-peer traffic",
    4: "drain, then reset of the GPU",
    5: "recovery of the IMEX domain",
    6: "bus reset",
    7: "reboot of the host",
}


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("fieldId", ctypes.c_uint),
        ("scopeId", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latencyUsec", ctypes.c_longlong),
        ("valueType", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    )


def unknown_health(index: int | None, address: str | None) -> dict[str, Any]:
    """Return the health of a GPU of which nothing is known yet."""
    return {
        "index": index,
        "uuid": None,
        "address": address,
        "problem": "",
        "xids": [],
        "ecc_errors": None,
        "remap_failed": None,
        "remap_pending": None,
        "throttled": [],
        "recovery": None,
        "strangers": [],
    }


def xid_entries(logged: Mapping[int, int]) -> list[dict[str, int]]:
    """Return the report's entries of Xids, given by number with the log's number of the newest."""
    return [{"number": number, "sequence": sequence} for number, sequence in sorted(logged.items())]


def driver_health(nvml: Nvml, gpu: ctypes.c_void_p) -> dict[str, Any]:
    """Return those parts of a GPU's health that its driver knows."""
    pending, failed = _remapped_rows(nvml, gpu)
    return {
        "ecc_errors": _ecc_errors(nvml, gpu),
        "remap_failed": failed,
        "remap_pending": pending,
        "throttled": _throttled(nvml, gpu),
        "recovery": _recovery(nvml, gpu),
    }


def _ecc_errors(nvml: Nvml, gpu: ctypes.c_void_p) -> int | None:
    count = ctypes.c_ulonglong()
    kinds = ctypes.c_uint(_UNCORRECTED), ctypes.c_uint(_SINCE_DRIVER_LOAD)
    status = nvml.status("nvmlDeviceGetTotalEccErrors", gpu, *kinds, ctypes.byref(count))
    return count.value if status == SUCCESS else None


def _remapped_rows(nvml: Nvml, gpu: ctypes.c_void_p) -> tuple[bool | None, bool | None]:
    """Return whether a replacement of faulty memory is pending, and whether one has failed."""
    corrected, uncorrected, pending, failed = (ctypes.c_uint() for _ in range(4))
    counts = (ctypes.byref(one) for one in (corrected, uncorrected, pending, failed))
    if nvml.status("nvmlDeviceGetRemappedRows", gpu, *counts) == SUCCESS:
        return bool(pending.value), bool(failed.value)
    # Cards before Ampere retire pages instead.
    if nvml.status("nvmlDeviceGetRetiredPagesPendingStatus", gpu, ctypes.byref(pending)) == SUCCESS:
        return bool(pending.value), None
    return None, None


def _throttled(nvml: Nvml, gpu: ctypes.c_void_p) -> list[str]:
    reasons = ctypes.c_ulonglong()
    for function in _CLOCK_REASONS:
        if nvml.status(function, gpu, ctypes.byref(reasons)) == SUCCESS:
            return [name for bit, name in _SLOWED_BY.items() if reasons.value & bit]
    return []


def _recovery(nvml: Nvml, gpu: ctypes.c_void_p) -> str | None:
    field = _FieldValue(fieldId=_RECOVERY_ACTION)
    status = nvml.status("nvmlDeviceGetFieldValues", gpu, ctypes.c_int(1), ctypes.byref(field))
    if status != SUCCESS or field.nvmlReturn != SUCCESS:
        return None
    # An unsigned int in a union of eight bytes.
    action = field.value & 0xFFFFFFFF
    return _RECOVERIES.get(action, f"recovery action {action}") if action else None
