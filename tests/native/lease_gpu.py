"""A pretended GPU, on which lease_user.c launches through a compute lease."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"
SOURCES = [
    Path(__file__).with_name("lease_user.c"),
    *(NATIVE / f"{name}.c" for name in ("clock", "lease", "lease_file", "lease_table", "lease_turn", "process")),
]


def compile_user(directory: Path, *options: str) -> Path:
    program = directory / "lease_user"
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{NATIVE}", *options]
    subprocess.run(["gcc", *flags, "-include", NATIVE / "old_glibc.h", *SOURCES, "-o", program], check=True)
    return program


@dataclass
class Gpu:
    program: Path
    directory: Path

    def __post_init__(self):
        self.directory.mkdir(exist_ok=True)
        (self.directory / "lease").touch()

    def command(
        self, kernel: str, share: int, *options: str, mode: str = "fair", device: Path | None = None
    ) -> list[str]:
        device = device or self.directory / "device"
        return [str(self.program), str(device), str(self.directory / "lease"), kernel, str(share), mode, *options]


def results(output: str) -> list[tuple[int, int]]:
    """Return for each process that wrote a line its GPU nanoseconds and its launches."""
    lines = (line.split() for line in output.splitlines())
    return [(int(busy), int(launches)) for busy, launches in lines]


def result(output: str) -> tuple[int, int]:
    (only,) = results(output)
    return only


# The users of one GPU: the share of each in thousandths, and how it launches.
CASES = {
    "equal kernels": [(300, "kernel=1000000"), (700, "kernel=1000000")],
    "long for the smaller share": [(300, "kernel=5000000"), (700, "kernel=20000")],
    "long for the larger share": [(300, "kernel=20000"), (700, "kernel=5000000")],
    "three, mixed": [(250, "kernel=200000,1000000"), (250, "kernel=3000000"), (500, "kernel=50000,2000000")],
    "a wait for each kernel": [(300, "kernel=2000000 every=1"), (700, "kernel=2000000 every=1")],
    "threads": [(300, "kernel=100000 threads=4"), (700, "kernel=1000000 threads=2")],
}
