"""Pools of memory of a GPU: what they hold, keep and give back is charged as the driver has it."""

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, OUT_OF_MEMORY

USE_A_POOL = """
context()
address = c_uint64()
pool = c_void_p()
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(KEEP))))
ok(cuda.cuMemAllocAsync(byref(address), c_size_t(1536 * MIB), None))
ok(cuda.cuMemFreeAsync(address, None))
ok(cuda.cuStreamSynchronize(None))
"""


def test_memory_that_a_pool_gives_back_at_a_synchronisation_is_free_for_other_processes(fake_driver, plain_container):
    script = USE_A_POOL.replace("KEEP", "0") + "tell(free_and_total())\nwait()"
    process = fake_driver.start(script, plain_container.libraries)
    assert process.stdout.readline() == f"[{CAP - CONTEXT}, {CAP}]\n"
    assert plain_container.client("fill", "linear", CAP - 2 * CONTEXT)["count"] == 1
    process.communicate()


def test_unused_memory_of_a_pool_is_given_up_for_another_allocation(fake_driver, plain_container):
    script = USE_A_POOL.replace("KEEP", str(1 << 40)) + (
        "before = free_and_total()[0]\nallocate(1024 * MIB)\ntell([before, free_and_total()[0]])"
    )
    kept, left = fake_driver.run(script, plain_container.libraries)
    assert kept == CAP - CONTEXT - 1536 * MIB
    assert left == CAP - CONTEXT - 1024 * MIB


def test_a_pool_that_was_destroyed_stays_charged_until_its_last_memory_is_free(fake_driver, plain_container):
    script = """
        context()
        pool, first, second = c_void_p(), c_uint64(), c_uint64()
        ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(1, 0)))))
        for address in (first, second):
            ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(512 * MIB), pool, None))
        ok(cuda.cuMemPoolDestroy(pool))
        free = [free_and_total()[0]]
        for address in (first, second):
            ok(cuda.cuMemFreeAsync(address, None))
            ok(cuda.cuStreamSynchronize(None))
            free.append(free_and_total()[0])
        ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(1, 0)))))
        ok(cuda.cuMemPoolDestroy(pool))
        tell([*free, refused(1024 * MIB)])
    """
    held = CAP - CONTEXT - 1024 * MIB
    assert fake_driver.run(script, plain_container.libraries) == [held, held, CAP - CONTEXT, 0]


@pytest.mark.parametrize(
    "found",
    [
        "cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(1, 1))))",
        # The driver's own pool of managed memory, which is no device's default pool.
        "cuda.cuMemGetDefaultMemPool(byref(pool), byref(Location(1, 1)), 2)",
        "cuda.cuMemGetMemPool(byref(pool), byref(Location(1, 1)), 2)",
    ],
)
def test_a_pool_is_charged_to_its_own_gpu_whichever_stream_allocates_from_it(fake_driver, plain_container, found):
    fake_driver.init(2)
    container = plain_container.start()
    container.write_limits(f"{container.limits.read_text()}gpu {fake_driver.uuids()[1]} {CAP} 250\n")
    script = f"""
        context(0)
        pool = c_void_p()
        ok({found})
        ok(cuda.cuMemAllocFromPoolAsync(byref(c_uint64()), c_size_t(512 * MIB), pool, None))
        here = free_and_total()[0]
        context(1)
        tell([here, free_and_total()[0]])
    """
    assert fake_driver.run(script, container.libraries) == [CAP - CONTEXT, CAP - CONTEXT - 512 * MIB]


def test_pools_end_in_any_order(fake_driver, plain_container):
    script = """
        context()
        def pool():
            made = c_void_p()
            ok(cuda.cuMemPoolCreate(byref(made), byref(PoolProps(type=1, location=Location(1, 0)))))
            return made
        def take(pool):
            ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(256 * MIB), pool, None))
            ok(cuda.cuMemFreeAsync(address, None))
        address, left = c_uint64(), []
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
            pools = [pool() for _ in range(3)]
            ok(cuda.cuMemPoolSetAttribute(pools[1], 4, byref(c_uint64(1 << 40))))
            for one in pools:
                take(one)
            left.append(free_and_total()[0])
            for at in order:
                ok(cuda.cuMemPoolDestroy(pools[at]))
            left.append(free_and_total()[0])
        tell(left)
    """
    left = fake_driver.run(script, plain_container.libraries)
    assert left[1::2] == 3 * [CAP - CONTEXT]
    assert left[::2] == 3 * [left[0]] < 3 * [CAP - CONTEXT]


