"""The fake driver behaves as a driver does: what the fGPU libraries are tested on must not forgive their mistakes."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.native.fake_driver import REPOSITORY, FakeDriver
from tests.native.virtual_clock import VirtualClock

ABI = REPOSITORY / "native/abi"
MIB, GIB = 1 << 20, 1 << 30
CONTEXT = 256 * MIB


def exported(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    return {line.split()[2] for line in done.stdout.splitlines()}


def declared(header: str, prefix: str) -> set[str]:
    text = (ABI / header).read_text()
    twins = {f"{name}_ptsz" for name in re.findall(r"^ON_STREAM\((\w+)", text, re.MULTILINE)}
    forms = ("", "_v2", "_v2_ptds", "Async", "Async_ptsz")
    memsets = re.findall(r"^MEMSET(?:_2D)?\((\w+)", text, re.MULTILINE)
    twins |= {f"{name}{form}" for name in memsets for form in forms}
    return twins | set(re.findall(rf"^(?:[\w ]+[ *]|ON_STREAM\()({prefix}[A-Z]\w+)[(,]", text, re.MULTILINE))


def test_the_fake_driver_exports_just_the_functions_of_the_headers(fake_driver: FakeDriver):
    assert exported(fake_driver.directory / "libcuda.so.1") == declared("cuda_functions.h", "cu")
    unsupported = set(
        re.findall(r"UNSUPPORTED\((\w+)\)", (REPOSITORY / "tests/fake_driver/unsupported.def").read_text())
    )
    assert exported(fake_driver.directory / "libnvidia-ml.so.1") == declared("nvml.h", "nvml") | unsupported


def test_the_fake_driver_loads_into_images_with_an_old_c_library(fake_driver: FakeDriver):
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        command = ["readelf", "--version-info", "--wide", fake_driver.directory / library]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        needed = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", done.stdout)}
        assert max(needed) <= (2, 17)


def test_memory_is_counted_to_the_byte_and_a_context_costs_some(fake_driver: FakeDriver):
    free, total, after = fake_driver.run("""
        context()
        first = allocate(12345)
        free, total = free_and_total()
        ok(cuda.cuMemFree_v2(first))
        tell([free, total, free_and_total()[0]])
    """)
    assert (free, total, after) == (8 * GIB - CONTEXT - 12345, 8 * GIB, 8 * GIB - CONTEXT)
    assert fake_driver.used_bytes() == 0


def test_two_processes_share_a_device(fake_driver: FakeDriver):
    holder = fake_driver.start("context(); allocate(5 * GIB); tell(0); wait()")
    holder.stdout.readline()
    assert fake_driver.run("context(); tell([refused(3 * GIB), refused(2 * GIB)])") == [2, 0]
    holder.communicate()
    assert fake_driver.run("context(); tell(refused(7 * GIB))") == 0


def test_a_killed_process_leaves_no_bytes(fake_driver: FakeDriver):
    holder = fake_driver.start("context(); allocate(7 * GIB); tell(0); wait()")
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert fake_driver.run("context(); tell(refused(7 * GIB))") == 0


def test_memory_of_the_dead_may_come_free_late(fake_driver: FakeDriver):
    fake_driver.init(1, GIB, "--context", "0", "--free-delay-ms", "50")
    holder = fake_driver.start("context(); allocate(GIB); tell(0); wait()")
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    script = "import time; context(); first = refused(GIB); time.sleep(0.06); tell([first, refused(GIB)])"
    assert fake_driver.run(script) == [2, 0]


def test_a_child_of_a_process_that_used_it_cannot(fake_driver: FakeDriver):
    parent, child = fake_driver.run("""
        import os
        context()
        pid = os.fork()
        if pid == 0:
            os._exit(cuda.cuInit(0))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        tell([refused(MIB), status])
    """)
    assert (parent, child) == (0, 3)


def test_a_parent_that_dies_before_its_child_is_seen_as_dead(fake_driver: FakeDriver):
    holder = fake_driver.start("""
        import os
        context(); allocate(MIB)
        if os.fork() == 0:
            tell("forked")
            wait()
        os._exit(0)
    """)
    holder.stdout.readline()
    holder.wait()
    assert fake_driver.used_bytes() == 0
    holder.communicate()


def test_a_destroyed_context_gives_back_all_it_held(fake_driver: FakeDriver):
    left = fake_driver.run("""
        ok(cuda.cuInit(0))
        first, second = c_void_p(), c_void_p()
        ok(cuda.cuCtxCreate_v2(byref(first), 0, 0))
        allocate(GIB)
        ok(cuda.cuCtxCreate_v2(byref(second), 0, 0))
        ok(cuda.cuCtxDestroy_v2(first))
        tell(free_and_total()[0])
    """)
    assert left == 8 * GIB - CONTEXT


def test_pitch_arrays_and_mipmaps_take_what_a_driver_takes(fake_driver: FakeDriver):
    pitch, steps = fake_driver.run("""
        context()
        free = [free_and_total()[0]]
        address, pitch = c_uint64(), c_size_t()
        ok(cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(513), c_size_t(10), 4))
        free.append(free_and_total()[0])
        array = c_void_p()
        shape = Array3D(width=64, height=32, depth=0, format=0x20, channels=4)
        ok(cuda.cuArray3DCreate_v2(byref(array), byref(shape)))
        free.append(free_and_total()[0])
        levels = c_void_p()
        ok(cuda.cuMipmappedArrayCreate(byref(levels), byref(shape), 3))
        free.append(free_and_total()[0])
        ok(cuda.cuMipmappedArrayDestroy(levels))
        ok(cuda.cuArrayDestroy(array))
        free.append(free_and_total()[0])
        tell([pitch.value, [before - after for before, after in zip(free, free[1:])]])
    """)
    array, mipmap = 64 * 32 * 16, (64 * 32 + 32 * 16 + 16 * 8) * 16
    assert (pitch, steps) == (1024, [10 * 1024, array, mipmap, -array - mipmap])


def test_virtual_memory_lives_until_its_last_handle_and_mapping_are_gone(fake_driver: FakeDriver):
    used = fake_driver.run("""
        context()
        start = free_and_total()[0]
        used = []
        handle, again, address = c_uint64(), c_uint64(), c_uint64()
        odd = cuda.cuMemCreate(byref(handle), c_size_t(MIB), byref(on_device()), c_uint64(0))
        ok(cuda.cuMemCreate(byref(handle), c_size_t(4 * MIB), byref(on_device()), c_uint64(0)))
        ok(cuda.cuMemAddressReserve(byref(address), c_size_t(4 * MIB), c_size_t(0), c_uint64(0), c_uint64(0)))
        ok(cuda.cuMemMap(address, c_size_t(4 * MIB), c_size_t(0), handle, c_uint64(0)))
        ok(cuda.cuMemRelease(handle))
        used.append(start - free_and_total()[0])
        ok(cuda.cuMemRetainAllocationHandle(byref(again), c_void_p(address.value)))
        ok(cuda.cuMemUnmap(address, c_size_t(4 * MIB)))
        used.append(start - free_and_total()[0])
        ok(cuda.cuMemRelease(again))
        used.append(start - free_and_total()[0])
        tell([odd, used])
    """)
    assert used == [1, [4 * MIB, 4 * MIB, 0]]


def test_a_pool_keeps_what_was_freed_until_it_is_trimmed_or_synchronised(fake_driver: FakeDriver):
    assert fake_driver.run("""
        context()
        start = free_and_total()[0]
        pool, address = c_void_p(), c_uint64()
        ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
        def reserved_and_used():
            values = []
            for attribute in (5, 7):
                value = c_uint64()
                ok(cuda.cuMemPoolGetAttribute(pool, attribute, byref(value)))
                values.append(value.value // MIB)
            return [*values, (start - free_and_total()[0]) // MIB]
        seen = []
        ok(cuda.cuMemAllocAsync(byref(address), c_size_t(40 * MIB), None))
        seen.append(reserved_and_used())
        ok(cuda.cuMemFreeAsync(address, None))
        seen.append(reserved_and_used())
        ok(cuda.cuCtxSynchronize())
        seen.append(reserved_and_used())
        ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(2**64 - 1))))
        ok(cuda.cuMemAllocAsync(byref(address), c_size_t(40 * MIB), None))
        ok(cuda.cuMemFreeAsync(address, None))
        ok(cuda.cuCtxSynchronize())
        seen.append(reserved_and_used())
        ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
        seen.append(reserved_and_used())
        tell(seen)
    """) == [[64, 40, 64], [64, 0, 64], [0, 0, 0], [64, 0, 64], [0, 0, 0]]


def test_a_graph_takes_its_memory_at_launch_and_keeps_it_until_it_is_trimmed(fake_driver: FakeDriver):
    assert fake_driver.run("""
        context()
        start = free_and_total()[0]
        graph, node, executable = c_void_p(), c_void_p(), c_void_p()
        ok(cuda.cuGraphCreate(byref(graph), 0))
        wanted = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=10 * MIB)
        ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(wanted)))
        ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
        used = [start - free_and_total()[0]]
        ok(cuda.cuGraphLaunch(executable, None))
        used.append(start - free_and_total()[0])
        twice = cuda.cuGraphLaunch(executable, None)
        ok(cuda.cuMemFree_v2(c_uint64(wanted.address)))
        used.append(start - free_and_total()[0])
        ok(cuda.cuDeviceGraphMemTrim(0))
        used.append(start - free_and_total()[0])
        tell([twice, used])
    """) == [1, [0, 10 * MIB, 10 * MIB, 0]]


def test_a_synchronisation_breaks_a_capture(fake_driver: FakeDriver):
    assert fake_driver.run("""
        context()
        stream, graph = new_stream(), c_void_p()
        results = []
        for call in (lambda: 0, cuda.cuCtxSynchronize, lambda: cuda.cuStreamSynchronize(stream), lambda: refused(MIB)):
            ok(cuda.cuStreamBeginCapture_v2(stream, 0))
            ok(launch(kernel("spin_us_100"), stream))
            results.append([call(), cuda.cuStreamEndCapture(stream, byref(graph)), bool(graph)])
        tell(results)
    """) == [[0, 0, True], [900, 901, False], [900, 901, False], [900, 901, False]]


def test_a_stream_that_waits_for_a_captured_event_is_captured_until_it_is_joined(fake_driver: FakeDriver):
    assert fake_driver.run("""
        context()
        origin, other, event, back, graph = new_stream(), new_stream(), c_void_p(), c_void_p(), c_void_p()
        ok(cuda.cuEventCreate(byref(event), 0))
        ok(cuda.cuEventCreate(byref(back), 0))
        ends, status = [], c_int()
        for join in (False, True):
            ok(cuda.cuStreamBeginCapture_v2(origin, 2))
            ok(cuda.cuEventRecord(event, origin))
            ok(cuda.cuStreamWaitEvent(other, event, 0))
            ok(cuda.cuStreamIsCapturing(other, byref(status)))
            ok(launch(kernel("noop"), other))
            if join:
                ok(cuda.cuEventRecord(back, other))
                ok(cuda.cuStreamWaitEvent(origin, back, 0))
            ends.append([status.value, cuda.cuStreamEndCapture(origin, byref(graph))])
        tell(ends)
    """) == [[1, 904], [1, 0]]


def test_launches_are_asynchronous_and_one_device_serves_them_in_order(fake_driver: FakeDriver, clock: VirtualClock):
    script = """
        context()
        spin, start, end = kernel("spin_us_5000"), c_void_p(), c_void_p()
        ok(cuda.cuEventCreate(byref(start), 0))
        ok(cuda.cuEventCreate(byref(end), 0))
        streams = [new_stream(), new_stream()]
        ok(cuda.cuEventRecord(start, streams[0]))
        for number in range(8):
            ok(launch(spin, streams[number % 2]))
        ok(cuda.cuEventRecord(end, streams[1]))
        not_ready = cuda.cuEventQuery(end)
        ok(cuda.cuCtxSynchronize())
        elapsed = c_float()
        ok(cuda.cuEventElapsedTime(byref(elapsed), start, end))
        tell([not_ready, elapsed.value])
    """
    not_ready, milliseconds = fake_driver.run_on(clock, script)
    assert not_ready == 600
    assert milliseconds == pytest.approx(40, abs=0.1)


def test_each_process_is_charged_the_time_that_the_device_worked_for_it(fake_driver: FakeDriver):
    script = """
        context()
        spin = kernel("spin_us_2000")
        tell(0)
        sys.stdin.readline()
        for _ in range({count}):
            ok(launch(spin))
        ok(cuda.cuCtxSynchronize())
        tell(0)
        wait()
    """
    users = [fake_driver.start(script.format(count=count)) for count in (10, 20)]
    for user in users:
        user.stdout.readline()
    for user in users:
        user.stdin.write("\n")
        user.stdin.flush()
    for user in users:
        user.stdout.readline()
    uuid = fake_driver.uuids()[0]
    busy = sorted(process["devices"][uuid]["busy_ns"] for process in fake_driver.status()["processes"])
    for user in users:
        user.communicate()
    assert busy == [20_000_000, 40_000_000]


def test_the_work_of_a_killed_process_is_not_done(fake_driver: FakeDriver):
    holder = fake_driver.start("context(); [launch(kernel('spin_us_1000000')) for _ in range(600)]; tell(0); wait()")
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    fake_driver.status()
    assert (
        fake_driver.run("context(); ok(launch(kernel('spin_us_10'))); ok(cuda.cuCtxSynchronize()); tell('done')")
        == "done"
    )


def test_the_lookup_gives_versions_twins_and_for_one_function_another_address(fake_driver: FakeDriver):
    old, new, other, twin, missing, too_new = fake_driver.run("""
        def address_of(function):
            return ctypes.cast(function, c_void_p).value
        def look_up(name, version, flags=0):
            found, status = c_void_p(), c_int()
            result = cuda.cuGetProcAddress_v2(name.encode(), byref(found), version, c_uint64(flags), byref(status))
            return result, status.value, found.value
        tell([
            look_up("cuMemFree", 2000)[2] == address_of(cuda.cuMemFree),
            look_up("cuMemFree", 12000)[2] == address_of(cuda.cuMemFree_v2),
            look_up("cuMemAlloc", 12000)[2] != address_of(cuda.cuMemAlloc_v2),
            look_up("cuLaunchKernel", 12000, 2)[2] == address_of(cuda.cuLaunchKernel_ptsz),
            look_up("cuNoSuchThing", 12000),
            look_up("cuMemAllocAsync", 11000),
        ])
    """)
    assert (old, new, other, twin) == (True, True, True, True)
    assert (missing, too_new) == ([500, 1, None], [500, 2, None])
