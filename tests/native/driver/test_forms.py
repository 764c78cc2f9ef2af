"""Every form of a function is held to the share: those of older and newer CUDA, and those on per-thread streams."""

import struct

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NVML_NO_PERMISSION, OUT_OF_MEMORY, Container
from tests.native.memory.test_usage import GRANTED, MOST_SLOTS, SLOT_BYTES, SLOTS, SLOTS_USED, TOTAL

CREATE = {
    "cuCtxCreate": "0, 0",
    "cuCtxCreate_v2": "0, 0",
    "cuCtxCreate_v3": "None, 0, 0, 0",
    "cuCtxCreate_v4": "None, 0, 0",
}


@pytest.mark.parametrize("create", CREATE)
def test_each_way_to_make_a_context_charges_it(attack, create):
    told, used = attack(f"""
        ok(cuda.cuInit(0))
        results = [cuda.{create}(byref(c_void_p()), {CREATE[create]}) for _ in range(12)]
        tell([results.count(0), results[-1]])
    """)
    assert (told, used) == (f"[{CAP // CONTEXT}, {OUT_OF_MEMORY}]", CAP)


@pytest.mark.parametrize(
    "end", [f"cuDevicePrimaryCtx{how}{form}" for how in ("Release", "Reset") for form in ("", "_v2")]
)
def test_each_way_to_end_the_primary_context_gives_back_its_memory(attack, end):
    told, used = attack(f"""
        for _ in range(20):
            context()
            allocate(256 * MIB)
            ok(cuda.{end}(0))
        context()
        tell(free_and_total()[0])
    """)
    assert (told, used) == (str(CAP - CONTEXT), CONTEXT)


GRAPHS = """
context()
class Parameters(ctypes.Structure):
    _fields_ = [("flags", c_uint64), ("stream", c_void_p), ("node", c_void_p), ("result", c_int)]
def graph_of(size):
    graph, node = c_void_p(), c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    parameters = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=size)
    ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
    return graph
def log(form, size):
    made = c_void_p()
    ok(cuda[form](byref(made), graph_of(size), None, None, c_size_t(0)))
    return made
def flags(form, size):
    made = c_void_p()
    ok(cuda[form](byref(made), graph_of(size), c_uint64(0)))
    return made
def params(form, size):
    made = c_void_p()
    ok(cuda[form](byref(made), graph_of(size), byref(Parameters())))
    return made
"""
INSTANTIATE = {
    "cuGraphInstantiate": "log",
    "cuGraphInstantiate_v2": "log",
    "cuGraphInstantiateWithFlags": "flags",
    "cuGraphInstantiateWithParams": "params",
    "cuGraphInstantiateWithParams_ptsz": "params",
}


@pytest.mark.parametrize("take", ["cuGraphLaunch", "cuGraphLaunch_ptsz", "cuGraphUpload", "cuGraphUpload_ptsz"])
@pytest.mark.parametrize("instantiate", INSTANTIATE)
def test_memory_of_a_graph_is_charged_however_it_is_made_and_taken(attack, instantiate, take):
    told, used = attack(f"""{GRAPHS}
allocate(1024 * MIB)
results = [cuda.{take}({INSTANTIATE[instantiate]}("{instantiate}", size * MIB), None) for size in (1024, 512)]
tell([*results, free_and_total()[0] // MIB])
    """)
    assert (told, used) == (f"[{OUT_OF_MEMORY}, 0, {(CAP - CONTEXT) // MIB - 1536}]", CONTEXT + 1536 * MIB)


@pytest.mark.parametrize("form", ["cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"])
def test_a_graph_that_is_uploaded_when_it_is_instantiated_is_charged_before(attack, form):
    """The parameters stay as the program set them, and say so if there was no room. Then nothing was instantiated."""
    told, used = attack(f"""{GRAPHS}
def instantiate(graph, parameters):
    made = c_void_p()
    return cuda.{form}(byref(made), graph, byref(parameters)), parameters.flags, parameters.result
allocate(1024 * MIB)
graphs = [graph_of(size * MIB) for size in (1024, 512)]
answers = [instantiate(graph, Parameters(flags=2)) for graph in graphs]
again = [instantiate(graph, Parameters())[0] for graph in graphs]
tell([*answers, again, instantiate(None, Parameters(flags=2))[0], free_and_total()[0] // MIB])
    """)
    assert told == f"[[{OUT_OF_MEMORY}, 2, 1], [0, 2, 0], [0, 801], 1, {(CAP - CONTEXT) // MIB - 1536}]"
    assert used == CONTEXT + 1536 * MIB


