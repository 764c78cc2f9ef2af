"""Programs that once got more of a GPU than their share. What the device holds is the driver's own count."""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.modules.agent_code import gpu_report, nvml
from tests.native.gpu_container import CAP, CONTEXT, MIB, NOT_PERMITTED, OUT_OF_MEMORY, Container


@pytest.fixture
def container(fake_driver, build_native):
    return Container(fake_driver, build_native).start()


@pytest.fixture
def attack(fake_driver, container):
    """Runs a script that waits at its end. Returns what it told, and the bytes that the device then held."""

    def run(script: str, device: int = 0):
        process = fake_driver.start(textwrap.dedent(script) + "\nwait()", container.libraries)
        told = process.stdout.readline()
        used = fake_driver.used_bytes(device)
        process.communicate()
        assert process.returncode == 0
        return told.strip(), used

    return run


def test_every_further_context_is_charged(attack):
    told, used = attack("""
        ok(cuda.cuInit(0))
        made = c_void_p()
        results = [cuda.cuCtxCreate_v2(byref(made), 0, 0) for _ in range(15)]
        tell([results.count(0), results[-1]])
    """)
    assert (told, used) == (f"[{CAP // CONTEXT}, {OUT_OF_MEMORY}]", CAP)


@pytest.mark.parametrize("end", ["cuCtxDestroy_v2(made)", "cuCtxDestroy(made)", "cuCtxDetach(made)"])
def test_a_context_that_ends_gives_back_what_it_cost_and_held(attack, end):
    """Its linear memory, and what its limits had given it."""
    told, used = attack(f"""
        context()
        made = c_void_p()
        for _ in range(20):
            ok(cuda.cuCtxCreate_v2(byref(made), 0, 0))
            allocate(256 * MIB)
            ok(cuda.cuCtxSetLimit(2, c_size_t(136 * MIB)))
            ok(cuda.{end})
        tell(free_and_total()[0])
    """)
    assert (told, used) == (str(CAP - CONTEXT), CONTEXT)


def test_a_context_that_another_user_still_has_stays_charged(attack):
    told, used = attack("""
        ok(cuda.cuInit(0))
        made, again = c_void_p(), c_void_p()
        ok(cuda.cuCtxCreate_v2(byref(made), 0, 0))
        ok(cuda.cuCtxAttach(byref(again), 0))
        ok(cuda.cuCtxDetach(made))
        tell(free_and_total()[0])
    """)
    assert (told, used) == (str(CAP - CONTEXT), CONTEXT)


def test_a_green_context_keeps_the_primary_one_charged_until_the_last_of_them_ends(attack):
    told, used = attack(
        """
        ok(cuda.cuInit(0))
        greens, of_green, other = [c_void_p(), c_void_p()], c_void_p(), c_void_p()
        ok(cuda.cuCtxCreate_v2(byref(other), 0, 0))
        for green in greens:
            ok(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
        free = [free_and_total()[0]]
        ok(cuda.cuCtxFromGreenCtx(byref(of_green), greens[0]))
        ok(cuda.cuCtxPushCurrent_v2(of_green))
        free += [free_and_total()[0]]
        ok(cuda.cuCtxPopCurrent_v2(None))
        for green in greens:
            ok(cuda.cuGreenCtxDestroy(green))
            free += [free_and_total()[0]]
        tell([(CAP - this) // MIB for this in free])
    """.replace("CAP", str(CAP))
    )
    assert (told, used) == ("[512, 512, 512, 256]", CONTEXT)


LIMITS = {"stack": 0, "printf": 1, "heap": 2}


@pytest.mark.parametrize(("limit", "value"), [("stack", 7 << 10), ("printf", 1793 * MIB), ("heap", 1800 * MIB)])
def test_what_a_limit_gives_a_context_is_charged(attack, limit, value):
    """Up to the cap, not beyond it, and no longer than it lasts."""
    told, used = attack(f"""
        context()
        too_much = cuda.cuCtxSetLimit({LIMITS[limit]}, c_size_t({value} * 2))
        ok(cuda.cuCtxSetLimit({LIMITS[limit]}, c_size_t({value})))
        held = free_and_total()[0]
        beside = refused(held + 2 * MIB)
        ok(cuda.cuCtxSetLimit({LIMITS[limit]}, c_size_t(1024)))
        given_back = free_and_total()[0]
        ok(cuda.cuCtxSetLimit({LIMITS[limit]}, c_size_t({value})))
        tell([too_much, beside, given_back, held == free_and_total()[0] and held < 300 * MIB])
    """)
    assert told == f"[{OUT_OF_MEMORY}, {OUT_OF_MEMORY}, {CAP - CONTEXT}, true]"
    assert CAP - 300 * MIB < used <= CAP