GRAPH_OF_1024_MIB = """
graph, node, executable = c_void_p(), c_void_p(), c_void_p()
ok(cuda.cuGraphCreate(byref(graph), 0))
parameters = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=1024 * MIB)
ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
ok(cuda.cuGraphLaunch(executable, None))
address = c_uint64(parameters.address)
"""
FROM_THE_FIRST_POOL = "ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(1024 * MIB), pools[0], None))\n"


@pytest.mark.parametrize("take", [FROM_THE_FIRST_POOL, GRAPH_OF_1024_MIB], ids=["pool", "graph"])
def test_what_a_pool_has_unused_is_taken_and_nothing_of_other_pools(fake_driver, plain_container, take):
    """There is no more room than just that."""
    script = f"""
context()
pools, address, reserved = [c_void_p(), c_void_p()], c_uint64(), c_uint64()
for pool in pools:
    ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(type=1, location=Location(1, 0)))))
    ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(1 << 40))))
ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(512 * MIB), pools[1], None))
ok(cuda.cuMemFreeAsync(address, None))
{take}
ok(cuda.cuMemFreeAsync(address, None))
ok(cuda.cuStreamSynchronize(None))
allocate({CAP - CONTEXT - 1536 * MIB})
{take}
ok(cuda.cuMemPoolGetAttribute(pools[1], 5, byref(reserved)))
tell([reserved.value // MIB, free_and_total()[0]])
"""
    assert fake_driver.run(script, plain_container.libraries) == [512, 0]


@pytest.mark.parametrize(("left", "result"), [(64, 0), (62, OUT_OF_MEMORY)])
def test_a_pool_that_grows_by_more_than_was_expected_is_refused_above_the_cap_only(
    fake_driver, plain_container, left, result
):
    """How far a driver lets a pool grow at once is its own affair."""
    fake_driver.init(2, 8 << 30, "--pool-block", str(64 * MIB))
    script = f"""
        context()
        allocate({CAP - CONTEXT - left * MIB})
        tell([cuda.cuMemAllocAsync(byref(c_uint64()), c_size_t(MIB), None), free_and_total()[0] // MIB])
    """
    assert fake_driver.run(script, plain_container.start().libraries) == [result, 0 if result == 0 else left]


def test_memory_that_a_pool_gives_up_spoils_no_capture(fake_driver, plain_container):
    """Pools are trimmed amid a capture of another stream, in which the thread may not trim any by itself."""
    script = USE_A_POOL.replace("KEEP", str(1 << 40)) + (
        """
executable, graph, node, other, captured, beside, mode = (*(c_void_p() for _ in range(6)), c_int(0))
ok(cuda.cuGraphCreate(byref(graph), 0))
parameters = AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=64 * MIB)
ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
ok(cuda.cuGraphUpload(executable, None))
ok(cuda.cuMemPoolCreate(byref(other), byref(PoolProps(type=1, location=Location(1, 0)))))
for stream in (captured, beside):
    ok(cuda.cuStreamCreate(byref(stream), 1))
ok(cuda.cuStreamBeginCapture_v2(captured, 0))
ok(cuda.cuMemAllocFromPoolAsync(byref(address), c_size_t(1024 * MIB), other, beside))
ok(cuda.cuStreamEndCapture(captured, byref(graph)))
ok(cuda.cuStreamBeginCapture_v2(captured, 0))
by_itself = cuda.cuMemPoolTrimTo(pool, c_size_t(0))
ok(cuda.cuThreadExchangeStreamCaptureMode(byref(mode)))
tell([by_itself, cuda.cuStreamEndCapture(captured, byref(graph)), mode.value])
"""
    )
    assert fake_driver.run(script, plain_container.libraries) == [900, 901, 0]
