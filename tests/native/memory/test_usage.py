"""One cap for all processes of a container, even if some are killed."""

import json
import os
import signal
import struct
import subprocess

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NOT_PERMITTED, OUT_OF_MEMORY, Container

GRANTED = '{"error": 0}\n'
REFUSED = f'{{"error": {OUT_OF_MEMORY}}}\n'


@pytest.fixture(params=["", "address,undefined", "thread"], ids=["plain", "sanitized", "threads sanitized"])
def any_container(request, fake_driver, build_native):
    return Container(fake_driver, build_native, request.param).start()


def test_two_processes_share_one_cap(any_container):
    first = any_container.popen("hold", 1024 * MIB)
    assert first.stdout.readline() == GRANTED
    second = any_container.popen("hold", CAP - 1024 * MIB - 2 * CONTEXT + 1)
    assert second.stdout.readline() == REFUSED
    third = any_container.popen("hold", CAP - 1024 * MIB - 3 * CONTEXT)
    assert third.stdout.readline() == GRANTED
    for process in (first, second, third):
        process.communicate()


def test_processes_that_are_killed_at_random_never_exceed_the_cap_by_a_byte(fake_driver, any_container):
    """Eight processes that churn; the device's own figure is looked at some thousand times."""
    fake_driver.init(2, 8 << 30, "--context", str(32 * MIB))
    any_container.start(context_bytes=32 * MIB)
    seen = any_container.client("killing", 40 if any_container.sanitize else 250, 8)
    assert 0 < seen["most"] <= CAP
    assert any_container.client("fill", "linear", CAP - 32 * MIB)["count"] == 1


def test_a_killed_process_leaves_its_memory_even_while_nobody_has_waited_for_it(container):
    holder = container.popen("hold", CAP - 2 * CONTEXT)
    assert holder.stdout.readline() == GRANTED
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert container.client("fill", "linear", CAP - CONTEXT)["count"] == 1
    holder.communicate()


def test_a_dead_process_leaves_its_memory_to_those_that_came_after_it(container):
    first = container.popen("hold", 512 * MIB)
    assert first.stdout.readline() == GRANTED
    second = container.popen("hold", 512 * MIB)  # only now, so that its slot is behind the first one's
    assert second.stdout.readline() == GRANTED
    first.kill()
    first.communicate()
    third = container.popen("hold", CAP - 512 * MIB - 2 * CONTEXT)
    assert third.stdout.readline() == GRANTED
    for process in (second, third):
        process.communicate()


# The table's layout (native/usage_table.h): the mutex, the sums, the slots.
MUTEX, TOTAL, SLOTS, SLOT_BYTES = 16, 56, 320, 24 + 16 * 8


def pids_in(container) -> list[int]:
    table = container.usage.read_bytes()
    return [struct.unpack_from("i", table, SLOTS + slot * SLOT_BYTES)[0] for slot in range(16)]


def test_the_sum_follows_each_change(fake_driver, container):
    """Were it too high, each allocation would look for dead processes first."""
    script = f"""
        import os, struct
        def total():
            return struct.unpack_from("Q", open({str(container.usage)!r}, "rb").read(), {TOTAL})[0]
        context()
        sums, kept = [total()], [allocate(256 * MIB), allocate(256 * MIB), create(256 * MIB)]
        os.close(exported(kept[2]))
        sums.append(total())
        for address in kept[:2]:
            ok(cuda.cuMemFree_v2(address))
            sums.append(total())
        ok(cuda.cuMemRelease(kept[2]))
        tell([this // MIB for this in [*sums, total()]])
    """
    assert fake_driver.run(script, container.libraries) == [256, 1024, 768, 512, 256]


def test_a_process_whose_number_another_has_now_leaves_its_memory(container):
    """The number is the same, and the time at which it began is not."""
    holder = container.popen("hold", CAP - 2 * CONTEXT)
    assert holder.stdout.readline() == GRANTED
    with container.usage.open("r+b") as table:
        table.seek(SLOTS + 8)
        (started,) = struct.unpack("Q", table.read(8))
        table.seek(SLOTS + 8)
        table.write(struct.pack("Q", started - 1))
    assert container.client("fill", "linear", CAP - CONTEXT)["count"] == 1
    holder.communicate()


def test_sums_that_a_killed_process_left_wrong_are_counted_again(fake_driver, container):
    """It is killed while it has the lock, after it noted a release in the sum and before its slot."""
    script = f"""
        import mmap, os, signal
        context()
        allocate({CAP - CONTEXT - 64 * MIB})
        if os.fork() == 0:
            table = mmap.mmap(os.open({str(container.usage)!r}, os.O_RDWR), 0)
            start = ctypes.addressof(ctypes.c_char.from_buffer(table))
            ctypes.CDLL(None).pthread_mutex_lock(c_void_p(start + {MUTEX}))
            c_uint64.from_address(start + {TOTAL}).value = 0
            os.kill(os.getpid(), signal.SIGKILL)
        os.wait()
        tell([refused(128 * MIB), refused(64 * MIB)])
    """
    assert fake_driver.run(script, container.libraries) == [OUT_OF_MEMORY, 0]


def test_a_forked_child_has_an_account_of_its_own(fake_driver, container):
    """The driver refuses a child of a process that used it. What the child had reserved must not be its parent's."""
    script = """
        import os
        context()
        ready, go = os.pipe(), os.pipe()
        if (child := os.fork()) == 0:
            cuda.cuMemCreate(byref(c_uint64()), c_size_t(2 * MIB), byref(on_device()), c_uint64(0))
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        tell([os.getpid(), child])
        wait()
        os.write(go[1], b"x")
        os.wait()
    """
    process = fake_driver.start(script, container.libraries)
    parent, child = json.loads(process.stdout.readline())
    pids = pids_in(container)
    process.communicate()
    assert pids[:2] == [parent, child]


def test_a_program_that_replaces_itself_leaves_its_memory(container):
    seen = container.client("exec", CAP - CONTEXT)
    assert seen["full"] == CAP


def test_forked_children_are_charged_for_themselves(fake_driver, any_container):
    fake_driver.init(2, 8 << 30, "--context", str(64 * MIB))
    any_container.start(context_bytes=64 * MIB)
    seen = any_container.client("fork", 256 * MIB, 8, "libnvidia-ml.so.1")
    assert seen["granted"] == (CAP - 8 * 64 * MIB) // (256 * MIB)
    assert seen["used"] == seen["seen"] == CAP
    assert any_container.client("fill", "linear", CAP - 64 * MIB)["count"] == 1


def test_threads_leave_a_table_that_adds_up(any_container):
    assert any_container.client("threads", 4, 300) == {"used": CONTEXT, "free": CAP - CONTEXT, "total": CAP}


def test_many_short_processes_leave_nothing_behind(container):
    script = 'for i in $(seq 120); do timeout 10 "$@" >/dev/null & [ $((i % 20)) = 0 ] && wait; done; wait'
    words = [container.program("memory_client"), container.judge, "0", "info"]
    subprocess.run(["bash", "-c", script, "bash", *map(str, words)], env=container.environment, check=True, timeout=60)
    assert container.client("info")["free"] == CAP - CONTEXT


@pytest.mark.parametrize("content", [b"\1", b"not a table" * 40000, None], ids=["short", "long", "of the right size"])
def test_a_table_that_is_not_one_refuses(container, content):
    if content is None:
        container.client("info")
        content = b"\xff" * container.usage.stat().st_size
    container.usage.write_bytes(content)
    process = container.popen("info")
    _, errors = process.communicate(timeout=30)
    first, second = errors.splitlines()
    assert first.startswith(f"muster fgpu: the table of GPU memory in use, {container.usage}, cannot be used (it ")
    assert second.endswith(f"CUDA error {NOT_PERMITTED}")


def test_why_no_memory_is_given_is_said_once(fake_driver, plain_container):
    plain_container.usage.write_bytes(b"something else" * 1000)
    script = "cuda.cuInit(0)\ntell([cuda.cuCtxCreate_v2(byref(c_void_p()), 0, 0) for _ in range(5)])"
    command, environment = fake_driver.command(script, plain_container.libraries)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == f"{[NOT_PERMITTED] * 5}\n"
    assert len(done.stderr.splitlines()) == 1


