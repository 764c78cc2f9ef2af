"""The CUDA driver under its plain name, for scripts that tests run in processes of their own.

`cuda` is the library: each function returns its CUresult. `tell(value)` writes what the test reads; `wait()` returns
when the test closes the script's standard input.
"""

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p  # noqa: F401

OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, NOT_FOUND, NOT_READY, NOT_PERMITTED = 2, 3, 100, 500, 600, 800
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNJOINED = 900, 901, 904
MIB, GIB = 1 << 20, 1 << 30

cuda = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("metadata", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProps(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("max_size", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class Array3D(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_int),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class AllocNode(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProps),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("address", c_uint64),
    ]


class MemsetNode(ctypes.Structure):
    _fields_ = [
        ("address", c_uint64),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("element_size", c_uint),
        ("width", c_size_t),
        ("height", c_size_t),
    ]


def on_device(device: int = 0) -> AllocationProp:
    return AllocationProp(type=1, location=Location(1, device))


def ok(result: int) -> None:
    if result:
        sys.exit(f"CUDA error {result}")


def tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def wait() -> None:
    sys.stdin.read()


def context(device: int = 0) -> c_void_p:
    """Return the primary context of a device, current in this thread."""
    made = c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(byref(made), device))
    ok(cuda.cuCtxSetCurrent(made))
    return made


def allocate(size: int) -> c_uint64:
    address = c_uint64()
    ok(cuda.cuMemAlloc_v2(byref(address), c_size_t(size)))
    return address


def create(size: int) -> c_uint64:
    """Return a handle of physical memory."""
    handle = c_uint64()
    ok(cuda.cuMemCreate(byref(handle), c_size_t(size), byref(on_device()), c_uint64(0)))
    return handle


def exported(handle: c_uint64) -> int:
    """Return a descriptor of physical memory."""
    descriptor = c_int()
    ok(cuda.cuMemExportToShareableHandle(byref(descriptor), handle, 1, c_uint64(0)))
    return descriptor.value


def imported(descriptor: int) -> c_uint64:
    handle = c_uint64()
    ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(descriptor), 1))
    return handle


def mapped(handle: c_uint64, size: int) -> c_uint64:
    """Return an address at which physical memory is mapped."""
    address = c_uint64()
    ok(cuda.cuMemAddressReserve(byref(address), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0)))
    ok(cuda.cuMemMap(address, c_size_t(size), c_size_t(0), handle, c_uint64(0)))
    return address


def refused(size: int) -> int:
    """Return the result of an allocation."""
    return cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(size))


def free_and_total() -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value


def kernel(name: str) -> c_void_p:
    module, function = c_void_p(), c_void_p()
    ok(cuda.cuModuleLoadData(byref(module), b"image"))
    ok(cuda.cuModuleGetFunction(byref(function), module, name.encode()))
    return function


def launch(function: c_void_p, stream: c_void_p | None = None) -> int:
    return cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, None, None)


def new_stream() -> c_void_p:
    stream = c_void_p()
    ok(cuda.cuStreamCreate(byref(stream), 0))
    return stream
