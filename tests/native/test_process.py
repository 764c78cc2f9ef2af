"""Whether a process still lives, by its number, its namespace, its begin and its program (native/process.c)."""

import ctypes
import json
import os
import subprocess
import sys
from ctypes import Structure, c_int32, c_uint32, c_uint64
from functools import partial
from pathlib import Path

import pytest

from tests.native.lease_gpu import NATIVE
from tests.waiting import eventually

DEAD_NUMBER = 2**31 - 1  # above the highest that the Linux kernel gives


class Process(Structure):
    _fields_ = [("pid", c_int32), ("pid_namespace", c_uint32), ("started", c_uint64), ("stack", c_uint64)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    built = tmp_path_factory.mktemp("process") / "process.so"
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{NATIVE}", "-include", NATIVE / "old_glibc.h"]
    subprocess.run(["gcc", *flags, NATIVE / "process.c", "-o", built], check=True)
    return built


@pytest.fixture(scope="module")
def process(built):
    """Return the library, and this process."""
    library, self = ctypes.CDLL(str(built)), Process()
    library.process_alive.restype = ctypes.c_bool
    library.process_self(ctypes.byref(self))
    return library, self


def alive(process, **changed):
    """Return whether a process lives that is like this one but for `changed`."""
    library, self = process
    other = Process(**{name: changed.get(name, getattr(self, name)) for name, *_ in Process._fields_})
    return library.process_alive(ctypes.byref(other), ctypes.byref(self))


def stat_of(pid):
    """Return state, begin and stack's address as the Linux kernel says them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return fields[0], int(fields[19]), int(fields[25])


def test_a_process_knows_itself(process):
    _, self = process
    namespace = int(str(Path("/proc/self/ns/pid").readlink())[5:-1])
    assert (self.pid, self.pid_namespace) == (os.getpid(), namespace)
    assert ("R", self.started, self.stack) == stat_of("self")


def test_a_process_lives_unless_it_has_certainly_ended(process):
    _, self = process
    assert alive(process)
    assert alive(process, started=0, stack=0)
    assert alive(process, stack=1), "what some Linux kernels show instead of an address"
    assert alive(process, pid=DEAD_NUMBER, pid_namespace=self.pid_namespace + 1)
    assert not alive(process, pid=DEAD_NUMBER)
    assert not alive(process, started=self.started + 1)
    assert not alive(process, stack=self.stack + 16)


def test_a_zombie_has_ended_unless_other_threads_of_it_live(process):
    first_thread_ends = (
        "import ctypes, threading; threading.Thread(target=input).start(); ctypes.CDLL(None).syscall(60, 0)"
    )
    for script, lives in (("", False), (first_thread_ends, True)):
        other = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
        if lives:
            eventually(partial(stat_of, other.pid), lambda seen: seen[0] == "Z")
        else:
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        state, started, _ = stat_of(other.pid)
        assert (state, alive(process, pid=other.pid, started=started, stack=0)) == ("Z", lives)
        other.kill()
        other.communicate()


def test_a_process_that_cannot_be_looked_at_counts_as_alive(built):
    """A program without a free descriptor can read nothing of others, nor of itself."""
    script = f"""
import ctypes, json, os, resource
library = ctypes.CDLL({str(built)!r})
library.process_alive.restype = ctypes.c_bool
self, other = (ctypes.c_uint64 * 3)(), (ctypes.c_uint64 * 3)(0, 12345, 67890)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
library.process_self(self)
other[0] = self[0]
print(json.dumps([self[1], self[2], library.process_alive(other, self)]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [0, 0, True]