def test_a_gpu_whose_name_the_driver_does_not_say_gives_nothing(attack, fake_driver, container):
    fake_driver.init(2, 8 << 30)
    container.start()
    fake_driver.init(2, 8 << 30, "--mute")
    told, used = attack("""
        ok(cuda.cuInit(0))
        made, total = c_void_p(), c_size_t()
        handle = c_uint64()
        tell([cuda.cuDevicePrimaryCtxRetain(byref(made), 0), cuda.cuCtxCreate_v2(byref(made), 0, 0),
              cuda.cuDeviceTotalMem_v2(byref(total), 0),
              cuda.cuMemCreate(byref(handle), c_size_t(64 * MIB), byref(on_device()), c_uint64(0))])
    """)
    assert (told, used) == (str([NOT_PERMITTED] * 4), 0)


def test_a_device_or_a_context_that_is_not_there_is_the_drivers_to_refuse(attack):
    told, _ = attack("""
        ok(cuda.cuInit(0))
        made, address = c_void_p(), c_uint64()
        tell([cuda.cuDevicePrimaryCtxRetain(byref(made), 7), cuda.cuMemAlloc_v2(byref(address), c_size_t(MIB))])
    """)
    assert told == "[101, 201]"


def test_memory_of_the_host_is_not_charged(attack):
    told, used = attack("""
        context()
        handle, pool, address = c_uint64(), c_void_p(), c_uint64()
        props = PoolProps(type=1, location=Location(2, 0))
        for kind in (2, 3, 4):
            on_host = AllocationProp(type=1, location=Location(kind, 0))
            ok(cuda.cuMemCreate(byref(handle), c_size_t(4 * GIB), byref(on_host), c_uint64(0)))
        ok(cuda.cuMemPoolCreate(byref(pool), byref(props)))
        ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(4 * GIB), pool, None))
        tell(free_and_total()[0])
    """)
    assert (told, used) == (str(CAP - CONTEXT), CONTEXT)


BLOCK = 256 * MIB
# Takes blocks until one is refused; what keeps a block is in `keep`, and its handle is released.
HOARD = """
import os
context()
def blocks(keep, most=100):
    kept = []
    for _ in range(most):
        handle = c_uint64()
        result = cuda.cuMemCreate(byref(handle), c_size_t(256 * MIB), byref(on_device()), c_uint64(0))
        if result:
            return result, kept
        kept.append(keep(handle))
        ok(cuda.cuMemRelease(handle))
    return 0, kept
multicast = c_uint64()
ok(cuda.cuMulticastCreate(byref(multicast), (c_size_t * 4)(2, 100 * 256 * MIB, 0, 0)))
places = iter(range(100))
def bound(handle):
    offset = next(places) * 256 * MIB
    size, none = c_size_t(256 * MIB), c_uint64(0)
    ok(cuda.cuMulticastBindMem(multicast, c_size_t(offset), handle, c_size_t(0), size, none))
    return offset
def bound_of_device(handle):
    offset = next(places) * 256 * MIB
    size, none = c_size_t(256 * MIB), c_uint64(0)
    ok(cuda.cuMulticastBindMem_v2(multicast, 0, c_size_t(offset), handle, c_size_t(0), size, none))
    return offset
def bound_by_address(handle, name="cuMulticastBindAddr"):
    offset, address, size = next(places) * 256 * MIB, mapped(handle, 256 * MIB), c_size_t(256 * MIB)
    of_device = [0] if name.endswith("v2") else []
    ok(cuda[name](multicast, *of_device, c_size_t(offset), address, size, c_uint64(0)))
    ok(cuda.cuMemUnmap(address, size))
    return offset
def bound_by_address_of_device(handle):
    return bound_by_address(handle, "cuMulticastBindAddr_v2")
def unbound(offset):
    ok(cuda.cuMulticastUnbind(multicast, 0, c_size_t(offset), c_size_t(256 * MIB)))
class Map(ctypes.Structure):
    _fields_ = [("kind", c_int), ("array", c_void_p), ("type", c_uint64), ("part", c_uint * 8), ("operation", c_int),
                ("handle_type", c_int), ("handle", c_uint64), ("rest", c_uint64 * 3)]
def sparse_array():
    array = c_void_p()
    ok(cuda.cuArray3DCreate_v2(byref(array), byref(Array3D(1024, 1024, 0, 0x20, 1, 0x40))))
    return array
array = sparse_array()
def in_array(handle, into=None, function=None):
    part = next(places)
    into = into or array
    map_array = function or cuda.cuMemMapArrayAsync
    ok(map_array(byref(Map(0, into, 0, (c_uint * 8)(0, part), 1, 0, handle.value)), 1, None))
    return part
def in_array_ptsz(handle):
    return in_array(handle, None, cuda.cuMemMapArrayAsync_ptsz)
def in_new_array(handle):
    new = sparse_array()
    in_array(handle, new)
    return new
def imported_alone(handle):
    descriptor = exported(handle)
    again = imported(descriptor)
    os.close(descriptor)
    return again
def out_of_array(part):
    ok(cuda.cuMemMapArrayAsync(byref(Map(0, array, 0, (c_uint * 8)(0, part), 2, 0, 0)), 1, None))
"""
WAYS_TO_KEEP = {
    "exported": ("exported", "os.close(it)"),
    "exported twice": ("lambda it: (exported(it), exported(it))", "[os.close(one) for one in it]"),
    "imported": ("imported_alone", "cuda.cuMemRelease(it)"),
    "multicast": ("bound", "unbound(it)"),
    "multicast of a device": ("bound_of_device", "unbound(it)"),
    "multicast by address": ("bound_by_address", "unbound(it)"),
    "multicast by address of a device": ("bound_by_address_of_device", "unbound(it)"),
    "array": ("in_array", "out_of_array(it)"),
    "array_ptsz": ("in_array_ptsz", "out_of_array(it)"),
    "array that ends": ("in_new_array", "cuda.cuArrayDestroy(it)"),
    "retained": ("lambda it: mapped(it, 256 * MIB)", "cuda.cuMemUnmap(it, c_size_t(256 * MIB))"),
}
MOST_BLOCKS = (CAP - CONTEXT) // BLOCK


