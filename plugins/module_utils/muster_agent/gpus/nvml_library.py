"""NVIDIA's management library through ctypes: loading it, calling its functions, and what they answer when they fail.

It imports nothing else of this package: roles put it into the programs that they run on hosts.
"""

from __future__ import annotations

import ctypes

NAME = "libnvidia-ml.so.1"
SUCCESS, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, NO_FUNCTION = 0, 3, 6, 7, 13
_TEXT_BYTES = 96


class NvmlError(Exception):
    """The library is there, and a function of it failed with `status`, which `reason` says in the driver's words."""

    def __init__(self, function: str, status: int, reason: str) -> None:
        super().__init__(
            f"the GPU driver is too old: it has no {function}"
            if status == NO_FUNCTION
            else f"the GPU driver does not answer: {function}: {reason}"
        )
        self.function, self.status, self.reason = function, status, reason


class Nvml:
    """The initialised library. Raises OSError where there is none, and NvmlError where it does not answer."""

    def __init__(self, library: str = NAME) -> None:
        self.library = ctypes.CDLL(library)
        self.library.nvmlErrorString.restype = ctypes.c_char_p
        self.call("nvmlInit_v2")

    def close(self) -> None:
        self.library.nvmlShutdown()

    def status(self, function: str, *arguments: object) -> int:
        """Call a function and return its status: NO_FUNCTION where this driver lacks it, as old ones do."""
        called = getattr(self.library, function, None)
        return NO_FUNCTION if called is None else called(*arguments)

    def reason(self, status: int) -> str:
        return self.library.nvmlErrorString(status).decode()

    def call(self, function: str, *arguments: object) -> None:
        """Call a function. Raises NvmlError where it fails or is missing."""
        status = self.status(function, *arguments)
        if status != SUCCESS:
            raise NvmlError(function, status, self.reason(status))

    def handle(self, function: str, *arguments: object) -> ctypes.c_void_p:
        """Return the handle that a function stores where its last argument points."""
        handle = ctypes.c_void_p()
        self.call(function, *arguments, ctypes.byref(handle))
        return handle

    def text(self, function: str, *arguments: object) -> str:
        """Return the text that a function writes into a buffer."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode()

    def count(self) -> int:
        """Return how many GPUs there are."""
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return count.value

    def gpu(self, index: int) -> ctypes.c_void_p:
        return self.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
