"""A container of several that share GPUs, with a program that launches."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.native.virtual_clock import VirtualClock

HERE = Path(__file__).parent
MIB = 1 << 20


@dataclass
class LaunchContainer:
    """A container. It shares the GPUs' leases with all other containers; all else is its own."""

    number: int
    program: Path
    libraries: Path
    home: Path
    clock: VirtualClock

    def limit(self, shares: dict[str, int | str], compute: str = "fair", more: str = "") -> None:
        gpus = "".join(f"gpu {uuid} {2048 * MIB} {share}\n" for uuid, share in shares.items())
        words = f"version 1\nkernel 6f1c0000-000{self.number}\ncompute {compute}\ncontext_bytes {256 * MIB}\n"
        (self.home / "limits").write_text(words + more + gpus)
        (self.home / "state/usage").unlink(missing_ok=True)
        for uuid in shares:
            (self.home / "state/lease" / uuid).touch()

    def start(self, *words: object) -> subprocess.Popen[str]:
        environment = {"LD_LIBRARY_PATH": str(self.libraries), "PATH": os.environ["PATH"]}
        return self.clock.start([self.program, *words], environment, cwd=self.home)

    def run(self, *words: object) -> str:
        return self.clock.output(self.start(*words))

    def python(self, script: str) -> tuple[int, str, str]:
        """Return the exit status and the output of a script, on the machine's own clock."""
        environment = {"LD_LIBRARY_PATH": str(self.libraries), "PYTHONPATH": str(HERE), "PATH": os.environ["PATH"]}
        # From Python 3.12 on, a fork beside other threads is warned of, and the library has one of its own.
        options = ["-S", "-W", "ignore:This process:DeprecationWarning"]
        command = [sys.executable, *options, "-c", "from cuda_client import *\n" + textwrap.dedent(script)]
        done = subprocess.run(command, env=environment, cwd=self.home, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr
