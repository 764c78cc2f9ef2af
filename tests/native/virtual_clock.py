"""Time for programs that are tested together, which does not depend on how busy the machine is: fake_driver/clock.h."""

import ctypes
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

NEVER = 2**64 - 1
STUCK_S = 60
MS = 1_000_000
SECOND = 1000 * MS


def _load(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library), use_errno=True)
    pointer, number, ns = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "clock_map": (pointer, [ctypes.c_char_p]),
        "clock_seed": (None, [pointer, ns]),
        "clock_now": (ns, [pointer]),
        "clock_add": (pointer, [pointer, number]),
        "clock_rest": (ctypes.c_bool, [pointer, pointer, ns, ns, pointer, number]),
        "clock_ticket": (number, [pointer]),
        "clock_turn": (ctypes.c_bool, [pointer, number, ctypes.c_int]),
        "clock_leave": (None, [pointer, pointer]),
        "clock_remove": (None, [pointer, number]),
        "clock_freeze": (None, [pointer, number, ns]),
        "clock_find": (number, [pointer, ctypes.c_int32]),
        "clock_process_end": (ns, [number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class VirtualClock:
    """A clock that stands still while the test, or a program that it started, computes. Instants are in nanoseconds."""

    def __init__(self, library: Path, path: Path, seed: int = 0) -> None:
        self.environment = {"LD_PRELOAD": str(library), "FAKE_CLOCK": str(path)}
        self._library = _load(library)
        self._clock = self._library.clock_map(str(path).encode())
        self._library.clock_seed(self._clock, seed)
        self._thread = self._library.clock_add(self._clock, 0)
        self._processes: list[subprocess.Popen[str]] = []
        self._ticket = self._library.clock_ticket(self._thread)
        self._library.clock_turn(self._thread, self._ticket, -1)

    @property
    def now(self) -> int:
        now: int = self._library.clock_now(self._clock)
        return now

    def start(
        self,
        command: Sequence[object],
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Starts a program on this clock. It runs up to its first wait, and from there on as time goes by.

        The clock does not see a wait for standard input: what it is to read must be there.
        """
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**(environment or {}), **self.environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        self._processes.append(process)
        while not self._number(process) and process.poll() is None:
            time.sleep(0.001)
        return process

    def run_until(self, instant: int) -> None:
        """Lets the programs run until this instant."""
        self._rest(0, instant)

    def run_for(self, duration: int) -> None:
        self.run_until(self.now + duration)

    def output(self, process: subprocess.Popen[str]) -> str:
        """Lets the programs run until this one ends, and returns what it wrote. Fails if it reports an error."""
        number = self._number(process)
        if number:
            self._rest(self._library.clock_process_end(number), NEVER)
        output, errors = process.communicate(timeout=STUCK_S)
        assert process.returncode == 0, errors
        return output

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Ends a program as SIGKILL does, wherever it is."""
        number = self._number(process)
        process.kill()
        process.communicate()
        if number:
            self._library.clock_remove(self._clock, number)

    def freeze(self, process: subprocess.Popen[str], duration: int) -> None:
        """Keeps a program from running for some time, as SIGSTOP and SIGCONT do."""
        self._library.clock_freeze(self._clock, self._number(process), self.now + duration)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)
        self._library.clock_leave(self._clock, self._thread)

    def _number(self, process: subprocess.Popen[str]) -> int:
        number: int = self._library.clock_find(self._clock, process.pid)
        return number

    def _rest(self, key: int, deadline: int) -> None:
        self._library.clock_rest(self._clock, self._thread, key, deadline, None, 0)
        for _ in range(STUCK_S):
            if self._library.clock_turn(self._thread, self._ticket, 1000):
                return
            for process in self._processes:
                if process.poll() is not None and self._number(process):
                    raise AssertionError(f"a program ended amid its work: {process.communicate()}")
        raise AssertionError(
            "time stands still: a program computes without end, or waits for what the clock cannot see"
        )