@pytest.mark.parametrize("way", WAYS_TO_KEEP)
def test_memory_is_charged_as_long_as_anything_keeps_it(attack, way):
    """A handle that is released frees nothing then. What has really ended is free to be taken again."""
    keep, end = WAYS_TO_KEEP[way]
    told, used = attack(f"""
{HOARD}
result, kept = blocks({keep})
left = free_and_total()[0]
it = kept.pop()
{end}
again = blocks({keep})[1]
for it in kept + again:
    {end}
tell([result, len(kept) + 1, left, len(again), free_and_total()[0]])
    """)
    assert told == f"[{OUT_OF_MEMORY}, {MOST_BLOCKS}, {CAP - CONTEXT - MOST_BLOCKS * BLOCK}, 1, {CAP - CONTEXT}]"
    assert used == CONTEXT


def test_the_end_of_a_multicast_object_or_a_context_ends_what_it_kept(attack):
    told, used = attack(f"""
{HOARD}
first = blocks(bound)
address = mapped(multicast, 4 * 256 * MIB)
ok(cuda.cuMemRelease(multicast))
held = refused(256 * MIB)
ok(cuda.cuMemUnmap(address, c_size_t(4 * 256 * MIB)))
free = [free_and_total()[0]]
made = c_void_p()
ok(cuda.cuCtxCreate_v2(byref(made), 0, 0))
array = sparse_array()
second = blocks(in_array)
ok(cuda.cuCtxDestroy_v2(made))
free.append(free_and_total()[0])
tell([len(first[1]), held, len(second[1]), free])
    """)
    assert told == f"[{MOST_BLOCKS}, {OUT_OF_MEMORY}, {MOST_BLOCKS - 1}, [{CAP - CONTEXT}, {CAP - CONTEXT}]]"
    assert used == CONTEXT


def test_an_unbound_range_of_another_gpu_or_place_ends_nothing(attack):
    told, _ = attack(f"""
{HOARD}
kept = blocks(bound)[1]
ok(cuda.cuMulticastUnbind(multicast, 1, c_size_t(0), c_size_t(100 * 256 * MIB)))
ok(cuda.cuMulticastUnbind(multicast, 0, c_size_t(50 * 256 * MIB), c_size_t(50 * 256 * MIB)))
out_of_array(kept[0])
held = refused(256 * MIB)
ok(cuda.cuMulticastUnbind(multicast, 0, c_size_t(0), c_size_t(100 * 256 * MIB)))
tell([held, free_and_total()[0]])
    """)
    assert told == f"[{OUT_OF_MEMORY}, {CAP - CONTEXT}]"


