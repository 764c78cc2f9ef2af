"""The check of a real GPU, as far as the fake driver goes: what needs nothing but a driver."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def test_the_torch_free_check_finds_the_cap_kept_and_calibrates_the_context(fake_driver):
    fake_driver.init(1, 8 << 30, "--context", str(256 * MIB))
    command = [sys.executable, ROOT / "bench/fgpu_device.py", "--only", "driver,view", "--json"]
    done = subprocess.run(
        [*command, "--driver-dir", fake_driver.directory], capture_output=True, text=True, check=False, timeout=120
    )
    driver, view = map(json.loads, done.stdout.splitlines())
    assert (driver["check"], driver["result"], driver["cap_mib"]) == ("driver", "pass", 2048), done.stderr
    # What is charged for the context is more than the fake driver takes for it.
    assert (driver["allocated_mib"], driver["nvml_mib"], driver["context_mib"]) == (1728, 1984, 256)
    assert (view["check"], view["result"], view["v1"]) == ("view", "pass", 2048 * MIB)
    assert done.returncode == 0