@pytest.mark.parametrize(
    "wait",
    ["cuCtxSynchronize()", "cuCtxSynchronize_v2(used)", "cuStreamSynchronize(None)", "cuStreamSynchronize_ptsz(None)"],
)
def test_each_wait_gives_back_what_a_pool_has_freed(fake_driver, container, wait):
    """At once, so that the container's other processes may have it."""
    script = f"""
        import struct
        def total():
            return struct.unpack_from("Q", open({str(container.usage)!r}, "rb").read(), {TOTAL})[0]
        used, address = context(), c_uint64()
        ok(cuda.cuMemAllocAsync(byref(address), c_size_t(512 * MIB), None))
        sums = [total()]
        ok(cuda.cuMemFreeAsync(address, None))
        ok(cuda.{wait})
        tell([this // MIB for this in [*sums, total()]])
    """
    assert fake_driver.run(script, container.libraries) == [768, 256]


@pytest.mark.parametrize("begin", ["nvmlInit()", "nvmlInit_v2()", "nvmlInitWithFlags(0)"])
def test_each_way_to_begin_with_nvml_needs_the_limits(fake_driver, container, begin):
    script = f"tell(ctypes.CDLL('libnvidia-ml.so.1').{begin})"
    assert fake_driver.run(script, container.libraries) == 0
    container.write_limits("")
    assert fake_driver.run(script, container.libraries) == NVML_NO_PERMISSION


def test_memory_of_a_gpu_that_is_not_limited_is_bound_and_imported_without_a_charge(attack):
    told, used = attack("""
        import os
        context(1)
        multicast, zero, size = c_uint64(), c_uint64(0), c_size_t(256 * MIB)
        ok(cuda.cuMulticastCreate(byref(multicast), (c_size_t * 4)(2, 256 * MIB, 0, 0)))
        handle = c_uint64()
        ok(cuda.cuMemCreate(byref(handle), size, byref(on_device(1)), zero))
        ok(cuda.cuMulticastBindMem(multicast, c_size_t(0), handle, c_size_t(0), size, zero))
        imported(exported(handle))
        context(0)
        tell(free_and_total()[0])
    """)
    assert (told, used) == (str(CAP - CONTEXT), CONTEXT)


def test_a_process_without_a_place_imports_memory_and_keeps_nobody_waiting(fake_driver, container):
    """Of a GPU that is not limited, since it is charged nothing there."""
    holder = container.popen("hold", 2 * MIB)
    assert holder.stdout.readline() == GRANTED
    with container.usage.open("r+b") as table:
        table.seek(SLOTS)
        empty = table.read(24) + bytes(SLOT_BYTES - 24)  # of a process that lives
        table.seek(SLOTS + SLOT_BYTES)
        table.write(empty * (MOST_SLOTS - 1))
        table.seek(SLOTS_USED)
        table.write(struct.pack("I", MOST_SLOTS))
    script = """
        context(1)
        handle = c_uint64()
        ok(cuda.cuMemCreate(byref(handle), c_size_t(2 * MIB), byref(on_device(1)), c_uint64(0)))
        descriptor = exported(handle)
        tell([imported(descriptor).value != 0 for _ in range(3)])
    """
    assert fake_driver.run(script, container.libraries) == [True] * 3
    holder.communicate()


def test_a_place_of_unknown_kind_is_the_drivers_to_judge_where_no_gpu_is_limited(fake_driver, build_native):
    container = Container(fake_driver, build_native).start(gpu=1)
    container.write_limits(container.limits.read_text().replace(fake_driver.uuids()[1], "GPU-of-another-host"))
    script = """
        context()
        anywhere, handle = AllocationProp(type=1, location=Location(77, 0)), c_uint64()
        tell(cuda.cuMemCreate(byref(handle), c_size_t(4 * GIB), byref(anywhere), c_uint64(0)))
    """
    assert fake_driver.run(script, container.libraries) == fake_driver.run(script)