FOR_OTHERS = {
    "a network card": """
def given(handle):
    descriptor = c_int()
    address, size = mapped(handle, 256 * MIB), c_size_t(256 * MIB)
    ok(cuda.cuMemGetHandleForAddressRange(byref(descriptor), address, size, 1, c_uint64(0)))
    ok(cuda.cuMemUnmap(address, size))
""",
    "an endpoint": """
def given(handle):
    zero = c_uint64(0)
    ok(cuda.cuLogicalEndpointBindMem(c_uint64(1), 0, zero, handle, zero, c_uint64(256 * MIB), zero))
""",
    "an endpoint by address": """
def given(handle):
    zero, address = c_uint64(0), mapped(handle, 256 * MIB)
    ok(cuda.cuLogicalEndpointBindAddr(c_uint64(1), 0, zero, address, c_uint64(256 * MIB), zero))
    ok(cuda.cuMemUnmap(address, c_size_t(256 * MIB)))
""",
}


@pytest.mark.parametrize("other", FOR_OTHERS)
def test_memory_whose_other_users_cannot_be_seen_stays_charged_until_the_process_ends(attack, container, other):
    told, used = attack(f"{HOARD}\n{FOR_OTHERS[other]}\nresult, kept = blocks(given)\ntell([result, len(kept)])")
    assert told == f"[{OUT_OF_MEMORY}, {MOST_BLOCKS}]"
    assert used == CONTEXT + MOST_BLOCKS * BLOCK
    assert container.client("fill", "linear", BLOCK)["count"] == MOST_BLOCKS


@pytest.mark.parametrize("kept_by", ["a socket", "a child", "an importer"])
def test_memory_stays_charged_when_its_exporter_has_gone(fake_driver, container, kept_by):
    """A descriptor on its way through a socket, one that a child has inherited, and memory that another process has."""
    keeper = {
        "a socket": "os.read(0, 1)",
        "a child": "received()\nos.read(0, 1)",
        "an importer": """
context()
descriptor = received()
handle = imported(descriptor)
address = mapped(handle, 1024 * MIB)
os.close(descriptor)
ok(cuda.cuMemRelease(handle))
os.write(1, b"has it")
os.read(0, 1)
ok(cuda.cuMemUnmap(address, c_size_t(1024 * MIB)))
os.write(1, b"not")
os.read(0, 1)
""",
    }[kept_by]
    script = f"""
import os, socket, sys
def received():
    return socket.recv_fds(ours, 8, 1)[1][0]
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    context()
    handle = create(1024 * MIB)
    descriptor = exported(handle)
    socket.send_fds(theirs, [b"it"], [descriptor])
    ok(cuda.cuMemRelease(handle))
    os._exit(0)
theirs.close()
os.wait()
if {kept_by!r} != "an importer":
    os.write(1, b"has it")
{keeper}
"""
    context = CONTEXT if kept_by == "an importer" else 0
    process = fake_driver.start(script, container.libraries)
    assert process.stdout.read(6) == "has it"
    seen = container.client("fill", "linear", BLOCK)
    assert seen["count"] == (CAP - 1024 * MIB - CONTEXT - context) // BLOCK
    assert seen["full"] == seen["count"] * BLOCK + CONTEXT + context + 1024 * MIB
    if kept_by == "an importer":
        process.stdin.write("x")
        process.stdin.flush()
        assert process.stdout.read(3) == "not"
        assert container.client("fill", "linear", BLOCK)["count"] == (CAP - 2 * CONTEXT) // BLOCK
    process.communicate()
    assert container.client("fill", "linear", BLOCK)["count"] == MOST_BLOCKS


def test_each_of_many_descriptors_keeps_the_memory(attack):
    """More than the libraries tell apart. The one that is left is neither the first nor one of those."""
    told, used = attack("""
        import os
        context()
        handle = create(1024 * MIB)
        descriptors = [exported(handle) for _ in range(70)]
        ok(cuda.cuMemRelease(handle))
        for descriptor in descriptors[:-1]:
            os.close(descriptor)
        held = free_and_total()[0]
        os.close(descriptors[-1])
        tell([held, free_and_total()[0]])
    """)
    assert (told, used) == (f"[{CAP - CONTEXT - 1024 * MIB}, {CAP - CONTEXT}]", CONTEXT)


