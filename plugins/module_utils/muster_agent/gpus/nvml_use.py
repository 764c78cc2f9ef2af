"""How busy processes keep a GPU, by the driver's own samples of the last seconds."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FUNCTION = "nvmlDeviceGetProcessUtilization"
_SUCCESS, _NOT_FOUND, _INSUFFICIENT_SIZE = 0, 6, 7
_WINDOW_S = 5
_MOST_SAMPLES = 1 << 16


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("timeStamp", ctypes.c_ulonglong),
        ("smUtil", ctypes.c_uint),
        ("memUtil", ctypes.c_uint),
        ("encUtil", ctypes.c_uint),
        ("decUtil", ctypes.c_uint),
    )


def process_percents(
    library: ctypes.CDLL, device: ctypes.c_void_p, clock: Callable[[], float] = time.time
) -> list[tuple[int, float]] | None:
    """Return (pid, percent of the GPU) of the processes that used it lately; None where the driver cannot say.

    It cannot of a MIG instance. A process that it has several samples of counts with their mean.
    """
    if not hasattr(library, _FUNCTION):
        return None
    since = ctypes.c_ulonglong(int((clock() - _WINDOW_S) * 1e6))
    ask = getattr(library, _FUNCTION)
    count = ctypes.c_uint(0)
    status = ask(device, None, ctypes.byref(count), since)
    if status in {_SUCCESS, _NOT_FOUND} and not count.value:
        return []
    if status not in {_SUCCESS, _INSUFFICIENT_SIZE} or count.value > _MOST_SAMPLES:
        return None
    samples = (_Sample * count.value)()
    status = ask(device, samples, ctypes.byref(count), since)
    if status == _NOT_FOUND:
        return []
    if status != _SUCCESS:
        return None
    by_pid: dict[int, list[int]] = {}
    for sample in samples[: count.value]:
        # What the driver leaves empty, or cannot mean.
        if sample.pid and sample.smUtil <= 100:
            by_pid.setdefault(sample.pid, []).append(sample.smUtil)
    return [(pid, sum(seen) / len(seen)) for pid, seen in sorted(by_pid.items())]
