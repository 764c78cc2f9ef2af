"""One cap for all processes of a container, even if some are killed."""

import os
import signal
import subprocess

import pytest

from tests.native.gpu_container import CAP, CONTEXT, MIB, NOT_PERMITTED, OUT_OF_MEMORY, Container

GRANTED = '{"error": 0}\n'
REFUSED = f'{{"error": {OUT_OF_MEMORY}}}\n'


@pytest.fixture
def container(fake_driver, build_native):
    return Container(fake_driver, build_native).start()


@pytest.fixture(params=["", "address,undefined", "thread"], ids=["plain", "sanitized", "threads sanitized"])
def any_container(request, fake_driver, build_native):
    return Container(fake_driver, build_native, request.param).start()


def test_two_processes_share_one_cap(any_container):
    first = any_container.popen("hold", 1024 * MIB)
    assert first.stdout.readline() == GRANTED
    second = any_container.popen("hold", CAP - 1024 * MIB - 2 * CONTEXT + 1)
    assert second.stdout.readline() == REFUSED
    third = any_container.popen("hold", CAP - 1024 * MIB - 3 * CONTEXT)
    assert third.stdout.readline() == GRANTED
    for process in (first, second, third):
        process.communicate()


def test_processes_that_are_killed_at_random_never_exceed_the_cap_by_a_byte(fake_driver, any_container):
    """Eight processes that churn; the device's own figure is looked at some thousand times."""
    fake_driver.init(2, 8 << 30, "--context", str(32 * MIB))
    any_container.start(context_bytes=32 * MIB)
    seen = any_container.client("killing", 40 if any_container.sanitize else 250, 8)
    assert 0 < seen["most"] <= CAP
    assert any_container.client("fill", "linear", CAP - 32 * MIB)["count"] == 1


def test_a_killed_process_leaves_its_memory_even_while_nobody_has_waited_for_it(container):
    holder = container.popen("hold", CAP - 2 * CONTEXT)
    assert holder.stdout.readline() == GRANTED
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert container.client("fill", "linear", CAP - CONTEXT)["count"] == 1
    holder.communicate()


def test_a_program_that_replaces_itself_leaves_its_memory(container):
    seen = container.client("exec", CAP - CONTEXT)
    assert seen["full"] == CAP


def test_forked_children_are_charged_for_themselves(fake_driver, any_container):
    fake_driver.init(2, 8 << 30, "--context", str(64 * MIB))
    any_container.start(context_bytes=64 * MIB)
    seen = any_container.client("fork", 256 * MIB, 8, "libnvidia-ml.so.1")
    assert seen["granted"] == (CAP - 8 * 64 * MIB) // (256 * MIB)
    assert seen["used"] == seen["seen"] == CAP
    assert any_container.client("fill", "linear", CAP - 64 * MIB)["count"] == 1


def test_threads_leave_a_table_that_adds_up(any_container):
    assert any_container.client("threads", 4, 300) == {"used": CONTEXT, "free": CAP - CONTEXT, "total": CAP}


def test_many_short_processes_leave_nothing_behind(container):
    script = 'for i in $(seq 120); do timeout 10 "$@" >/dev/null & [ $((i % 20)) = 0 ] && wait; done; wait'
    words = [container.program("memory_client"), container.judge, "0", "info"]
    subprocess.run(["bash", "-c", script, "bash", *map(str, words)], env=container.environment, check=True, timeout=60)
    assert container.client("info")["free"] == CAP - CONTEXT


@pytest.mark.parametrize("content", [b"\1", b"not a table" * 40000, None], ids=["short", "long", "of the right size"])
def test_a_table_that_is_not_one_refuses(container, content):
    if content is None:
        container.client("info")
        content = b"\xff" * container.usage.stat().st_size
    container.usage.write_bytes(content)
    process = container.popen("info")
    _, errors = process.communicate(timeout=30)
    first, second = errors.splitlines()
    assert first.startswith(f"muster fgpu: the table of GPU memory in use, {container.usage}, cannot be used (it ")
    assert second.endswith(f"CUDA error {NOT_PERMITTED}")


def test_a_table_whose_maker_was_killed_is_made_again(container):
    container.client("info")
    container.usage.write_bytes(bytes(container.usage.stat().st_size))
    assert container.client("info")["free"] == CAP - CONTEXT


def test_every_user_of_the_container_may_use_the_table(container):
    container.client("info")
    assert container.usage.stat().st_mode & 0o777 == 0o666