def test_memory_with_more_holders_than_are_told_apart_stays_charged(fake_driver, container):
    small = 16 * MIB
    fake_driver.init(2, 8 << 30, "--context", str(small))
    container.start(context_bytes=small)
    script = """
        import os, socket
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            context()
            handle = create(1024 * MIB)
            socket.send_fds(theirs, [b"it"], [exported(handle)])
            os._exit(0)
        descriptor = socket.recv_fds(ours, 8, 1)[1][0]
        os.wait()
        ready, children = os.pipe(), []
        for _ in range(10):
            children.append(os.fork())
            if children[-1] == 0:
                context()
                imported(descriptor)
                os.close(descriptor)
                os.write(ready[1], b"x")
                os.read(0, 1)
                os._exit(0)
            os.read(ready[0], 1)
        os.close(descriptor)
        for child in children[:-1]:
            os.kill(child, 9)
            os.waitpid(child, 0)
        tell(0)
        wait()
        os.wait()
    """
    process = fake_driver.start(script, container.libraries)
    process.stdout.readline()
    seen = container.client("fill", "linear", BLOCK)
    process.communicate()
    assert seen["full"] <= CAP
    assert seen["count"] == (CAP - 1024 * MIB - 2 * small) // BLOCK


@pytest.fixture
def as_mounted(container, tmp_path):
    """Return a container's folder of the driver, and libraries that look there for it."""
    folder = tmp_path / "driver"
    folder.mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / f"real-{name}").symlink_to(container.driver.directory / name)
    return folder, container.build(container.limits, container.usage.parent, driver_dir=folder) / "lib"


def test_a_loader_that_looks_into_the_folder_of_the_driver_finds_the_libraries_that_cap(container, as_mounted):
    folder, libraries = as_mounted
    words = [container.program("linked_client"), str(CAP + 2 * MIB)]
    environment = {"LD_LIBRARY_PATH": f"{folder}:{libraries}"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=30)
    assert json.loads(done.stdout) == {"init": 0, "total": CAP, "above": OUT_OF_MEMORY}


CONTAINER_ID = "a1" * 32


def test_the_observation_finds_programs_that_use_the_gpu_without_the_libraries(fake_driver, container, tmp_path):
    """With the driver's library by its path, or a copy of it; not those that have ended or have the libraries."""
    copy = tmp_path / "mine.so"
    copy.write_bytes((fake_driver.directory / "libcuda.so.1").read_bytes())
    use = "context(); allocate(MIB); tell(0); wait()"
    own_path = {"LD_PRELOAD": str(fake_driver.directory / "real-libcuda.so.1")}
    environments = ({}, own_path, {"LD_PRELOAD": str(copy)}, own_path)
    processes = []
    for more in environments:
        command, environment = fake_driver.command(use, container.libraries)
        processes.append(
            subprocess.Popen(command, env=environment | more, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert processes[-1].stdout.readline() == "0\n"
    proc = tmp_path / "proc"
    for process in processes:
        directory = proc / str(process.pid)
        directory.mkdir(parents=True)
        (directory / "cgroup").write_text(f"0::/system.slice/docker-{CONTAINER_ID}.scope\n")
        for name in ("maps", "map_files", "status"):
            (directory / name).symlink_to(f"/proc/{process.pid}/{name}")
    # The tree as it lies on a host: a link to one version beside others, and the lock of who makes them.
    (tmp_path / "fgpu-versions").mkdir()
    (tmp_path / "fgpu-versions/.lock").touch()
    (tmp_path / "fgpu-versions/1").symlink_to(container.libraries.parent)
    processes[-1].kill()
    # A zombie has no memory any more, and the driver may list it still.
    os.waitid(os.P_PID, processes[-1].pid, os.WEXITED | os.WNOWAIT)
    uuid = fake_driver.uuids()[0]
    answers = nvml.Answers([], {uuid: [(process.pid, MIB) for process in processes]}, [])
    share = {"uuid": uuid, "mem_bytes": CAP, "compute": 250}

    def found(gpu: object, libraries: Path, again: nvml.Answers = answers) -> dict:
        kernel = {"container_id": CONTAINER_ID, "gpus": [gpu]}
        return gpu_report.uncapped_processes(answers, [kernel], libraries, lambda: again, proc)

    assert found(share, tmp_path / "fgpu") == {CONTAINER_ID: sorted(it.pid for it in processes[1:3])}
    # What the driver no longer lists has started another program since, with other libraries.
    gone = nvml.Answers([], {uuid: [(processes[1].pid, MIB)]}, [])
    assert found(share, tmp_path / "fgpu", gone) == {CONTAINER_ID: [processes[1].pid]}
    assert found({**share, "mem_bytes": None}, tmp_path / "fgpu") == {}
    assert found(share, tmp_path / "no libraries here") == {}
    for process in processes:
        process.communicate()
