"""Every way to take memory of a GPU ends at the container's cap, and what is given back can be taken again."""

import json

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NOT_PERMITTED, OUT_OF_MEMORY, Container
from tests.waiting import eventually

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


def test_a_shortage_is_waited_for_also_where_the_death_was_not_noticed_before(fake_driver, plain_container):
    """The other process had begun by then, and the cap has room for what it asks for."""
    fake_driver.init(1, 1536 * MIB, "--free-delay-ms", "60")
    plain_container.start()
    with fake_driver.start(
        "context()\ntell(0)\nsys.stdin.readline()\ntell(refused(768 * MIB))", plain_container.libraries
    ) as other:
        other.stdout.readline()
        holder = plain_container.popen("hold", 512 * MIB)
        assert holder.stdout.readline() == '{"error": 0}\n'
        holder.kill()
        holder.communicate()
        assert other.communicate("\n")[0] == "0\n"


@pytest.mark.parametrize(("died_on", "waited_ms"), [(0, [1023, 511, 0]), (1, [0, 0, 0])])
def test_a_shortage_is_waited_for_up_to_a_second_each_and_not_long_after_a_death(
    fake_driver, plain_container, clock, died_on, waited_ms
):
    """Pauses double up to 128 ms. Those of another GPU's dead are not waited for."""
    fake_driver.init(2, CAP - 512 * MIB, "--free-delay-ms", "60000")
    first, second = fake_driver.uuids()
    plain_container.start()
    head = plain_container.limits.read_text().partition("gpu ")[0]
    plain_container.write_limits(f"{head}gpu {first} {CAP} 250\ngpu {second} {CAP} 250\n")
    script = f"context({died_on})\nallocate(512 * MIB)\nwait()"
    with fake_driver.start(script + "\n", plain_container.libraries) as dead:
        eventually(lambda: fake_driver.used_bytes(died_on), lambda used: used == 512 * MIB + CONTEXT)
        dead.kill()
    script = """
        import time
        context(0)
        allocate(free_and_total()[0])
        def timed():
            began = time.monotonic()
            return refused(512 * MIB), round(1000 * (time.monotonic() - began))
        tell([timed() for _ in range(3)])
    """
    seen = json.loads(clock.output(clock.start(*fake_driver.command(script, plain_container.libraries))))
    assert [result for result, _ in seen] == 3 * [OUT_OF_MEMORY]
    assert [waited for _, waited in seen] == pytest.approx(waited_ms, abs=5), "each wake takes a little"


def test_rows_are_charged_as_far_apart_as_the_driver_lays_them(fake_driver, plain_container):
    """The fake driver lays rows of elements of 4, 8 and 16 bytes in steps of 512, 256 and 1024 bytes."""
    script = """
        context()
        def take(element, megabytes, width=200):
            return cuda.cuMemAllocPitch_v2(
                byref(address), byref(c_size_t()), c_size_t(width), c_size_t(megabytes << 11), element)
        address, before, found = c_uint64(), free_and_total()[0], []
        for element in (4, 8, 16):
            ok(take(element, 64))
            found.append((before - free_and_total()[0]) // MIB)
            ok(cuda.cuMemFree_v2(address))
        tell([found, take(16, 1000), before == free_and_total()[0], take(4, 1000), take(8, 1000)])
        ok(cuda.cuMemFree_v2(address))
        for allocate_rows, whole in ((cuda.cuMemAllocPitch_v2, c_size_t), (cuda.cuMemAllocPitch, c_uint)):
            made = byref(c_uint64())
            ok(allocate_rows(made, byref(c_size_t()), whole(512), whole(before // 512), 4))
            ok(cuda.cuMemFree_v2(made._obj))
    """
    found, *more = fake_driver.run(script, plain_container.libraries)
    assert found == [64, 32, 128]
    assert more == [OUT_OF_MEMORY, True, 0, OUT_OF_MEMORY]


