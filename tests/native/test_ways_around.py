"""Contexts and places of memory that once gave more of a GPU than the share. The driver's own count is the judge."""

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NOT_PERMITTED, OUT_OF_MEMORY


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


def test_a_limit_is_charged_as_the_driver_has_set_it(attack):
    """The fake driver gives stacks in blocks of 512 bytes, for each of 132 * 2048 threads, and a FIFO in whole MiB."""
    stacks = 512 * 132 * 2048
    told, used = attack(f"""
        context()
        free = []
        for limit, value in ((0, 1025), (0, 1024), (1, 3 * MIB + 1), (1, MIB), (0, 1025)):
            ok(cuda.cuCtxSetLimit(limit, c_size_t(value)))
            free.append({CAP - CONTEXT} - free_and_total()[0])
        tell(free)
    """)
    assert (told, used) == (str([stacks, 0, 2 * MIB, 0, stacks]), CONTEXT + stacks)


def test_a_limit_that_the_driver_sets_higher_than_there_is_room_stays_as_it_was(attack):
    """A byte more is a block more of each stack, 132 MiB together, and a little before the driver has set it."""
    told, used = attack(f"""
        context()
        allocate({CAP - CONTEXT - 64 * MIB})
        value, left = c_size_t(), free_and_total()[0]
        result = cuda.cuCtxSetLimit(0, c_size_t(1025))
        ok(cuda.cuCtxGetLimit(byref(value), 0))
        tell([result, value.value, left - free_and_total()[0]])
    """)
    assert (told, used) == (f"[{OUT_OF_MEMORY}, 1024, 0]", CAP - 64 * MIB)


def test_a_limit_for_which_the_gpu_has_no_room_stays_charged_as_it_was(attack, fake_driver, container):
    """The share is larger than the GPU, so that the driver refuses what the libraries grant."""
    fake_driver.init(2, 1024 * MIB)
    container.start()
    told, used = attack("""
        context()
        ok(cuda.cuCtxSetLimit(2, c_size_t(264 * MIB)))
        result = cuda.cuCtxSetLimit(2, c_size_t(808 * MIB))
        nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), c_void_p(), (c_uint64 * 3)()
        ok(nvml.nvmlInit_v2())
        ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)))
        ok(nvml.nvmlDeviceGetMemoryInfo(device, memory))
        tell([result, memory[2]])
    """)
    assert (told, used) == (f"[{OUT_OF_MEMORY}, {CONTEXT + 256 * MIB}]", CONTEXT + 256 * MIB)


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
        free, total = c_uint(7), c_uint(7)
        tell([cuda.cuDevicePrimaryCtxRetain(byref(made), 7), cuda.cuMemAlloc_v2(byref(address), c_size_t(MIB)),
              cuda.cuMemGetInfo(byref(free), byref(total)), free.value, total.value])
    """)
    assert told == "[101, 201, 201, 7, 7]"


def test_the_total_of_a_gpu_is_its_cap_for_the_oldest_programs_too(attack):
    """They have 32 bits for it, and the second GPU, which is not limited, has 8 GiB."""
    told, _ = attack("""
        ok(cuda.cuInit(0))
        totals, total = [], c_uint()
        for device in range(2):
            ok(cuda.cuDeviceTotalMem(byref(total), device))
            totals.append(total.value)
        tell([*totals, cuda.cuDeviceTotalMem(None, 0), cuda.cuDeviceTotalMem(byref(total), 7), total.value])
    """)
    assert told == f"[{CAP}, {2**32 - 1}, 1, 101, {2**32 - 1}]"


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
