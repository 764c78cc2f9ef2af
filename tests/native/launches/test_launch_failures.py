"""Launches where something is wrong or scarce: the lease, the driver's answers, room for captures, a fork."""

import textwrap

import pytest

NOT_PERMITTED = 800


@pytest.mark.parametrize("lease", ["missing", "not to be mapped", "a folder"])
def test_a_lease_that_cannot_be_used_refuses_each_launch_and_leaves_nothing_open(containers, fake_driver, lease):
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    path = container.home / "state/lease" / uuid
    path.unlink()
    if lease == "not to be mapped":
        path.symlink_to("/dev/null")
    if lease == "a folder":
        path.mkdir()
    script = """
        import os
        context()
        run = kernel("noop")
        before = len(os.listdir("/proc/self/fd"))
        results = [launch(run) for _ in range(3)]
        tell([results, len(os.listdir("/proc/self/fd")) - before])
    """
    status, told, errors = container.python(script)
    assert (status, told) == (0, f"[{[NOT_PERMITTED] * 3}, 0]\n")
    assert len(errors.splitlines()) == 3
    assert all("a compute lease is needed to launch on this GPU" in line for line in errors.splitlines())


def test_a_driver_that_failed_once_to_say_which_gpu_it_is_is_asked_again(containers, fake_driver):
    """A context that is made behind the libraries is the only one that there can be on a GPU without a name."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    script = f"""
        import os
        real = ctypes.CDLL({str(fake_driver.directory / "real-libcuda.so.1")!r})
        made, stream = c_void_p(), c_void_p()
        ok(real.cuInit(0))
        ok(real.cuCtxCreate_v2(byref(made), 0, 0))
        ok(real.cuStreamCreate(byref(stream), 1))
        run = kernel("noop")
        def attempt():
            return [refused(MIB), launch(run), launch(run, stream)]
        def mute(value):
            os.system({f"{fake_driver.directory}/fakegpu ail 0 mute "!r} + str(value))
        mute(1)
        answers = [attempt(), attempt()]
        mute(0)
        tell([*answers, attempt()])
    """
    status, told, errors = container.python(script)
    assert (status, told) == (0, f"{[[NOT_PERMITTED] * 3, [NOT_PERMITTED] * 3, [0] * 3]}\n"), errors


@pytest.mark.parametrize("count", [64, 65, 90])
def test_more_captures_than_are_known_one_by_one_are_not_spoiled_either(containers, fake_driver, clock, count):
    uuid = fake_driver.uuids()[0]
    for container in containers[:2]:
        container.limit({uuid: 500})
    other = containers[1].start(0, "work", "kernel", "spin_us_1000", 1500)
    script = f"""
        import time
        context()
        run, graph, streams, beside = kernel("spin_us_300"), c_void_p(), [], c_void_p()
        for _ in range({count}):
            streams.append(c_void_p())
            ok(cuda.cuStreamCreate(byref(streams[-1]), 1))
        ok(cuda.cuStreamCreate(byref(beside), 1))
        for stream in streams:
            ok(cuda.cuStreamBeginCapture_v2(stream, 2))
        def work_for(seconds):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                ok(launch(run, beside))
        work_for(0.3)
        ends = [cuda.cuStreamEndCapture(stream, byref(graph)) for stream in streams[:64]]
        work_for(0.3)
        tell(ends + [cuda.cuStreamEndCapture(stream, byref(graph)) for stream in streams[64:]])
    """
    command, environment = fake_driver.command(script, containers[0].libraries)
    assert clock.output(clock.start(command, environment, cwd=containers[0].home)) == f"{[0] * count}\n"
    clock.output(other)


def test_a_forked_child_opens_the_lease_for_itself(containers, fake_driver):
    """A lock on what both have opened once is the lock of both, and would keep neither out. So are flags."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    lease = (container.home / "state/lease" / uuid).resolve()
    script = f"""
        import os
        def leases():
            found = []
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                try:
                    if os.readlink(f"/proc/self/fd/{{descriptor}}") == {str(lease)!r}:
                        found.append(descriptor)
                except OSError:
                    pass
            return found
        context()
        ok(launch(kernel("noop")))
        (ours,) = leases()
        os.set_blocking(ours, False)
        if os.fork() == 0:
            cuda.cuMemFree_v2(c_uint64(0))
            tell([os.get_blocking(descriptor) for descriptor in leases()])
            os._exit(0)
        os.wait()
    """
    assert container.python(script) == (0, "[true]\n", "")


@pytest.mark.parametrize("instead", ["nothing", "a pipe"])
def test_a_lease_that_is_lost_amid_launches_ends_them_until_it_is_back(containers, fake_driver, instead):
    """A program has closed all its files, and the one at the lease's path is not what it was."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    script = f"""
        import os
        path = "state/lease/{uuid}"
        context()
        run = kernel("spin_us_2000")
        ok(launch(run))
        os.rename(path, path + ".kept")
        if {instead!r} == "a pipe":
            os.mkfifo(path)
        os.closerange(3, 64)
        lost = next(result for result in (launch(run) for _ in range(5000)) if result)
        again = launch(run)
        os.rename(path + ".kept", path)
        os.closerange(3, 64)
        tell([lost, again, launch(run), launch(run)])
    """
    status, told, errors = container.python(script)
    assert (status, told) == (0, "[2, 2, 0, 0]\n"), errors
    reason = {"nothing": "No such file or directory", "a pipe": "Illegal seek"}[instead]
    assert f"{reason}: no launch without the compute lease" in errors


def test_a_launch_waits_for_the_lock_of_the_lease_and_not_for_ever(containers, fake_driver):
    """A process may be stopped while it has the lock. By the machine's clock: other threads wait for this one."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    script = f"""
        import fcntl, time
        context()
        run = kernel("noop")
        kept = open("state/lease/{uuid}", "rb")
        fcntl.flock(kept, fcntl.LOCK_EX)
        began = time.monotonic()
        ok(launch(run))
        tell(1000 * (time.monotonic() - began))
    """
    status, told, errors = container.python(script)
    assert status == 0, errors
    assert float(told) >= 2


def test_a_process_without_room_for_the_leases_threads_launches_once_it_has_it(containers, fake_driver):
    """There is room for the first of two threads, whose stacks are as large as the program's."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    script = """
        import os, resource
        stack = 64 * MIB
        resource.setrlimit(resource.RLIMIT_STACK, (stack, stack))
        os.execv(sys.executable, [sys.executable, "-S", "-c", SECOND])
    """
    second = """
        import resource
        from cuda_client import *
        context()
        run = kernel("noop")
        def size():
            return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
        resource.setrlimit(resource.RLIMIT_AS, (size() + 100 * MIB, resource.RLIM_INFINITY))
        results = [launch(run)]
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        tell([*results, launch(run)])
    """
    status, told, errors = container.python(script.replace("SECOND", repr(textwrap.dedent(second))))
    assert (status, told) == (0, "[2, 0]\n"), errors
    assert "no thread for the compute lease" in errors
