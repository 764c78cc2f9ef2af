"""Functions that numba compiles, once for each user and machine: docs/adr/0009 says what that buys."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Function = TypeVar("Function", bound=Callable[..., Any])

_parts = sha256()


def part(function: Function) -> Function:
    """Return the function compiled, for calls from compiled functions only."""
    code = function.__code__
    constants = [(name, function.__globals__.get(name)) for name in code.co_names]
    known = [(name, value) for name, value in constants if isinstance(value, int | float)]
    _parts.update(repr((code.co_code, code.co_consts, code.co_names, known)).encode())
    return cast("Function", numba.njit(function, error_model="numpy"))


def revision() -> str:
    """Return a digest of the parts so far.

    numba keeps machine code until the file of the function that Python calls changes, but that is made of other files
    as well. numba also compares the values that the function closes over: this has to be one of them.
    """
    return _parts.hexdigest()


def entry_point(function: Function) -> Function:
    """Return the function compiled, for calls from Python.

    Its machine code is kept beside the source or in the user's cache directory.
    """
    try:
        return cast("Function", numba.njit(cache=True, error_model="numpy")(function))
    except RuntimeError:
        # Neither place can be written: it is compiled again in each process.
        return cast("Function", numba.njit(function, error_model="numpy"))