HEAD = "version 1\nkernel k\ncompute fair\ncontext_bytes 0\n"
# Files that cannot be used, and what the line on stderr says of them.
BROKEN = {
    "missing": (None, "No such file or directory"),
    "a directory": ("/", "Is a directory"),
    "empty": ("", "lacks one of version, kernel, compute, context_bytes"),
    "cut off": ("version 1\nkernel 6f1c\n", "lacks one of version, kernel, compute, context_bytes"),
    "no context_bytes": ("version 1\nkernel k\ncompute fair\ngpu GPU-1 2097152 1\n", "lacks one of version, kernel"),
    "no GPU": (HEAD, "names no GPU"),
    "not text": (HEAD + "gpu GPU-1 2097152 1\n\0", "is not text"),
    "too long": (HEAD + "gpu GPU-1 2097152 1\n" + 8192 * " ", "is too long"),
    "of another version": ("version 2\nkernel k\n", "is of a version that this library does not know"),
    "a version twice": (HEAD + "version 1\n", "says something twice"),
    "a kernel twice": (HEAD + "kernel k\n", "says something twice"),
    "a kernel's id without end": (f"version 1\nkernel {64 * 'k'}\n", "the kernel's id is too long"),
    "an unknown word": (HEAD + "colour red\n", "has an entry that this library does not know"),
    "a word without value": (HEAD + "compute\n", "has an entry that is not a name and one value"),
    "words too many": (HEAD + "gpu GPU-1 2097152 1 2 more\n", "has a line with too many words"),
    "no share": (HEAD + "gpu GPU-1 2097152\n", "gpu takes a UUID, bytes, a share and perhaps a limit"),
    "a share of nothing": (HEAD + "gpu GPU-1 2097152 0\n", "the compute share of a gpu is 1 to 1000 thousandths"),
    "a share above the GPU": (HEAD + "gpu GPU-1 2097152 1001\n", "the compute share of a gpu is 1 to 1000"),
    "a limit that is none": (HEAD + "gpu GPU-1 2097152 1 more\n", "the compute limit of a gpu is its share or more"),
    "a limit below the share": (HEAD + "gpu GPU-1 2097152 2 1\n", "the compute limit of a gpu is its share or more"),
    "a limit above the GPU": (HEAD + "gpu GPU-1 2097152 1 1001\n", "the compute limit of a gpu is its share or more"),
    "not whole grains": (HEAD + "gpu GPU-1 2097153 1\n", "the memory of a gpu is bytes, a multiple of 2 MiB"),
    "no memory": (HEAD + "gpu GPU-1 0 1\n", "the memory of a gpu is bytes, a multiple of 2 MiB"),
    "a number that is none": (HEAD + "gpu GPU-1 -2097152 1\n", "the memory of a gpu is bytes"),
    "too big a number": (HEAD + "gpu GPU-1 99999999999999999999999 1\n", "the memory of a gpu is bytes"),
    "context_bytes that are none": ("context_bytes some\n", "context_bytes is bytes"),
    "a UUID that is none": (HEAD + "gpu 1 2097152 1\n", "gpu needs a UUID"),
    "a UUID without end": (HEAD + f"gpu GPU-{60 * '1'} 2097152 1\n", "gpu needs a UUID"),
    "a GPU twice": (HEAD + 2 * "gpu GPU-1 2097152 1\n", "names a GPU twice"),
    "too many GPUs": (HEAD + "".join(f"gpu GPU-{i} 2097152 1\n" for i in range(17)), "names too many GPUs"),
    "a compute mode that is none": ("version 1\nkernel k\ncompute some\n", "compute is fair, hard or none"),
    "an overcommit below the share": (HEAD + "class best-effort\novercommit 999\n", "overcommit is 1000 thousandths"),
    "an overcommit that is none": (HEAD + "class best-effort\novercommit more\n", "overcommit is 1000 thousandths"),
    "an overcommit beyond reason": (HEAD + "overcommit 1000001\n", "overcommit is 1000 thousandths or more"),
    "an overcommit twice": (HEAD + 2 * "overcommit 1000\n", "says something twice"),
    "an overcommit of a guaranteed share": (HEAD + "overcommit 1500\n", "overcommits memory, and is not of the class"),
    "a class that is none": (HEAD + "class first\n", "class is guaranteed or best-effort"),
    "a class twice": (HEAD + "class best-effort\nclass guaranteed\n", "says something twice"),
}


