"""The time of day of some processes, which can be set wrong while they run."""

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("wrong_clock.c")


class Clock:
    """A clock for processes that are started with `variables`; it goes right at first."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        library, self._file = directory / "wrong_clock.so", directory / "wrong_by_s"
        flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
        subprocess.run(["gcc", *flags, _SOURCE, "-o", library], check=True)
        self._file.write_bytes(bytes(8))
        self.is_wrong = False
        self.variables = {"LD_PRELOAD": str(library), "WRONG_CLOCK": str(self._file)}

    def set_wrong(self, by_s: int) -> None:
        """Let it go fast by so many seconds, or slow where they are below 0."""
        self.is_wrong = by_s != 0
        with self._file.open("r+b") as file:
            file.write(by_s.to_bytes(8, "little", signed=True))
