"""Every way to take memory of a GPU ends at the container's cap, and what is given back can be taken again."""

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NOT_PERMITTED, OUT_OF_MEMORY, Container

KINDS = [
    *["linear", "linear_v1", "managed", "free_async", "pitch", "pitch_v1"],
    *["array", "array_v1", "array_3d", "array_3d_v1", "mipmap"],
    *["vmm", "vmm_retained", "stream", "stream_ptsz", "stream_free", "pool", "pool_ptsz", "graph"],
    *["vmm_domain", "default_pool", "managed_pool", "current_pool", "graph_child"],
]
BLOCK = 64 * MIB


@pytest.fixture(params=["", "address,undefined"], ids=["plain", "sanitized"])
def container(request, fake_driver, build_native):
    return Container(fake_driver, build_native, request.param).start()


@pytest.fixture
def plain_container(fake_driver, build_native):
    return Container(fake_driver, build_native).start()


@pytest.mark.parametrize("kind", [*KINDS, "vmm_unknown"])
def test_allocations_end_at_the_cap_and_what_is_freed_can_be_taken_again(container, kind):
    seen = container.client("fill", kind, BLOCK)
    assert seen["error"] == OUT_OF_MEMORY
    assert CAP - 2 * BLOCK < seen["full"] <= CAP
    assert seen["after"] == seen["before"] == CONTEXT
    assert (seen["again"], seen["full_again"]) == (seen["count"], seen["full"])


@pytest.mark.parametrize("kind", ["linear", "managed", "pitch", "array", "stream", "pool", "graph"])
def test_sizes_that_are_no_whole_grains_end_at_the_cap_too(plain_container, kind):
    seen = plain_container.client("fill", kind, 3 * MIB + 4096)
    assert seen["error"] == OUT_OF_MEMORY
    assert CAP // 2 < seen["full"] <= CAP


@pytest.mark.parametrize("kind", ["stream", "stream_ptsz", "pool", "pool_ptsz"])
def test_a_pool_does_not_grow_past_the_cap_by_its_block(plain_container, kind):
    """The driver lets a pool grow by 32 MiB where the device has them, even if the rest of the cap is less."""
    seen = plain_container.start(mem_bytes=CAP + 10 * MIB).client("fill", kind, 3 * MIB)
    assert seen["error"] == OUT_OF_MEMORY
    assert CAP - 32 * MIB < seen["full"] <= CAP + 10 * MIB
    assert seen["full_again"] <= CAP + 10 * MIB


REFUSED = """
context()
before = free_and_total()[0]
address, handle, pitch = c_uint64(), c_uint64(), c_size_t()
for _ in range(20):
    assert cuda.cuMemAlloc_v2(byref(address), c_size_t(900 * MIB))
    assert cuda.cuMemAllocManaged(byref(address), c_size_t(900 * MIB), 1)
    assert cuda.cuMemAllocPitch_v2(byref(address), byref(pitch), c_size_t(900 * MIB), c_size_t(1), 4)
    assert cuda.cuMemCreate(byref(handle), c_size_t(900 * MIB), byref(on_device()), c_uint64(0))
    assert cuda.cuMemCreate(byref(handle), c_size_t(900 * MIB + 1), byref(on_device()), c_uint64(0))
    assert cuda.cuMemAllocAsync(byref(address), c_size_t(900 * MIB), None)
    assert cuda.cuArray3DCreate_v2(byref(c_void_p()), byref(Array3D(1 << 18, 900, 0, 0x20, 1, 0)))
    assert cuda.cuMipmappedArrayCreate(byref(c_void_p()), byref(Array3D(1 << 18, 900, 0, 0x20, 1, 0)), 1)
    assert cuda.cuCtxSetLimit(2, c_size_t(900 * MIB))
tell([before, free_and_total()[0], cuda.cuMemAlloc_v2(byref(address), c_size_t(700 * MIB))])
"""