@pytest.mark.parametrize(("text", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_without_usable_limits_nothing_is_given_and_one_line_says_why(container, text, problem):
    if text is None or text == "/":
        container.limits.unlink()
    if text == "/":
        container.limits.mkdir()
    elif text is not None:
        container.write_limits(text)
    process = container.popen("info")
    _, errors = process.communicate(timeout=30)
    first, second = errors.splitlines()
    assert first.startswith(
        f"muster fgpu: the GPU limits of this container, {container.limits}, cannot be used ({problem}"
    )
    assert second == f"cuInit(0): CUDA error {NOT_PERMITTED}"
    if text == "/":
        container.limits.rmdir()


def test_limits_may_be_as_long_and_as_many_as_they_can_be(container, fake_driver):
    """With a gap of lines, the longest id and 16 GPUs, of which the last is there."""
    others = "".join(f"gpu GPU-{i} 2097152 1000 1000\n" for i in range(15))
    text = f"version 1\nkernel {63 * 'k'}\n\ncompute none\ncontext_bytes 0\nclass guaranteed\n{others}"
    container.write_limits(f"{text}gpu {fake_driver.uuids()[0]} 2097152 1\n".ljust(8191))
    assert container.client("info")["total"] == 2 * MIB


KIB = 1 << 10
LAYERED, CUBEMAP, SPARSE, DEFERRED = 1, 4, 0x40, 0x80
# Width, height, depth, format, channels, flags, levels (0: an array without levels); and what is charged. Rows are in
# blocks of 64 bytes, planes in blocks of 8 rows; below 1 MiB in steps of 512 bytes, from there on of 2 MiB.
SHAPES = [
    ((1000, 0, 0, 0x01, 1, 0, 0), KIB),
    ((1000, 0, 0, 0x08, 1, 0, 0), KIB),
    ((1000, 0, 0, 0x02, 1, 0, 0), 2 * KIB),
    ((1000, 0, 0, 0x09, 1, 0, 0), 2 * KIB),
    ((1000, 0, 0, 0x10, 1, 0, 0), 2 * KIB),
    ((1000, 0, 0, 0x03, 1, 0, 0), 4 * KIB),
    ((1000, 0, 0, 0x20, 4, 0, 0), 16 * KIB),
    ((64, 1, 0, 0x01, 1, 0, 0), 512),
    ((1024, 9, 0, 0x01, 1, 0, 0), 16 * KIB),
    ((1024, 8, 3, 0x01, 1, 0, 0), 24 * KIB),
    ((1024, 1016, 0, 0x01, 1, 0, 0), 1016 * KIB),
    ((1024, 1024, 0, 0x01, 1, 0, 0), 2 * MIB),
    ((2048, 1025, 0, 0x01, 1, 0, 0), 4 * MIB),
    ((1024, 1024, 16, 0x01, 1, 0, 0), 16 * MIB),
    ((1024, 1024, 6, 0x01, 1, CUBEMAP, 0), 6 * MIB),
    ((1 << 20, 1024, 0, 0x20, 1, SPARSE, 0), 0),
    ((1 << 20, 1024, 0, 0x20, 1, DEFERRED, 0), 0),
    ((1024, 64, 4, 0x01, 1, 0, 1), 256 * KIB),
    ((1024, 64, 4, 0x01, 1, 0, 2), (256 + 32) * KIB),
    ((1024, 64, 4, 0x01, 1, LAYERED, 2), (256 + 64) * KIB),
    ((64, 1, 1, 0x01, 1, 0, 3), 512),
    ((1 << 20, 1024, 0, 0x20, 1, SPARSE, 2), 0),
]
TAKE_SHAPES = """
context()
found = []
for width, height, depth, kind, channels, flags, levels in SHAPES:
    array, shape = c_void_p(), byref(Array3D(width, height, depth, kind, channels, flags))
    before = free_and_total()[0]
    if levels:
        ok(cuda.cuMipmappedArrayCreate(byref(array), shape, levels))
    else:
        ok(cuda.cuArray3DCreate_v2(byref(array), shape))
    found.append(before - free_and_total()[0])
    ok((cuda.cuMipmappedArrayDestroy if levels else cuda.cuArrayDestroy)(array))
    assert free_and_total()[0] == before
huge = Array3D(1 << 40, 1 << 40, 1 << 40, 0x20, 4, 0)
tell([found, cuda.cuArray3DCreate_v2(byref(c_void_p()), byref(huge)), *(
    cuda.cuMipmappedArrayCreate(byref(c_void_p()), byref(huge), levels) for levels in (1, 13))])
"""


def test_arrays_are_charged_as_the_driver_lays_them_out(fake_driver, plain_container):
    shapes = [shape for shape, _ in SHAPES]
    found, *huge = fake_driver.run(TAKE_SHAPES.replace("SHAPES", repr(shapes)), plain_container.libraries)
    assert found == [charged for _, charged in SHAPES]
    assert huge == 3 * [OUT_OF_MEMORY]


NULL_ARGUMENTS = """
context()
before = free_and_total()[0]
graph = c_void_p()
ok(cuda.cuGraphCreate(byref(graph), 0))
node, parameters = c_void_p(), AllocNode(pool=PoolProps(type=1, location=Location(1, 0)), bytes=2 * MIB)
ok(cuda.cuGraphAddMemAllocNode(byref(node), graph, None, c_size_t(0), byref(parameters)))
answers = [
    cuda.cuGraphInstantiateWithFlags(byref(c_void_p()), None, c_uint64(0)),
    cuda.cuGraphInstantiateWithFlags(None, graph, c_uint64(0)),
    cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(0)),
    cuda.cuMemFree_v2(c_uint64(12345)),
    cuda.cuArray3DCreate_v2(byref(c_void_p()), None),
    cuda.cuArrayDestroy(None),
    cuda.cuMipmappedArrayDestroy(None),
    cuda.cuMemCreate(byref(c_uint64()), c_size_t(2 * MIB), None, c_uint64(0)),
    cuda.cuMemRelease(c_uint64(12345)),
    cuda.cuMemPoolDestroy(None),
]
executable = c_void_p()
ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
ok(cuda.cuGraphLaunch(executable, None))
tell([answers, before - free_and_total()[0]])
"""


def test_calls_that_fail_leave_the_account_as_it_was(fake_driver, plain_container):
    answers, used = fake_driver.run(NULL_ARGUMENTS, plain_container.libraries)
    assert all(answers)
    assert used == 2 * MIB


OVERCOMMITTED = """
context()
free = free_and_total()
first, second = allocate(1024 * MIB), allocate(1024 * MIB)
refusals = [refused(2 * MIB + FITS), refused(FITS)]
ok(cuda.cuMemFree_v2(first))
handle = c_uint64()
kinds = [
    cuda.cuMemCreate(byref(handle), c_size_t(700 * MIB), byref(on_device()), c_uint64(0)),
    cuda.cuMemCreate(byref(handle), c_size_t(500 * MIB), byref(on_device()), c_uint64(0)),
    cuda.cuMemAllocManaged(byref(first), c_size_t(1024 * MIB), 1),
]
ok(cuda.cuMemFree_v2(second))
tell([free, refusals, kinds, free_and_total()[0]])
wait()
"""


def overcommitted(container, milli=2000):
    head, gpu = container.start(mem_bytes=1280 * MIB).limits.read_text().split("gpu ")
    container.write_limits(f"{head}class best-effort\novercommit {milli}\ngpu {gpu}")
    return container


def test_best_effort_has_managed_memory_above_its_share_and_other_memory_within(fake_driver, plain_container):
    fake_driver.init(1, 1280 * MIB, "--host", str(1 << 40))
    libraries = overcommitted(plain_container).libraries
    free, refusals, kinds, left = fake_driver.run(OVERCOMMITTED.replace("FITS", "0"), libraries)
    assert free == [1024 * MIB, 1280 * MIB], "programs see the share"
    assert refusals == [OUT_OF_MEMORY, 1], "2 GiB of managed memory are charged 1 GiB"
    assert kinds == [OUT_OF_MEMORY, 0, OUT_OF_MEMORY]
    assert left == 1024 * MIB - 500 * MIB


def test_guaranteed_containers_get_their_memory_from_best_effort(fake_driver, build_native):
    fake_driver.init(1, 2048 * MIB, "--host", str(1 << 40))
    container = overcommitted(Container(fake_driver, build_native))
    script = "context()\nallocate(1600 * MIB)\ntell(0)\nwait()"
    rest = fake_driver.start(script, container.libraries)
    rest.stdout.readline()
    assert fake_driver.used_bytes() == 1600 * MIB + CONTEXT
    assert fake_driver.run("context()\ntell(refused(1024 * MIB))") == 0, "the driver moves managed memory away"
    rest.communicate()
    assert fake_driver.used_bytes() == 0


def test_without_overcommit_plain_memory_stays_on_the_gpu(fake_driver, build_native):
    fake_driver.init(1, 2048 * MIB, "--host", str(1 << 40))
    container = overcommitted(Container(fake_driver, build_native), 1000)
    rest = fake_driver.start("context()\nallocate(1024 * MIB)\ntell(0)\nwait()", container.libraries)
    rest.stdout.readline()
    assert fake_driver.run("context()\ntell(refused(1024 * MIB))") == OUT_OF_MEMORY
    rest.communicate()
