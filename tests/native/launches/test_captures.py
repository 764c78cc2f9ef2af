"""Captures and waits of ours: neither spoils the other, and what is not captured takes its turn as ever."""

import json
import re
import textwrap
from pathlib import Path

import pytest

NOT_PERMITTED = 800
INVALID_VALUE = 1
CAPTURE_IMPLICIT = 906
LAUNCH_HOOKS = Path(__file__).parents[3] / "native" / "launch.def"
LAUNCHES = re.findall(r"^HOOKED\((cu(?:Launch|GraphLaunch|Memset)\w*),", LAUNCH_HOOKS.read_text(), re.MULTILINE)
OF_THREAD = [name for name in LAUNCHES if name.endswith(("ptsz", "ptds"))]
# What each launch needs beside its function; a stream of None is a default one.
WORDS = {
    "cuLaunch": "run",
    "cuLaunchGrid": "run, 1, 1",
    "cuLaunchGridAsync": "run, 1, 1, None",
    "cuLaunchKernel": "run, 1, 1, 1, 1, 1, 1, 0, None, None, None",
    "cuLaunchKernelEx": "byref((c_uint * 16)(1, 1, 1, 1, 1, 1)), run, None, None",
    "cuLaunchCooperativeKernel": "run, 1, 1, 1, 1, 1, 1, 0, None, None",
    "cuLaunchCooperativeKernelMultiDevice": "byref((c_uint64 * 8)(run.value)), 1, 0",
    "cuGraphLaunch": "executable, None",
}


def test_beside_a_captured_stream_work_on_a_threads_own_stream_takes_its_turn(containers, fake_driver):
    """The capture of a blocking stream makes the legacy stream useless, so the driver refuses what is launched there.

    CUDA says so of cuStreamIsCapturing(). Work on the per-thread stream is executed, which needs the lease.
    """
    container, uuid = containers[0], fake_driver.uuids()[0]
    container.limit({uuid: 500})
    (container.home / "state/lease" / uuid).unlink()
    calls = {name: WORDS.get(name.removesuffix("_ptsz"), "") for name in LAUNCHES}
    script = f"""
        context()
        run, stream, graph, node, executable, old = kernel("noop"), *(c_void_p() for _ in range(4)), c_uint()
        wide = allocate(MIB)
        ok(cuda.cuMemAlloc(byref(old), MIB))
        ok(cuda.cuGraphCreate(byref(graph), 0))
        ok(cuda.cuGraphAddEmptyNode(byref(node), graph, None, c_size_t(0)))
        ok(cuda.cuGraphInstantiateWithFlags(byref(executable), graph, c_uint64(0)))
        ok(cuda.cuStreamCreate(byref(stream), 0))
        ok(cuda.cuStreamBeginCapture_v2(stream, 2))
        def call(name, words):
            if not name.startswith("cuMemset"):
                return cuda[name](*eval(f"[{{words}}]", globals()))
            size = c_size_t if "_v2" in name or "Async" in name else c_uint
            words = [size(64), 0, size(16), size(2)] if "D2D" in name else [0, size(16)]
            return cuda[name](wide if size is c_size_t else old, *words, *([None] if "Async" in name else []))
        tell({{name: call(name, words) for name, words in {calls}.items()}})
    """
    status, told, errors = container.python(script)
    assert status == 0, errors
    legacy = dict.fromkeys(set(LAUNCHES) - set(OF_THREAD), CAPTURE_IMPLICIT)
    legacy["cuLaunchCooperativeKernelMultiDevice"] = INVALID_VALUE  # which takes no default stream at all
    assert json.loads(told) == legacy | dict.fromkeys(OF_THREAD, NOT_PERMITTED)
    assert len(OF_THREAD) == 16


