"""A program may have closed its standard files: what the libraries open next is then number 0."""

import json

from tests.native.gpu_container import CAP, CONTEXT, MIB


def test_a_program_without_standard_input_has_its_share_as_any_other(containers, fake_driver):
    """That number is its limits, its account, the lease, and a file by which memory behind a descriptor is found."""
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    script = f"""
        import os
        os.close(0)
        assert cuda.cuDeviceTotalMem_v2(byref(c_size_t()), 0) == NOT_INITIALIZED  # for which the limits are read
        os.open(os.devnull, os.O_RDWR)
        ok(cuda.cuInit(0))  # the fake driver's own file stays open
        os.close(0)
        context()
        allocate(512 * MIB)
        handle = create(256 * MIB)
        low = exported(handle)
        descriptor = os.dup2(low, 50)
        os.close(low)
        again = imported(descriptor)
        free = [free_and_total()[0]]
        for one in (handle, again):
            ok(cuda.cuMemRelease(one))
        free.append(free_and_total()[0])
        os.close(descriptor)
        free.append(free_and_total()[0])
        tell([low, free, launch(kernel("noop")), os.readlink("/proc/self/fd/0").endswith({uuid!r})])
    """
    status, told, errors = container.python(script)
    assert status == 0, errors
    left = CAP - CONTEXT - 512 * MIB
    assert json.loads(told) == [0, [left - 256 * MIB, left - 256 * MIB, left], 0, True]
