"""What the driver gives an address again is something else: what was known of the old one holds no longer."""

import textwrap

import pytest

from tests.native.gpu_container import CAP, CONTEXT

NOT_PERMITTED = 800
# Ways to end a context of the second GPU, and what makes it, with `made` current.
CREATED = "ok(cuda.cuCtxCreate_v2(byref(made), 0, 1))"
ENDS = {
    "cuCtxDestroy(made)": CREATED,
    "cuCtxDestroy_v2(made)": CREATED,
    "cuCtxDetach(made)": CREATED,
    **{f"cuDevicePrimaryCtx{how}(1)": "made = context(1)" for how in ("Release", "Release_v2", "Reset", "Reset_v2")},
    "cuGreenCtxDestroy(green)": """
        ok(cuda.cuGreenCtxCreate(byref(green), None, 1, 1))
        ok(cuda.cuCtxFromGreenCtx(byref(made), green))
        ok(cuda.cuCtxSetCurrent(made))
    """,
    "cuStreamDestroy(stream)": CREATED,
    "cuStreamDestroy_v2(stream)": CREATED,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_stream_at_the_address_of_one_that_ended_is_of_its_own_gpu(containers, fake_driver, end):
    """Streams end with their context. The first GPU is limited, and cannot be used without its lease."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    (container.home / "state/lease" / uuid).unlink()
    begin = """
        green, made = c_void_p(), c_void_p()
        run_first = context(0) and kernel("noop")
    """
    then = f"""
        run_second, stream = kernel("noop"), new_stream()
        ok(launch(run_second, stream))
        was = stream.value
        ok(cuda.{end})
        context(0)
        stream = new_stream()
        tell([stream.value == was, launch(run_first, stream)])
    """
    status, told, errors = container.python("\n".join(textwrap.dedent(part) for part in (begin, ENDS[end], then)))
    assert (status, told) == (0, f"[true, {NOT_PERMITTED}]\n"), errors


@pytest.mark.parametrize("stream", [None, 1, 2], ids=["default", "legacy", "per thread"])
def test_a_default_stream_is_of_the_gpu_of_the_context_that_is_current_now(containers, fake_driver, stream):
    """They have one name on all GPUs. The first GPU is limited, and cannot be used without its lease."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    (container.home / "state/lease" / uuid).unlink()
    told = container.python(f"""
        done = []
        for gpu in (1, 0, 1, 0):
            context(gpu)
            done.append(launch(kernel("noop"), c_void_p({stream})))
        tell(done)
    """)
    assert told[:2] == (0, f"[0, {NOT_PERMITTED}, 0, {NOT_PERMITTED}]\n"), told


def test_of_many_allocations_none_is_forgotten(attack):
    """The table that knows them grows while they are there."""
    told, used = attack("""
        context()
        held = [allocate(64 << 10) for _ in range(1000)]
        all_held = free_and_total()[0]
        for address in held:
            ok(cuda.cuMemFree_v2(address))
        tell([all_held, free_and_total()[0]])
    """)
    assert (told, used) == (f"[{CAP - CONTEXT - 1000 * (64 << 10)}, {CAP - CONTEXT}]", CONTEXT)


def test_what_is_known_of_allocations_takes_no_more_memory_the_more_there_were(attack):
    """A program may allocate and free for weeks."""
    told, _ = attack("""
        context()

        def come_and_go(times):
            for _ in range(times):
                ok(cuda.cuMemFree_v2(allocate(64 << 10)))
            with open("/proc/self/statm") as file:
                return int(file.read().split()[0]) * 4096

        before = come_and_go(2000)
        tell(come_and_go(30000) - before)
    """)
    assert int(told) < 1 << 20