def test_a_capture_waits_for_a_drain_that_goes_on_and_not_for_long(containers, fake_driver, clock):
    """A wait that began before a capture could spoil it. What the GPU does may itself wait for the graph."""
    containers[0].limit({fake_driver.uuids()[0]: "1000 1000"})
    script = """
        import time
        context()
        stream, graph, waited = new_stream(), c_void_p(), []
        def begin(function, sleep):
            if function:
                ok(launch(kernel(function), stream))
            time.sleep(sleep)
            began = time.monotonic()
            ok(cuda.cuStreamBeginCapture_v2(stream, 0))
            waited.append(round(1000 * (time.monotonic() - began)))
            ok(cuda.cuStreamEndCapture(stream, byref(graph)))
        begin("spin_us_50000", 0.01)
        begin(None, 0.1)
        begin("spin_us_500000", 0.01)
        begin(None, 1)
        tell(waited)
    """
    command, environment = fake_driver.command(script, containers[0].libraries)
    waited = json.loads(clock.output(clock.start(command, environment, cwd=containers[0].home)))
    assert waited == pytest.approx([40, 0, 250, 0], abs=2)


BEGIN = {
    "cuStreamBeginCapture": "",
    "cuStreamBeginCapture_v2": ", 0",
    "cuStreamBeginCaptureToGraph": ", captured, None, None, c_size_t(0), 0",
    "cuStreamBeginRecaptureToGraph": ", 0, captured, None, None",
}


@pytest.mark.parametrize("name", [*BEGIN, *(f"{name}_ptsz" for name in BEGIN)])
def test_captures_of_a_threads_own_stream_that_have_ended_hinder_no_wait(containers, fake_driver, clock, name):
    """The stream has two names. Another thread cannot ask for its state, so each capture is noted until its end.

    Whether there are waits is seen by the last capture, which waits for the one that goes on.
    """
    containers[0].limit({fake_driver.uuids()[0]: "1000 1000"})
    stream = "None" if name.endswith("_ptsz") else "c_void_p(2)"
    script = f"""
        import time
        context()
        graph, captured = c_void_p(), c_void_p()
        ok(cuda.cuGraphCreate(byref(captured), 0))
        for _ in range(100):
            ok(cuda.{name}({stream}{BEGIN[name.removesuffix("_ptsz")]}))
            ok(cuda.cuStreamEndCapture{"_ptsz" if stream == "None" else ""}({stream}, byref(graph)))
        last = new_stream()
        ok(launch(kernel("spin_us_50000"), last))
        time.sleep(0.01)
        began = time.monotonic()
        ok(cuda.cuStreamBeginCapture_v2(last, 0))
        tell(round(1000 * (time.monotonic() - began)))
        ok(cuda.cuStreamEndCapture(last, byref(graph)))
    """
    command, environment = fake_driver.command(script, containers[0].libraries)
    waited = json.loads(clock.output(clock.start(command, environment, cwd=containers[0].home)))
    assert waited == pytest.approx(40, abs=2)


def test_a_launch_on_several_gpus_takes_turns_for_as_many_as_there_are(containers, fake_driver):
    """What lies behind the last one is none. The second GPU's lease is missing."""
    container, (first, second, *_) = containers[0], fake_driver.uuids()
    container.limit({first: 500, second: 500})
    (container.home / "state/lease" / second).unlink()
    script = """
        class Launch(ctypes.Structure):
            _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("stream", c_void_p), ("words", c_void_p)]
        launches = []
        for gpu in range(2):
            context(gpu)
            launches.append(Launch(kernel("noop"), (c_uint * 7)(1, 1, 1, 1, 1, 1), new_stream()))
        context()
        both = (Launch * 2)(*launches)
        tell([cuda.cuLaunchCooperativeKernelMultiDevice(both, count, 0) for count in (1, 2)])
    """
    status, told, errors = container.python(script)
    assert (status, told) == (0, f"[0, {NOT_PERMITTED}]\n"), errors


@pytest.mark.parametrize("name", ["cuStreamBeginCapture_v2", "cuStreamBeginCapture_v2_ptsz"])
@pytest.mark.parametrize("then", ["", "ok(cuda.cuStreamDestroy_v2(spoilt))"])
def test_a_spoilt_capture_hinders_no_wait_even_if_its_stream_is_gone(containers, fake_driver, clock, name, then):
    """The driver may destroy a stream amid its capture, and then nobody may ask for its state."""
    containers[0].limit({fake_driver.uuids()[0]: "1000 1000"})
    script = f"""
        import time
        first, second, graph = context(), c_void_p(), c_void_p()
        last = new_stream()
        ok(cuda.cuCtxCreate_v2(byref(second), 0, 0))
        spoilt = new_stream()
        ok(cuda.{name}(spoilt, 2))
        assert cuda.cuCtxSynchronize() == CAPTURE_UNSUPPORTED
        {then}
        ok(cuda.cuCtxSetCurrent(first))
        ok(launch(kernel("spin_us_50000"), last))
        time.sleep(0.01)
        began = time.monotonic()
        ok(cuda.cuStreamBeginCapture_v2(last, 2))
        tell(round(1000 * (time.monotonic() - began)))
        ok(cuda.cuStreamEndCapture(last, byref(graph)))
    """
    command, environment = fake_driver.command(script, containers[0].libraries)
    waited = json.loads(clock.output(clock.start(command, environment, cwd=containers[0].home)))
    assert waited == pytest.approx(40, abs=2)