def test_a_process_that_spoils_the_lock_of_the_table_gets_nothing_more(fake_driver, container):
    """What it frees or shares meanwhile stays charged until it ends."""
    script = f"""
        import os
        def spoilt(kind):
            with open({str(container.usage)!r}, "r+b") as table:
                table.seek({MUTEX} + 16)
                before = table.read(1)
                table.seek({MUTEX} + 16)
                table.write(kind)
            return before
        context()
        exports, shares, frees = create(64 * MIB), allocate(64 * MIB), allocate(64 * MIB)
        kind = spoilt(b"\\x7f")  # of no mutex
        descriptor = exported(exports)
        ok(cuda.cuIpcGetMemHandle(byref((c_uint64 * 8)()), shares))
        ok(cuda.cuMemFree_v2(frees))
        answers = [refused(MIB), cuda.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t()))]
        spoilt(kind)
        ok(cuda.cuMemRelease(exports))
        os.close(descriptor)
        ok(cuda.cuMemFree_v2(shares))
        tell([*answers, free_and_total()[0]])
    """
    command, environment = fake_driver.command(script, container.libraries)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout == f"{[NOT_PERMITTED, NOT_PERMITTED, CAP - CONTEXT - 192 * MIB]}\n", done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert container.client("info")["free"] == CAP - CONTEXT


@pytest.mark.parametrize("rest", [b"\0", b"\xff"], ids=["empty", "of something else"])
def test_a_table_whose_maker_was_killed_is_made_again(container, rest):
    """Its first word is written last."""
    container.client("info")
    container.usage.write_bytes(bytes(8) + rest * (container.usage.stat().st_size - 8))
    assert container.client("info")["free"] == CAP - CONTEXT


def test_a_table_without_room_refuses_instead_of_ending_the_program_later(container, tmp_path):
    """The file system of the table is full: of pages that it lacks, the Linux kernel would tell by a signal."""
    (tmp_path / "full.c").write_text(
        "#include <errno.h>\n#include <fcntl.h>\n"
        "int posix_fallocate(int file, off_t from, off_t length)\n"
        "{ (void)file, (void)from, (void)length; return ENOSPC; }"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "full.c", "-o", tmp_path / "full.so"], check=True)
    words = [container.program("memory_client"), container.judge, "0", "info"]
    environment = container.environment | {"LD_PRELOAD": str(tmp_path / "full.so")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=30)
    first, second = done.stderr.splitlines()
    assert f"{container.usage}, cannot be used (No space left on device)" in first
    assert second.endswith(f"CUDA error {NOT_PERMITTED}")
    assert container.client("info")["free"] == CAP - CONTEXT, "there is room again"


def test_every_user_of_the_container_may_use_the_table(container):
    container.client("info")
    assert container.usage.stat().st_mode & 0o777 == 0o666


MOST_SLOTS, SLOTS_USED = 2048, 312


def test_a_container_with_as_many_processes_as_places_gives_another_nothing(container):
    holder = container.popen("hold", 2 * MIB)
    assert holder.stdout.readline() == GRANTED
    with container.usage.open("r+b") as table:
        table.seek(SLOTS)
        slot = table.read(SLOT_BYTES)
        empty = slot[:24] + bytes(SLOT_BYTES - 24)  # of a process that lives
        table.seek(SLOTS + SLOT_BYTES)
        table.write(empty * (MOST_SLOTS - 1))
        table.seek(SLOTS_USED)
        table.write(struct.pack("I", MOST_SLOTS))
    before = container.usage.read_bytes()[SLOTS:]
    process = container.popen("info")
    _, errors = process.communicate(timeout=30)
    assert errors.endswith(f"CUDA error {OUT_OF_MEMORY}\n")
    assert container.usage.read_bytes()[SLOTS:] == before
    holder.communicate()
    assert container.client("info")["free"] == CAP - CONTEXT, "all of them have ended"
