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


OLD_KERNEL = """
#include <errno.h>
#include <stddef.h>
int madvise(void *start, size_t length, int advice)
{
    (void)start, (void)length, (void)advice;
    errno = EINVAL;
    return -1;
}
"""


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_forked_child_forgets_once_what_was_its_parents(built, tmp_path, kernel):
    """Linux wipes a page in a child since 4.14; on an older one the C library calls a handler in it."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    if kernel == "old":
        (tmp_path / "old.c").write_text(OLD_KERNEL)
        subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "old.c", "-o", tmp_path / "old.so"], check=True)
        environment["LD_PRELOAD"] = str(tmp_path / "old.so")
    script = f"""
import ctypes, os
library, seen = ctypes.CDLL({str(built)!r}), []
forget = ctypes.CFUNCTYPE(None)(lambda: seen.append(os.getpid()))
library.process_on_fork(forget)
mark = ctypes.POINTER(ctypes.c_int).in_dll(library, "process_mark")
def check():
    if mark[0] != 1:
        library.process_after_fork()
check()
assert seen == []
if os.fork() == 0:
    check()
    check()
    assert seen == [os.getpid()]
    if os.fork() == 0:
        check()
        assert seen == [os.getppid(), os.getpid()]
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
status = os.waitstatus_to_exitcode(os.wait()[1])
check()
assert (status, seen) == (0, [])
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


# Opens a file of the test in the place of what the Linux kernel says of a process.
ODD_KERNEL = """
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int open(const char *path, int flags, ...)
{
    return (int)syscall(SYS_openat, AT_FDCWD, strncmp(path, "/proc/", 6) == 0 ? STAT : path, flags, 0666);
}
"""


def test_a_process_of_which_not_all_is_said_counts_as_alive(built, tmp_path):
    """Fields are counted from the last bracket on. Its begin, the 22nd, is compared if all of them are there."""
    stat = tmp_path / "stat"
    (tmp_path / "odd.c").write_text(ODD_KERNEL)
    command = ["gcc", "-shared", "-fPIC", f'-DSTAT="{stat}"', tmp_path / "odd.c", "-o", tmp_path / "odd.so"]
    subprocess.run(command, check=True)
    whole = " ".join(["7 (a) b) R", *map(str, range(4, 29))])
    short = whole.removesuffix(" 28")
    script = f"""
import ctypes, json, os
library = ctypes.CDLL({str(built)!r})
library.process_alive.restype = ctypes.c_bool
found = []
for text in {["", "7 (a", "7 (a)", "7 (a) ", short, short + " ", whole]}:
    with os.fdopen(os.open({str(stat)!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "w") as file:
        file.write(text)
    self = (ctypes.c_uint64 * 3)()
    library.process_self(self)
    other = (ctypes.c_uint64 * 3)(self[0], 99, 28)
    found.append([self[1], self[2], library.process_alive(other, self)])
print(json.dumps(found))
"""
    environment = os.environ | {"LD_PRELOAD": str(tmp_path / "odd.so")}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [*[[0, 0, True]] * 6, [22, 28, False]]
