"""The fake driver of a test: its libraries, its devices, and the processes that use them."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.native.virtual_clock import VirtualClock

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class FakeDriver:
    """The fake libcuda.so.1 and libnvidia-ml.so.1 in one directory, with the devices' state in a file of its own."""

    directory: Path
    state: Path
    visible: Path

    def init(self, gpus: int = 2, mem_bytes: int = 8 << 30, *options: str) -> None:
        """Makes the devices anew; `options` as `fakegpu init` takes them: --context, --free-delay-ms, --mig."""
        words = ["--gpus", str(gpus), "--mem", str(mem_bytes), *options]
        subprocess.run([self.directory / "fakegpu", "init", *words], check=True)
        self.visible.unlink(missing_ok=True)

    def status(self, clock: VirtualClock | None = None) -> dict:
        """Return the devices and their use by processes; with a virtual clock, all at one instant of it."""
        command = [self.directory / "fakegpu", "status"]
        if clock is not None:
            return json.loads(clock.output(clock.start(command)))
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def uuids(self) -> list[str]:
        return [device["uuid"] for device in self.status()["devices"]]

    def used_bytes(self, device: int = 0) -> int:
        return self.status()["devices"][device]["used_bytes"]

    def command(self, script: str, *libraries: Path) -> tuple[list[str], dict[str, str]]:
        """Returns what runs `script` after `from cuda_client import *`, and its environment. What `libraries` hold is
        found before the fake driver.
        """
        code = "from cuda_client import *\n" + textwrap.dedent(script)
        path = ":".join(map(str, [*libraries, self.directory]))
        environment = {"LD_LIBRARY_PATH": path, "PYTHONPATH": str(Path(__file__).parent), "PATH": os.environ["PATH"]}
        return [sys.executable, "-S", "-u", "-c", code], environment

    def start(self, script: str, *libraries: Path) -> subprocess.Popen[str]:
        command, environment = self.command(script, *libraries)
        return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, script: str, *libraries: Path) -> Any:
        """Returns what `script` gives to `tell()`, or nothing."""
        process = self.start(script, *libraries)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return json.loads(output) if output else None

    def run_on(self, clock: VirtualClock, script: str) -> Any:
        """Runs `script` by a virtual clock, and returns what it gives to `tell()`."""
        return json.loads(clock.output(clock.start(*self.command(script))))
