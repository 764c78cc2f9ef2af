"""Launches through the proxies, on the fake driver: in turn, however they are made, and no capture is spoiled."""

import itertools
import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.native.virtual_clock import SECOND

LAUNCH_HOOKS = Path(__file__).parents[3] / "native" / "launch.def"
MIB = 1 << 20
NOT_PERMITTED = 800
WAYS = ["kernel", "kernel_ptsz", "ex", "ex_ptsz", "cooperative", "cooperative_ptsz", "multi_device", "looked_up"]
WAYS += ["old", "grid", "grid_async", "graph", "graph_ptsz", "memset", "memset_ptsz", "memset_default"]


def busy(fake_driver, clock, processes, uuid):
    by_pid = {process["pid"]: process["devices"] for process in fake_driver.status(clock)["processes"]}
    return [by_pid[process.pid].get(uuid, {"busy_ns": 0})["busy_ns"] for process in processes]


def shares_in(fake_driver, clock, seconds, running):
    """Return for each GPU, by UUID, each process's part of its work."""
    clock.run_for(SECOND)
    before = {uuid: busy(fake_driver, clock, processes, uuid) for uuid, processes in running.items()}
    clock.run_for(seconds * SECOND)
    shares = {}
    for uuid, processes in running.items():
        after = busy(fake_driver, clock, processes, uuid)
        worked = [now - then for now, then in zip(after, before[uuid], strict=True)]
        shares[uuid] = [part / sum(worked) for part in worked]
    return shares


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_launched_without_a_lease(containers, fake_driver, way):
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    assert container.run(0, "once", way) == "0\n"
    (container.home / "state/lease" / uuid).unlink()
    assert container.run(0, "once", way) == f"{NOT_PERMITTED}\n"
    container.limit({uuid: 500}, compute="none")
    (container.home / "state/lease" / uuid).unlink()
    assert container.run(0, "once", way) == "0\n"


def test_a_gpu_that_is_not_in_the_limits_needs_no_lease(containers, fake_driver):
    containers[0].limit({fake_driver.uuids()[0]: 500})
    assert containers[0].run(1, "once", "kernel") == "0\n"


def test_a_launch_within_a_turn_reads_no_lease(containers, fake_driver):
    """Only so does it cost nanoseconds: the lease's file is read when a turn begins, not for each launch."""
    containers[0].limit({fake_driver.uuids()[0]: 500})
    script = """
        context()
        run = kernel("noop")
        def reads():
            with open("/proc/self/io") as counters:
                return int(dict(line.split(": ") for line in counters)["syscr"])
        ok(launch(run))
        before = reads()
        for _ in range(10000):
            ok(launch(run))
        tell(reads() - before)
    """
    status, told, errors = containers[0].python(script)
    assert status == 0, errors
    assert int(told) < 1000


def test_shares_hold_for_kernels_graphs_and_contexts(containers, fake_driver, clock):
    first, second, third, fourth = fake_driver.uuids()
    one, two, three = containers
    one.limit({first: 300, second: 300, third: 250, fourth: 300})
    two.limit({first: 700, second: 700, third: 250, fourth: 700})
    three.limit({third: 500})
    run = 9000
    running = {
        first: [one.start(0, "work", "kernel", "spin_us_1000", run), two.start(0, "work", "ex", "spin_us_700", run)],
        second: [one.start(1, "work", "graph", "spin_us_1500", run), two.start(1, "work", "kernel", "spin_us_20", run)],
        third: [
            one.start(2, "work", "kernel", "spin_us_5000", run),
            two.start(2, "work", "graph", "spin_us_200", run),
            three.start(2, "work", "cooperative", "spin_us_600", run),
        ],
        fourth: [one.start(3, "contexts", "spin_us_400", run), two.start(3, "work", "kernel", "spin_us_1000", run)],
    }
    shares = shares_in(fake_driver, clock, 6, running)
    for uuid, wanted in {first: [0.3, 0.7], second: [0.3, 0.7], third: [0.25, 0.25, 0.5], fourth: [0.3, 0.7]}.items():
        assert shares[uuid] == pytest.approx(wanted, abs=0.01), f"of GPU {fake_driver.uuids().index(uuid)}"
    for process in itertools.chain.from_iterable(running.values()):
        clock.output(process)


@pytest.mark.parametrize(
    ("share", "compute", "most"), [("300 600", "fair", 0.6), ("300 600", "hard", 0.3), ("300 300", "fair", 0.3)]
)
def test_a_limit_holds_on_a_gpu_that_nobody_else_uses(containers, fake_driver, clock, share, compute, most):
    uuid = fake_driver.uuids()[0]
    containers[0].limit({uuid: share}, compute)
    process = containers[0].start(0, "work", "kernel", "spin_us_1000", 4500)
    clock.run_for(SECOND)
    before = busy(fake_driver, clock, [process], uuid)[0]
    clock.run_for(3 * SECOND)
    assert busy(fake_driver, clock, [process], uuid)[0] - before == pytest.approx(most * 3 * SECOND, abs=0.06 * SECOND)
    clock.output(process)


