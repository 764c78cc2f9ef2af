"""Memory of graphs: what a device's graph memory has is charged, however it came there or was given back."""

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, OUT_OF_MEMORY

GRAPHS = """
context()
def graph_of(size):
    graph, node, made = c_void_p(), c_void_p(), c_void_p()
    ok(cuda.cuGraphCreate(byref(graph), 0))
    parameters = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=size)
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
