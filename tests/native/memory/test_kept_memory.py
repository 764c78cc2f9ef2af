"""Memory without a handle that something still keeps. What the device holds is the driver's own count."""

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, OUT_OF_MEMORY

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


def test_of_a_list_of_mappings_only_those_that_are_counted_keep_memory(attack):
    told, _ = attack(f"""
{HOARD}
counted, beyond = create(256 * MIB), create(256 * MIB)
maps = [Map(0, array, 0, (c_uint * 8)(0, part), 1, 0, handle.value) for part, handle in enumerate((counted, beyond))]
ok(cuda.cuMemMapArrayAsync((Map * 2)(*maps), 1, None))
for handle in (counted, beyond):
    ok(cuda.cuMemRelease(handle))
tell(free_and_total()[0])
    """)
    assert told == str(CAP - CONTEXT - 256 * MIB)


def test_all_memory_of_a_process_may_be_shared(attack, container):
    """The charge of that is its whole charge, as its context costs nothing."""
    container.start(context_bytes=0)
    told, _ = attack("""
        import os
        context()
        memory = create(512 * MIB)
        descriptor = exported(memory)
        ok(cuda.cuMemRelease(memory))
        free = [free_and_total()[0]]
        os.close(descriptor)
        tell([*free, free_and_total()[0]])
    """)
    assert told == f"[{CAP - 512 * MIB}, {CAP}]"


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


def test_memory_that_is_bound_by_an_address_is_not_its_neighbours(attack):
    told, used = attack(f"""
{HOARD}
size, none, start = 256 * MIB, c_uint64(0), c_uint64()
ok(cuda.cuMemAddressReserve(byref(start), c_size_t(6 * size), c_size_t(0), none, none))
at = [c_uint64(start.value + place * size) for place in range(6)]
for address in at:
    handle = create(size)
    ok(cuda.cuMemMap(address, c_size_t(size), c_size_t(0), handle, none))
    ok(cuda.cuMemRelease(handle))
for place in (1, 3, 5):
    ok(cuda.cuMulticastBindAddr(multicast, c_size_t(place * size), at[place], c_size_t(size), none))
free = []
for place in range(6):
    ok(cuda.cuMemUnmap(at[place], c_size_t(size)))
    free.append(free_and_total()[0])
for place in (1, 3, 5):
    unbound(place * size)
    free.append(free_and_total()[0])
tell([({CAP - CONTEXT} - this) // size for this in free])
    """)
    assert (told, used) == ("[5, 5, 4, 4, 3, 3, 2, 1, 0]", CONTEXT)


FOR_OTHERS = {
    "a network card": """
def given(handle):
    descriptor = c_int()
    address, size = mapped(handle, 256 * MIB), c_size_t(256 * MIB)
    ok(cuda.cuMemGetHandleForAddressRange(byref(descriptor), address, size, 1, c_uint64(0)))
    ok(cuda.cuMemUnmap(address, size))
""",
    "a network card, of memory that a descriptor was made of before": """
def given(handle):
    os.close(exported(handle))
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


@pytest.mark.parametrize("order", ["012", "120", "201", "210"])
def test_memory_that_a_process_imports_from_itself_lasts_until_the_last_handle_of_it(attack, order):
    told, used = attack(f"""
        import os
        context()
        handles = [create(1024 * MIB)]
        descriptor = exported(handles[0])
        handles += [imported(descriptor), imported(descriptor)]
        os.close(descriptor)
        free = [free_and_total()[0]]
        for place in {list(map(int, order))}:
            ok(cuda.cuMemRelease(handles[place]))
            free.append(free_and_total()[0])
        tell([({CAP - CONTEXT} - this) // MIB for this in free])
    """)
    assert (told, used) == ("[1024, 1024, 1024, 0]", CONTEXT)


def test_each_of_many_descriptors_keeps_the_memory(attack):
    """More than the libraries tell apart. The one that is left is neither the first nor one of those.

    What is open of other memory does not count.
    """
    told, used = attack("""
        import os
        context()
        handle = create(1024 * MIB)
        descriptors = [exported(handle) for _ in range(70)]
        ok(cuda.cuMemRelease(handle))
        other = create(256 * MIB)
        descriptor = exported(other)
        ok(cuda.cuMemRelease(other))
        held = [free_and_total()[0]]
        os.close(descriptor)
        for descriptor in descriptors[:-1]:
            os.close(descriptor)
        held.append(free_and_total()[0])
        os.close(descriptors[-1])
        tell([*held, free_and_total()[0]])
    """)
    held = CAP - CONTEXT - 1024 * MIB
    assert (told, used) == (str([held - 256 * MIB, held, CAP - CONTEXT]), CONTEXT)


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