def test_a_child_waits_for_its_work(containers, fake_driver, clock):
    """What was known of its parent's captures does not hold in it."""
    containers[0].limit({fake_driver.uuids()[0]: "1000 1000"})
    script = """
        import os, time
        if child := os.fork():
            sys.exit(os.waitpid(child, 0)[1])
        context()
        last, graph = new_stream(), c_void_p()
        ok(launch(kernel("spin_us_50000"), last))
        time.sleep(0.01)
        began = time.monotonic()
        ok(cuda.cuStreamBeginCapture_v2(last, 2))
        tell(round(1000 * (time.monotonic() - began)))
        ok(cuda.cuStreamEndCapture(last, byref(graph)))
    """
    command, environment = fake_driver.command(script, containers[0].libraries)
    waited = json.loads(clock.output(clock.start(command, environment, cwd=containers[0].home)))
    assert waited == pytest.approx(40, abs=2)


# Contexts that end, in each of which `used` is current; and how.
ENDS = {
    "cuCtxDestroy(used)": "ok(cuda.cuCtxCreate_v2(byref(used), 0, 0))",
    "cuCtxDestroy_v2(used)": "ok(cuda.cuCtxCreate_v2(byref(used), 0, 0))",
    "cuCtxDetach(used)": "ok(cuda.cuCtxCreate_v2(byref(used), 0, 0))",
    **{f"cuDevicePrimaryCtx{how}(0)": "" for how in ("Release", "Release_v2", "Reset", "Reset_v2")},
    "cuGreenCtxDestroy(green)": """
        ok(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
        ok(cuda.cuCtxFromGreenCtx(byref(used), green))
        ok(cuda.cuCtxSetCurrent(used))
    """,
    # The last to keep the primary context, in which the work is.
    "cuGreenCtxDestroy(green) ": """
        ok(cuda.cuGreenCtxCreate(byref(green), None, 0, 1))
        ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
    """,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_context_ends_after_the_wait_for_its_work_that_goes_on(containers, fake_driver, clock, end):
    """A stream that the driver refuses to destroy amid its capture is captured on, and until then nothing waits."""
    uuid = fake_driver.uuids()[0]
    for container in containers[:2]:
        container.limit({uuid: 500})
    other = containers[1].start(0, "work", "kernel", "spin_us_1000", 1000)
    begin = """
        import time
        green, stream, graph = c_void_p(), c_void_p(), c_void_p()
        used = context()
    """
    work = f"""
        ok(cuda.cuStreamCreate(byref(stream), 1))
        ok(cuda.cuStreamBeginCapture_v2(stream, 2))
        assert cuda.cuStreamDestroy_v2(stream) == CAPTURE_UNSUPPORTED
        other = c_void_p()
        ok(cuda.cuStreamCreate(byref(other), 1))
        for ends in (False, True):
            ok(launch(kernel("spin_us_50000"), other))
            time.sleep(0.01 if ends else 0.1)
            if not ends:
                ok(cuda.cuStreamEndCapture(stream, byref(graph)))
                ok(cuda.cuStreamDestroy_v2(stream))
        began = time.monotonic()
        ok(cuda.{end.strip()})
        tell(1000 * (time.monotonic() - began))
    """
    script = "\n".join(textwrap.dedent(part) for part in (begin, ENDS[end], work))
    command, environment = fake_driver.command(script, containers[0].libraries)
    waited = json.loads(clock.output(clock.start(command, environment, cwd=containers[0].home)))
    assert waited == pytest.approx(40, abs=2)
    clock.output(other)
