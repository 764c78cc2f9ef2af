"""One process's part in a lease (native/lease_turn.c), step by step, at times that the test makes up."""

import ctypes
import subprocess
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_uint, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from tests.native.lease.test_lease_table import NOW, Table
from tests.native.lease_gpu import NATIVE
from tests.native.virtual_clock import MS, SECOND

SHUT = NEVER = 2**64 - 1
UNLIMITED = (2**63 - 1) // 2
PATIENCE, WATCH, WAITER_WATCH, DRAIN_LIMIT, SOLITUDE = 2 * MS, MS, 25 * MS, 200 * MS, SECOND


def load_steps(directory: Path) -> ctypes.CDLL:
    """Return the lease's steps, compiled with a clock that the test sets."""
    built = directory / "steps.so"
    sources = [Path(__file__).with_name("lease_steps.c"), NATIVE / "lease_turn.c", NATIVE / "lease_table.c"]
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{NATIVE}", "-include", NATIVE / "old_glibc.h"]
    subprocess.run(["gcc", *flags, "-Wl,--wrap=monotonic_ns", *sources, "-o", built], check=True)
    loaded = ctypes.CDLL(str(built))
    for name, result, *arguments in (
        ("steps_new", c_void_p, c_void_p, c_uint, c_uint, c_uint, c_bool),
        ("steps_field", c_uint64, c_void_p, c_char_p, POINTER(c_uint64)),
        ("steps_member", c_int, c_void_p),
        ("lease_step", c_uint64, c_void_p, c_uint64),
        ("lease_drained", None, c_void_p, c_uint32, c_int64, c_bool, c_uint64),
        ("lease_estimated_rest", c_uint64, c_void_p, c_int64, c_uint64),
        ("lease_request_drain", None, c_void_p),
        ("lease_launches", c_int64, c_void_p),
        ("lease_table_join", c_uint, c_void_p, c_uint64, c_uint64),
        ("lease_table_wait", c_bool, c_void_p, c_uint, c_uint64),
    ):
        getattr(loaded, name).restype, getattr(loaded, name).argtypes = result, arguments
    return loaded


class Process:
    """A process of a container with an account of its own. Attributes are the fields of its lease."""

    credits: int

    def __init__(self, gpu, share=500, limit=0, *, best_effort=False):
        account = gpu.library.lease_table_join(ctypes.byref(gpu.table), 1 + gpu.joined, gpu.now)
        gpu.joined += 1
        entry = gpu.table.accounts[account]
        entry.share_milli, entry.limit_milli, entry.best_effort = share, limit, best_effort
        lease = gpu.library.steps_new(ctypes.byref(gpu.table), account, share, limit, best_effort)
        vars(self).update(gpu=gpu, account=account, entry=entry, lease=lease)

    def __getattr__(self, name: str) -> Any:
        field = {"open": "gate.open", "credits": "gate.credits"}.get(name, name)
        value = self.gpu.library.steps_field(self.lease, field.encode(), None)
        return value - 2**64 if name == "credits" and value >= 2**63 else value

    def __setattr__(self, name: str, value: int) -> None:
        field = {"open": "gate.open", "credits": "gate.credits"}.get(name, name)
        self.gpu.library.steps_field(self.lease, field.encode(), ctypes.byref(c_uint64(value)))

    def step(self, after=0):
        self.gpu.forward(after)
        return self.gpu.library.lease_step(self.lease, self.gpu.now)

    def block(self):
        """A launch that has to wait."""
        self.blocked = 1
        self.blocked_since = self.gpu.now
        return self.step()

    def launch(self, count=1):
        """Launches that need not wait, or take the credit for which they waited."""
        self.blocked = 0
        left: int = self.credits
        self.credits = left - count

    def drain(self, after=0, *, waited=True):
        """The end of the drain that was requested."""
        count = self.gpu.library.lease_launches(self.lease)
        self.gpu.forward(after)
        self.gpu.library.lease_drained(self.lease, self.drains_requested, count, waited, self.gpu.now)

    @property
    def member(self):
        place = self.gpu.library.steps_member(self.lease)
        return None if place < 0 else self.gpu.table.members[place]


class Gpu:
    """A table at a time of the test."""

    def __init__(self, library):
        self.library, self.table, self.now, self.joined = library, Table(), NOW, 0
        self.forward(0)

    def forward(self, ns):
        self.now += ns
        c_uint64.in_dll(self.library, "steps_now").value = self.now

    def waits(self, process):
        """Note that another container's process waits."""
        self.library.lease_table_wait(ctypes.byref(self.table), process.account, self.now)

    @property
    def holder(self):
        return self.table.grant % 256


def a_process_alone(gpu):
    """Return a process that has entered its turn, with kernels of 1 ms."""
    process = Process(gpu)
    process.block()
    process.launch()
    process.launch_ns = MS
    return process
