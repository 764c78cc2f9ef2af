"""Memory that processes open by a handle of another one: it is charged as long as any of them has it."""

import json
import os
import select
import signal

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, OUT_OF_MEMORY

# An exporter, whose child opens the memory and obeys each word that it reads: "close", "open", "other" or "end".
BEGIN = """
import os, signal
OTHERS = b""
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
def opened(handle, form):
    address = c_uint64()
    ok(cuda[form](byref(address), handle, 1))
    return address
def importer(handle, form):
    context()
    address = opened(handle, form)
    os.write(done[1], b"x")
    while order := os.read(orders[0], 5):
        if order == b"close":
            ok(cuda.cuIpcCloseMemHandle(address))
        elif order == b"reset":
            ok(cuda.cuDevicePrimaryCtxReset_v2(0))
        elif order == b"open ":
            assert opened(handle, form).value == address.value
        elif order == b"other":
            other = opened(Handle.from_buffer_copy(OTHERS), form)
            assert other.value == address.value
            ok(cuda.cuIpcCloseMemHandle(other))
        else:
            os._exit(0)
        os.write(done[1], b"x")
orders, done, given = os.pipe(), os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(60)
    handle = Handle()
    ctypes.memmove(byref(handle), os.read(given[0], 64), 64)
    importer(handle, FORM)
    os._exit(0)
def order(what):
    os.write(orders[1], what.encode().ljust(5))
    os.read(done[0], 1) if what != "end" else os.waitpid(child, 0)
def free():
    return (CAP - CONTEXT - CONTEXT - free_and_total()[0]) // MIB
context()
# What others might have had by a descriptor leaves nothing in the place that it had.
first = create(2 * MIB)
os.close(exported(first))
ok(cuda.cuMemRelease(first))
address, handle, again = allocate(1024 * MIB), Handle(), Handle()
before = free_and_total()[0]
ok(cuda.cuIpcGetMemHandle(byref(handle), address))
ok(cuda.cuIpcGetMemHandle(byref(again), address))
assert bytes(handle) == bytes(again) and free_and_total()[0] == before
os.write(given[1], bytes(handle))
os.read(done[0], 1)
held = [free()]
""".replace("CAP", str(CAP)).replace("CONTEXT", str(CONTEXT))

# Gives the memory to a network card, too.
RANGE = "ok(cuda.cuMemGetHandleForAddressRange(byref(c_int()), address, c_size_t(1024 * MIB), 1, c_uint64(0)))"


@pytest.mark.parametrize("form", ["cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"])
def test_memory_that_is_freed_while_another_process_has_it_open_stays_charged(attack, form):
    """One that frees what others have open, again and again, would have all of the GPU."""
    told, used = attack(
        BEGIN.replace("FORM", repr(form))
        + f"""
order("open")
ok(cuda.cuMemFree_v2(address))
held.append(free())
too_much = refused({CAP - 2 * CONTEXT - 1024 * MIB} + 2 * MIB)
for what in ("close", "close"):
    order(what)
    held.append(free())
tell([held, too_much, refused({CAP - 2 * CONTEXT})])
order("end")
"""
    )
    assert told == f"[[1024, 1024, 1024, 0], {OUT_OF_MEMORY}, 0]"
    assert used <= CAP


@pytest.mark.parametrize("end", ["cuMemFreeAsync(address, None)", "cuDevicePrimaryCtxReset_v2(0)"])
def test_memory_that_an_ended_process_had_open_is_free(attack, end):
    told, used = attack(
        BEGIN.replace("FORM", "'cuIpcOpenMemHandle_v2'")
        + f"""
ok(cuda.{end})
context()
held.append(free())
order("end")
held.append(free())
tell(held)
"""
    )
    assert (told, used) == (f"[1024, 1024, {-CONTEXT // MIB}]", CONTEXT)


def test_memory_that_was_open_in_a_context_that_ended_is_free_once_its_exporter_has_freed_it(attack):
    told, used = attack(
        BEGIN.replace("FORM", "'cuIpcOpenMemHandle_v2'")
        + """
order("open")
order("reset")
ok(cuda.cuMemFree_v2(address))
held.append(free())
order("end")
tell(held)
"""
    )
    assert (told, used) == (f"[1024, {-CONTEXT // MIB}]", CONTEXT)


def test_memory_that_nobody_has_open_ends_with_its_exporter(attack):
    told, used = attack(
        BEGIN.replace("FORM", "'cuIpcOpenMemHandle_v2'")
        + """
order("close")
held.append(free())
ok(cuda.cuMemFree_v2(address))
held.append(free())
address = allocate(512 * MIB)
held.append(free())
order("end")
tell(held)
"""
    )
    assert (told, used) == ("[1024, 1024, 0, 512]", CONTEXT + 512 * MIB)


def test_the_charge_of_closed_memory_ends_once(attack, fake_driver):
    """What another container lets open is not charged here. The driver may give it the address of what was closed."""
    neighbour = fake_driver.start("""
        context()
        handle = (c_uint64 * 8)()
        ok(cuda.cuIpcGetMemHandle(byref(handle), allocate(MIB)))
        tell(bytes(handle).hex())
        wait()
    """)
    handle = bytes.fromhex(json.loads(neighbour.stdout.readline()))
    told, _ = attack(
        BEGIN.replace("FORM", "'cuIpcOpenMemHandle_v2'").replace('OTHERS = b""', f"OTHERS = {handle!r}")
        + f"""
order("close")
ok(cuda.cuMemFree_v2(address))
order("other")
tell(refused({CAP - 2 * CONTEXT} + 2 * MIB))
order("end")
"""
    )
    neighbour.communicate()
    assert told == str(OUT_OF_MEMORY)


@pytest.mark.parametrize("before", ["", RANGE], ids=["", "after a network card"])
def test_memory_that_others_have_open_stays_charged_when_its_exporter_was_killed(fake_driver, container, before):
    script = BEGIN.replace("FORM", "'cuIpcOpenMemHandle_v2'").replace("before =", f"{before}\nbefore =")
    process = fake_driver.start(script + "tell(child)\nwait()", container.libraries)
    child = int(process.stdout.readline())
    ending = os.pidfd_open(child)
    process.kill()
    process.wait()
    assert container.client("info")["free"] == CAP - 2 * CONTEXT - 1024 * MIB
    signal.pidfd_send_signal(ending, signal.SIGKILL)
    assert select.select([ending], [], [], 60)[0], "its files are closed a little before it has ended"
    os.close(ending)
    process.communicate()
    assert container.client("info")["free"] == CAP - CONTEXT


def test_memory_that_cannot_be_watched_stays_charged_until_its_process_ends(attack, container):
    """There are 512 places for memory that several processes have."""
    small = 64 << 10
    told, _ = attack(f"""
        context()
        held = [allocate({small}) for _ in range(513)]
        for address in held:
            ok(cuda.cuIpcGetMemHandle(byref((c_uint64 * 8)()), address))
        for address in held:
            ok(cuda.cuMemFree_v2(address))
        tell(free_and_total()[0])
    """)
    assert told == str(CAP - CONTEXT - small)
    assert container.client("info")["free"] == CAP - CONTEXT
