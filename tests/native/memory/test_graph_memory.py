"""Memory of graphs: what a device's graph memory has is charged, however it came there or was given back."""

import subprocess

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, OUT_OF_MEMORY

GRAPHS = """
context()
def graph_of(*sizes):
    graph, node, made = c_void_p(), c_void_p(), c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    for device, size in enumerate(sizes):
        parameters = AllocNode(pool=PoolProps(type=1, location=Location(1, device)), bytes=size)
        ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
    ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
    return made, c_uint64(parameters.address)
"""


def test_graph_memory_that_grew_unnoticed_is_counted_before_more_is_granted(attack, fake_driver):
    """A part of the driver may launch a graph by itself, behind the libraries."""
    told, used = attack(f"""{GRAPHS}
real = ctypes.CDLL({str(fake_driver.directory / "real-libcuda.so.1")!r})
(first, _), (second, _) = graph_of(1024 * MIB), graph_of(1024 * MIB)
ok(real.cuGraphLaunch(first, None))
tell(cuda.cuGraphLaunch(second, None))
""")
    assert (told, used) == (str(OUT_OF_MEMORY), CONTEXT + 1024 * MIB)


@pytest.mark.parametrize("trim", ["allocate(1024 * MIB)", "ok(cuda.cuDeviceGraphMemTrim(0))\nallocate(1024 * MIB)"])
def test_a_graph_whose_memory_was_given_away_must_get_it_again(attack, trim):
    """The first is trimmed by the libraries, since another allocation needs the room."""
    told, used = attack(f"""{GRAPHS}
graph, address = graph_of(1024 * MIB)
ok(cuda.cuGraphLaunch(graph, None))
ok(cuda.cuMemFreeAsync(address, None))
ok(cuda.cuStreamSynchronize(None))
{trim}
tell([cuda.cuGraphLaunch(graph, None), free_and_total()[0]])
""")
    assert (told, used) == (f"[{OUT_OF_MEMORY}, {CAP - CONTEXT - 1024 * MIB}]", CONTEXT + 1024 * MIB)


@pytest.mark.parametrize("launch", ["cuGraphLaunch", "cuGraphUpload"])
def test_after_the_launch_of_a_graph_other_threads_go_on(attack, launch):
    """From before a launch until it is counted, no other thread may change what pools have."""
    told, _ = attack(f"""{GRAPHS}
import threading
graph, address = graph_of(512 * MIB)
ok(cuda.{launch}(graph, None))
free = []
other = threading.Thread(target=lambda: (context(), free.append(free_and_total()[0])), daemon=True)
other.start()
other.join(10)
tell(free)
""")
    assert told == f"[{CAP - CONTEXT - 512 * MIB}]"


def test_a_graph_that_one_of_its_gpus_has_no_room_for_is_charged_on_none(container, fake_driver):
    """What the first GPU had given it would be missing in the container's other processes."""
    gpus = "".join(f"gpu {uuid} {CAP} 250\n" for uuid in fake_driver.uuids())
    container.write_limits(f"version 1\nkernel 6f1c0000\ncompute none\ncontext_bytes {CONTEXT}\n{gpus}")
    process = fake_driver.start(
        f"{GRAPHS}\ngraph, _ = graph_of(1024 * MIB, {CAP + 2 * MIB})\ntell(cuda.cuGraphLaunch(graph, None))\nwait()",
        container.libraries,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{OUT_OF_MEMORY}\n"
    assert container.client("info")["free"] == CAP - 2 * CONTEXT
    process.communicate()


@pytest.mark.parametrize("driver", ["999.1", "550.1"])
def test_looking_for_the_gpu_of_a_memset_keeps_no_context(container, fake_driver, driver):
    """Old drivers do not say where a memset of a pool's memory runs; only the primary context stands for the GPU."""
    subprocess.run([fake_driver.directory / "fakegpu", "driver", driver], check=True)
    script = """
        context()
        address, graph, node, made = c_uint64(), c_void_p(), c_void_p(), c_void_p()
        ok(cuda.cuMemAllocAsync(byref(address), c_size_t(64 * MIB), None))
        memset = MemsetNode(address=address.value, element_size=1, width=64 * MIB, height=1)
        ok(cuda.cuGraphCreate(byref(graph), 0))
        ok(cuda.cuGraphAddMemsetNode(byref(node), graph, None, c_size_t(0), byref(memset), context()))
        ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
        ok(cuda.cuGraphInstantiateWithFlags(byref(made), graph, c_uint64(0)))
        ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
        flags, active = c_uint(), c_int()
        ok(cuda.cuDevicePrimaryCtxGetState(0, byref(flags), byref(active)))
        tell(active.value)
    """
    assert fake_driver.run(script, container.libraries) == 0
