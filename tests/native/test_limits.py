"""Which GPU of the limits a device is, by the bytes of its UUID (native/limits.c)."""

import ctypes
import subprocess
import uuid

import pytest

from tests.native.lease_gpu import NATIVE

LOWER, UPPER = "01234567-89ab-cdef-0123-456789abcdef", "FEDCBA98-7654-3210-FEDC-BA9876543210"
SHORT, LONG = "11111111-1111-1111-1111-1111111111", "22222222-2222-2222-2222-2222222222220"


@pytest.fixture
def gpu_of(tmp_path):
    """Return a function from a UUID's bytes to the index of its GPU in the limits; -1: there is none."""
    gpus = "".join(f"gpu GPU-{text} 2097152 1\n" for text in (LOWER, UPPER, SHORT, LONG))
    (tmp_path / "limits").write_text(f"version 1\nkernel k\ncompute none\ncontext_bytes 0\n{gpus}")
    command = ["gcc", "-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{NATIVE}", "-include", NATIVE / "old_glibc.h"]
    command += [f'-DFGPU_LIMITS="{tmp_path}/limits"', NATIVE / "limits.c", "-o", tmp_path / "limits.so"]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "limits.so"))
    library.limits_get.restype = ctypes.c_void_p
    limits = ctypes.c_void_p(library.limits_get())
    return lambda sixteen: library.limits_gpu_of_uuid_bytes(limits, sixteen)


def test_a_gpu_is_known_by_each_digit_of_its_uuid_in_either_case(gpu_of):
    for index, text in enumerate((LOWER, UPPER)):
        whole = uuid.UUID(text).bytes
        assert gpu_of(whole) == index
        for at in range(16):
            for bit in range(8):
                other = bytearray(whole)
                other[at] ^= 1 << bit
                assert gpu_of(bytes(other)) == -1


def test_a_uuid_of_too_few_or_too_many_digits_is_of_no_gpu(gpu_of):
    assert gpu_of(bytes.fromhex("11" * 15 + "10")) == gpu_of(bytes.fromhex("22" * 16)) == -1