@pytest.mark.parametrize("way", ["kernel", "graph"])
def test_best_effort_runs_while_guaranteed_containers_do_not(containers, fake_driver, clock, way):
    uuid = fake_driver.uuids()[0]
    containers[0].limit({uuid: 100}, more="class guaranteed\n")
    containers[1].limit({uuid: 900}, more="class best-effort\n")
    rest = containers[1].start(0, "work", way, "spin_us_200", 6000)
    clock.run_for(SECOND)
    alone = busy(fake_driver, clock, [rest], uuid)[0]
    guaranteed = containers[0].start(0, "work", "kernel", "spin_us_1000", 2000)
    clock.output(guaranteed)
    first = busy(fake_driver, clock, [rest], uuid)[0]
    assert alone >= 0.9 * SECOND
    assert first - alone <= 0.02 * SECOND
    clock.run_for(SECOND)
    assert busy(fake_driver, clock, [rest], uuid)[0] - first >= 0.8 * SECOND
    clock.output(rest)


ELSEWHERE = ["graph", "kernel", "ex", "cooperative", "multi_device", "grid_async", "nodes", "memset", "memsets"]
ELSEWHERE += ["memsets_of_next", "conditional"]
OLD_DRIVER = ["memsets", "memsets_of_pool", "conditional"]


@pytest.mark.parametrize(
    ("way", "driver"), [*((way, "999.1") for way in ELSEWHERE), *((way, "550.1") for way in OLD_DRIVER)]
)
def test_a_launch_takes_its_turn_on_the_gpu_where_it_runs(containers, fake_driver, clock, way, driver):
    """Under the context of a GPU that is not limited, a hard tenth of another one once gave nearly all of it."""
    subprocess.run([fake_driver.directory / "fakegpu", "driver", driver], check=True)
    uuid = fake_driver.uuids()[0]
    containers[0].limit({uuid: 100}, compute="hard")
    process = containers[0].start(0, "elsewhere", way, "spin_us_2000", 4500)
    clock.run_for(SECOND)
    before = busy(fake_driver, clock, [process], uuid)[0]
    clock.run_for(3 * SECOND)
    worked = busy(fake_driver, clock, [process], uuid)[0] - before
    assert worked == pytest.approx(0.1 * 3 * SECOND, rel=0.1)
    clock.output(process)


def test_a_program_that_can_never_be_drained_still_shares(containers, fake_driver, clock):
    """A capture that the program spoiled and never ended forbids every synchronisation: work can only be estimated."""
    uuid = fake_driver.uuids()[0]
    for container in containers[:2]:
        container.limit({uuid: 500})
    running = [
        containers[0].start(0, "work", "kernel", "spin_us_300", 5000, "spoiled"),
        containers[1].start(0, "work", "ex", "spin_us_800", 5000),
    ]
    shares = shares_in(fake_driver, clock, 3, {uuid: running})
    assert shares[uuid] == pytest.approx([0.5, 0.5], abs=0.05)
    for process in running:
        clock.output(process)


def test_no_capture_is_spoiled_while_turns_change(containers, fake_driver, clock):
    uuids = fake_driver.uuids()
    for container in containers[:2]:
        container.limit(dict.fromkeys(uuids, 500))
    capturing = [containers[0].start(way % 4, "capture", "spin_us_500", way, 3000) for way in range(10)]
    others = [containers[1].start(device, "work", "kernel", "spin_us_1000", 3500) for device in range(4)]
    for process in capturing:
        captures, spoiled = map(int, clock.output(process).split())
        assert captures > 0
        assert spoiled == 0
    for process in others:
        clock.output(process)


def test_a_process_that_ends_amid_its_work_hands_on_its_turn(containers, fake_driver, clock):
    uuid = fake_driver.uuids()[0]
    for container in containers[:2]:
        container.limit({uuid: 500})
    other = containers[1].start(0, "work", "kernel", "spin_us_1000", 4000)
    ended = 0
    while other.poll() is None:
        containers[0].run(0, "leave", "spin_us_300")
        ended += 1
    clock.output(other)
    assert ended > 100, "had it not handed on its turn, the other would have waited for 100 ms each time"


def test_a_process_that_ends_while_another_waits_hands_on_its_turn_at_once(containers, fake_driver, clock):
    uuid = fake_driver.uuids()[0]
    scripts = (
        "time.sleep(0.0055)",
        "time.sleep(0.005)\nbegan = time.monotonic()\nok(launch(run))\ntell(1000 * (time.monotonic() - began))",
    )
    running = []
    for container, first, then in zip(containers, ("ok(launch(run))", ""), scripts, strict=False):
        container.limit({uuid: 500})
        script = f"import time\ncontext()\nrun = kernel('spin_us_30000')\n{first}\n{then}"
        command, environment = fake_driver.command(script, container.libraries)
        running.append(clock.start(command, environment, cwd=container.home))
    waited = json.loads(clock.output(running[1]))
    assert waited < 50, "one that only stopped would be waited for for 100 ms"
    clock.output(running[0])


