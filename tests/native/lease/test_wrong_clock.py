"""The clock that `./dev chaos` sets wrong: for those that have it, while it is set, and time passes as it does."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.lab.chaos.clock import Clock

_LOOK = """
import json, subprocess, sys, time
for line in sys.stdin:
    child = subprocess.run(["date", "+%s"], capture_output=True, check=True).stdout
    before = time.monotonic()
    time.sleep(0.01)
    print(json.dumps([time.time(), int(child), time.monotonic() - before]), flush=True)
"""


def test_a_process_and_its_children_have_the_wrong_time_of_day_while_it_is_set(tmp_path):
    clock = Clock(tmp_path / "clock")
    environment = {**os.environ, **clock.variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, "-c", _LOOK], **pipes) as process:
        for by_s in (0, 3600, -90, 0):
            clock.set_wrong(by_s)
            before = time.time()
            process.stdin.write("\n")
            process.stdin.flush()
            own, of_child, slept = json.loads(process.stdout.readline())
            after = time.time()
            assert before + by_s <= own <= after + by_s
            assert int(before) + by_s <= of_child <= after + by_s
            assert 0.01 <= slept <= after - before
            assert clock.is_wrong == (by_s != 0)
        process.stdin.close()
    assert process.returncode == 0


def test_a_process_without_it_has_the_right_time(tmp_path):
    Clock(tmp_path / "clock").set_wrong(3600)
    seen = subprocess.run(["date", "+%s"], capture_output=True, check=True).stdout
    assert int(seen) == pytest.approx(time.time(), abs=60)
