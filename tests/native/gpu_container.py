"""A container with a share of a GPU, as its programs find it: the proxies by the loader, the limits file, the table."""

import functools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
MIB = 1 << 20
CAP = 2048 * MIB
CONTEXT = 256 * MIB
OUT_OF_MEMORY = 2
NOT_PERMITTED = 800
NVML_NO_PERMISSION = 4


@functools.cache
def compiled(name: str, driver: Path, *options: str) -> Path:
    """Return a C program of this directory, linked with the driver as users' programs are."""
    source, output = HERE / f"{name}.c", Path(tempfile.mkdtemp(dir=driver)) / name
    flags = ["-std=gnu11", "-O0", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{NATIVE}"]
    libraries = ["-ldl"] if name in {"lookup_client", "next_wrapper"} else [f"-L{driver}", "-l:libcuda.so.1", "-ldl"]
    subprocess.run(["gcc", *flags, *options, source, "-o", output, *libraries], check=True)
    return output


@dataclass(frozen=True)
class Container:
    driver: Any
    build: Callable[..., Path]
    sanitize: str = ""

    @property
    def directory(self) -> Path:
        return self.driver.directory / "container"

    @property
    def limits(self) -> Path:
        return self.directory / "limits"

    @property
    def usage(self) -> Path:
        return self.directory / "state/usage"

    @property
    def libraries(self) -> Path:
        return self.build(self.limits, self.usage.parent, sanitize=self.sanitize) / "lib"

    @property
    def judge(self) -> Path:
        """Return the driver's own NVML, which no proxy stands before."""
        return self.driver.directory / "libnvidia-ml.so.1"

    def start(self, mem_bytes: int = CAP, context_bytes: int = CONTEXT, gpu: int = 0) -> "Container":
        """Return a new container: with limits of the one GPU, and nothing in use."""
        self.usage.parent.mkdir(parents=True, exist_ok=True)
        self.usage.unlink(missing_ok=True)
        self.write_limits(
            f"version 1\nkernel 6f1c0000-0000-4000-8000-000000000001\ncompute none\ncontext_bytes {context_bytes}\n"
            f"gpu {self.driver.uuids()[gpu]} {mem_bytes} 250\n"
        )
        return self

    def write_limits(self, text: str) -> None:
        self.limits.write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        # The fake driver is not sanitized, and holds its memory to the end.
        return {
            "LD_LIBRARY_PATH": str(self.libraries),
            "PATH": os.environ["PATH"],
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "halt_on_error=1",
            "TSAN_OPTIONS": "halt_on_error=1",
        }

    def program(self, name: str, *options: str) -> Path:
        sanitize = [f"-fsanitize={self.sanitize}"] if self.sanitize else []
        return compiled(name, self.driver.directory, *sanitize, *options)

    def popen(self, *arguments: object, gpu: int = 0) -> subprocess.Popen[str]:
        """Start memory_client.c with the judge and the device as arguments."""
        words = [str(word) for word in (self.program("memory_client"), self.judge, gpu, *arguments)]
        return subprocess.Popen(
            words,
            env=self.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def client(self, *arguments: object, gpu: int = 0) -> dict[str, Any]:
        process = self.popen(*arguments, gpu=gpu)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        answer: dict[str, Any] = json.loads(output)
        return answer