def test_a_context_that_ends_leaves_the_work_of_another_to_be_waited_for(containers, fake_driver, clock):
    uuid = fake_driver.uuids()[0]
    first = """
        used, other = context(), c_void_p()
        run, short = kernel("spin_us_60000"), kernel("noop")
        ok(cuda.cuCtxCreate_v2(byref(other), 0, 0))
        ok(launch(kernel("noop")))
        ok(cuda.cuCtxSetCurrent(used))
        for _ in range(64):  # one launch after another, until several need no wait between them
            ok(launch(short))
        ok(launch(run))
        ok(cuda.cuCtxDestroy_v2(other))
        time.sleep(0.2)
    """
    second = """
        context()
        run = kernel("noop")
        time.sleep(0.005)
        began = time.monotonic()
        ok(launch(run))
        tell(1000 * (time.monotonic() - began))
    """
    running = []
    for container, script in zip(containers, (first, second), strict=False):
        container.limit({uuid: 500})
        command, environment = fake_driver.command(f"import time\n{textwrap.dedent(script)}", container.libraries)
        running.append(clock.start(command, environment, cwd=container.home))
    waited = json.loads(clock.output(running[1]))
    assert waited == pytest.approx(55, abs=3), "a turn lasts until its work has ended, in whichever context"
    clock.output(running[0])


MEMSETS = re.findall(r"^HOOKED\((cuMemset\w+),", LAUNCH_HOOKS.read_text(), re.MULTILINE)


def test_each_memset_takes_its_turn_and_sets_what_it_should(containers, fake_driver, clock):
    """By how long it takes: on the fake driver 2 µs of the processor, and of the GPU a nanosecond for each KiB."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500}, compute="none")  # so that nothing waits amid what is measured
    script = f"""
        import os
        context()
        width, height, pitch, count = 3 << 10, 1 << 10, 16 << 10, 5 << 20
        old, wide = c_uint(), allocate(20 * MIB)
        ok(cuda.cuMemAlloc(byref(old), 20 * MIB))
        start, end = c_void_p(), c_void_p()
        for event in (start, end):
            ok(cuda.cuEventCreate(byref(event), 0))
        def set_by(name):
            address = wide if "_v2" in name or "Async" in name else old
            size = c_uint if address is old else c_size_t
            words = [pitch, 0, width, height] if "D2D" in name else [0, count]
            words = [0 if word == 0 else size(word) for word in words]
            return cuda[name](address, *words, *([None] if "Async" in name else []))
        def duration(name):
            record = cuda.cuEventRecord_ptsz if name.endswith(("ptds", "ptsz")) else cuda.cuEventRecord
            ok(record(start, None))
            ok(set_by(name))
            ok(record(end, None))
            ok(cuda.cuEventSynchronize(end))
            took = c_float()
            ok(cuda.cuEventElapsedTime(byref(took), start, end))
            return round(took.value * 1e6)
        duration("cuMemsetD8")  # which finds and loads what all of them need
        tell({{name: duration(name) for name in {MEMSETS}}})
    """
    command, environment = fake_driver.command(script, container.libraries)
    took = json.loads(clock.output(clock.start(command, environment, cwd=container.home)))
    elements = {name: (3 << 10) if "D2D" in name else 5 << 10 for name in MEMSETS}
    widths = {name: int(re.search(r"D(8|16|32)", name)[1]) // 8 for name in MEMSETS}
    assert took == {name: 2000 + elements[name] * widths[name] for name in MEMSETS}
    assert len(MEMSETS) == 30
    container.limit({uuid: 500})
    (container.home / "state/lease" / uuid).unlink()
    refused = f"""
        context()
        address, zero = c_uint64(0), c_size_t(0)
        tell([cuda[name](address, *[zero] * (4 if "D2D" in name else 2), None) for name in {MEMSETS}])
    """
    assert container.python(refused)[1] == f"{[NOT_PERMITTED] * 30}\n"


def test_the_end_of_a_forked_child_is_not_its_parents(containers, fake_driver):
    """It runs the handlers that its parent has registered for the end, one of which hands on the parent's turn."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    script = f"""
        import os, signal
        def turn():
            with open("state/lease/{uuid}", "rb") as table:
                return table.read(24)[16:]
        context()
        ok(launch(kernel("spin_us_1000")))
        before = turn()
        if os.fork() == 0:
            signal.alarm(60)
            ctypes.CDLL(None).exit(0)
        ended = os.wait()[1]
        tell([ended, before == turn() != bytes(8)])
    """
    assert container.python(script) == (0, "[0, true]\n", "")


def test_a_program_may_unload_the_library_and_destroy_its_context_after_a_launch(containers, fake_driver):
    container = containers[0]
    container.limit({fake_driver.uuids()[0]: 500})
    script = """
        import _ctypes, time
        used = context()
        function = kernel("spin_us_1000")
        for _ in range(20):
            ok(launch(function))
        ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
        _ctypes.dlclose(cuda._handle)
        time.sleep(0.3)
        # The lease's threads run in it.
        tell("libcuda.so.1" in open("/proc/self/maps").read())
    """
    assert container.python(script) == (0, "true\n", "")