def test_what_the_driver_refuses_is_not_charged(fake_driver, plain_container):
    """A device that is smaller than the cap refuses what the cap allows."""
    fake_driver.init(1, 1024 * MIB)
    seen = fake_driver.run(REFUSED, plain_container.start().libraries)
    assert seen == [1024 * MIB - CONTEXT, 1024 * MIB - CONTEXT, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_that_is_not_in_the_limits_is_the_whole_gpu(fake_driver, plain_container, kind):
    fake_driver.init(2, CAP + 1024 * MIB)
    seen = plain_container.start(gpu=0).client("fill", kind, BLOCK, gpu=1)
    assert seen["error"] == OUT_OF_MEMORY
    assert seen["full"] > CAP
    assert seen["total"] == CAP + 1024 * MIB


def test_the_memory_that_a_program_sees_is_the_cap_less_what_the_container_has(container):
    assert container.client("info") == {"free": CAP - CONTEXT, "total": CAP, "of_device": CAP}
    other = container.popen("hold", 512 * MIB)
    assert other.stdout.readline() == '{"error": 0}\n'
    assert container.client("info")["free"] == CAP - 2 * CONTEXT - 512 * MIB
    other.communicate()
    assert container.client("info")["free"] == CAP - CONTEXT


def test_free_memory_is_what_the_device_has_where_that_is_less(fake_driver, plain_container):
    fake_driver.init(1, 1024 * MIB)
    plain_container.start()
    assert plain_container.client("info") == {
        "free": 1024 * MIB - CONTEXT,
        "total": 1024 * MIB,
        "of_device": 1024 * MIB,
    }


def test_each_context_is_charged_and_takes_its_memory_along(container):
    seen = container.client("contexts")
    free = CAP - CONTEXT
    assert seen["free"] == [free, free - CONTEXT - 64 * MIB, free, free]


def test_a_context_that_does_not_fit_is_refused(plain_container):
    plain_container.start(mem_bytes=128 * MIB)
    assert plain_container.client("contexts") == {"error": OUT_OF_MEMORY}


def test_a_real_shortage_is_waited_for_where_a_killed_process_had_memory(fake_driver, plain_container):
    """The driver frees the memory of the dead late: by then the table has given it to the next."""
    fake_driver.init(1, CAP, "--free-delay-ms", "60")
    plain_container.start()
    holder = plain_container.popen("hold", CAP - 2 * CONTEXT)
    assert holder.stdout.readline() == '{"error": 0}\n'
    holder.kill()
    holder.communicate()
    assert plain_container.client("fill", "linear", CAP - CONTEXT)["count"] == 1


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


BROKEN = {
    "missing": None,
    "a directory": "/",
    "empty": "",
    "cut off": "version 1\nkernel 6f1c\n",
    "of another version": "version 2\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 2097152 1\n",
    "an unknown word": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 2097152 1\ncolour red\n",
    "words too many": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 2097152 1 more\n",
    "no share": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 2097152\n",
    "not whole grains": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 2097153 1\n",
    "a number that is none": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 -2097152 1\n",
    "too big a number": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 99999999999999999999999 1\n",
    "a GPU twice": "version 1\nkernel k\ncompute fair\ncontext_bytes 0\ngpu GPU-1 2097152 1\ngpu GPU-1 2097152 1\n",
    "a compute mode that is none": "version 1\nkernel k\ncompute some\ncontext_bytes 0\ngpu GPU-1 2097152 1\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_without_usable_limits_nothing_is_given_and_one_line_says_why(container, text):
    if text is None or text == "/":
        container.limits.unlink()
    if text == "/":
        container.limits.mkdir()
    elif text is not None:
        container.write_limits(text)
    process = container.popen("info")
    _, errors = process.communicate(timeout=30)
    first, second = errors.splitlines()
    assert first.startswith(f"muster fgpu: the GPU limits of this container, {container.limits}, cannot be used (")
    assert second == f"cuInit(0): CUDA error {NOT_PERMITTED}"
    if text == "/":
        container.limits.rmdir()
