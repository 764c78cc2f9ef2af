"""Functions that numba compiles, once for each user and machine: docs/adr/0009 says what that buys."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Protocol, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Array = TypeVar("Array", Ints, Floats, Flags)
Function = TypeVar("Function", bound=Callable[..., Any])

_parts = sha256()


class _Borrowed(Protocol):
    def __call__(self, array: Array, /) -> Array: ...


def _uncounted(_context: Any, array: Any) -> Any:  # noqa: ANN401 - numba's own, without types
    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401 - the same
        value = context.make_array(signature.return_type)(context, builder, arguments[0])
        value.meminfo = value.meminfo.type(None)
        value.parent = value.parent.type(None)
        return value._getvalue()  # noqa: SLF001

    return array(array), generated


borrowed: _Borrowed = cast("_Borrowed", intrinsic(_uncounted))
"""Return the array without a count of its references, in compiled functions.

That is safe for arguments of an entry point: the tuple that Python passes keeps them until the call returns, and the
compiled code keeps none of them beyond that. An array that compiled code makes itself must not be borrowed.

Otherwise compiled functions count the references of each array that they pass on, by atomic operations: that costs
more than most of their work.
"""


class _PartLibrary(JITCodeLibrary):
    """The code of one part, in LLVM's language.

    By itself, numba would optimize each part, make machine code of it, and load that. But an entry point takes its
    parts in as they are in LLVM's language, and is then optimized and made machine code as a whole.
    """

    def _optimize_final_module(self) -> None:
        """Do nothing: see above."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True

    def get_pointer_to_function(self, _name: str) -> int:
        """Return what says that there is no machine code."""
        return 0

    @property
    def codegen(self) -> "_PartLibrary":
        return self

    def set_env(self, _name: str, _environment: object) -> None:
        """Do nothing: the environment of a part is for calls from Python."""


class _PartCompiler(Compiler):
    def define_pipelines(self) -> Any:  # noqa: ANN401 - numba's own, without types
        state = self.state
        state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        name = state.func_id.func_qualname
        state.library = _PartLibrary(state.targetctx.codegen(), name)  # type: ignore[no-untyped-call]
        return super().define_pipelines()  # type: ignore[no-untyped-call]


def part(function: Function) -> Function:
    """Return the function compiled, for calls from compiled functions only: one from Python would crash."""
    code = function.__code__
    constants = [(name, function.__globals__.get(name)) for name in code.co_names]
    known = [(name, value) for name, value in constants if isinstance(value, int | float)]
    _parts.update(repr((code.co_code, code.co_consts, code.co_names, known)).encode())
    return cast("Function", numba.njit(function, error_model="numpy", pipeline_class=_PartCompiler))


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
