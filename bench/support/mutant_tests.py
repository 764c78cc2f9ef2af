"""The native tests, for many changes of native/*.c: collected once, and each change tried in a fork of that process.

A first run of all tests finds what each test reaches of native/*.c, and how long it takes. A mutant is tried with those
tests alone that reach its line, the quickest and those that have caught its neighbours first, until one fails.
"""

import io
import itertools
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
# A test that takes this much longer with a mutant than without has caught it.
PATIENCE, LEAST_PATIENCE_S = 15, 30.0
# These run nothing of the libraries.
OF_THE_FAKE = {"test_driver_limits.py", "test_fake_driver.py", "test_fake_nvml.py", "test_mig_geometry.py"}
# The lease's steps are loaded into the tests' own process.
LOADED = {"lease_table.c", "lease_turn.c"}

# Notes in a file, which outlives a killed process, that a place was reached. It includes nothing, since some sources
# choose their C library's extensions later.
COVER = """
int open(const char *, int, ...);
int close(int);
void *mmap(void *, unsigned long, int, int, int, long);
static char cover_nowhere[4096], *cover_map;
__attribute__((no_sanitize("address", "thread", "undefined"))) static inline void cover(int at)
{
    if (cover_map == (void *)0) {
        int file = open(COVER_FILE, 2);
        char *mapped = file >= 0 ? mmap((void *)0, 4096, 3, 1, file, 0) : cover_nowhere;
        cover_map = mapped == (char *)-1 ? cover_nowhere : mapped;
        close(file);
    }
    cover_map[at] = 1;
}
"""
BLOCK = re.compile(r"^\s+(?:\} )?(?:if|else|for|while|do|switch)\b.*\{$|:$")
NO_STATEMENT = re.compile(r"(?:case|default|else)\b|while .*;$")
STATEMENT = re.compile(r"^(\s+)([^\s{}#/*].*)$")
CONDITION = re.compile(r"^(\s+(?:\} )?(?:else )?if \()")


@dataclass(frozen=True)
class Mutant:
    """One change of one line of a file, or of a text that is there once."""

    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"native/{self.file}:{self.line}\n    - {self.before.strip()}\n    + {self.after.strip()}"

    def change(self, text: str) -> str:
        if "\n" in self.before:
            return text.replace(self.before, self.after, 1)
        lines = text.split("\n")
        lines[self.line - 1] = self.after
        return "\n".join(lines)


def places(text: str) -> list[int]:
    """Return for each line the last line before which control passes on the way to it, by itself; 0: none is known."""
    found, place, inside, ends = [], 0, False, False
    for number, line in enumerate(text.split("\n"), 1):
        code = re.sub(r"\s*/\*.*\*/\s*$", "", line)
        if line == "}" or code.endswith("\\"):
            inside, place = False, 0
        elif line == "{":
            inside, ends, place = True, True, number
        elif inside:
            statement = STATEMENT.match(code)
            if CONDITION.match(code):
                place = number
            elif ends and code.strip():
                place = number if statement and not NO_STATEMENT.match(statement[2]) else 0
            if code.strip():
                ends = code.endswith((";", "}")) or bool(BLOCK.search(code))
        found.append(place)
    return found


def covered(text: str) -> str:
    """Return the source with a note at each of its places."""
    lines = text.split("\n")
    for at in {place for place in places(text) if place}:
        line = lines[at - 1]
        if line == "{":
            lines[at - 1] = f"{{ cover({at});"
        elif CONDITION.match(line):
            lines[at - 1] = CONDITION.sub(rf"\1cover({at}), ", line)
        else:
            lines[at - 1] = re.sub(r"^(\s+)", rf"\1cover({at}); ", line)
    return "\n".join(lines)


@dataclass(frozen=True)
class Scratch:
    """A copy of the repository, in which mutants are built and tested."""

    directory: Path

    @property
    def native(self) -> Path:
        return self.directory / "native"

    @property
    def cover(self) -> Path:
        return self.directory / "cover"

    @property
    def temporary(self) -> Path:
        """Return the place of the files of a mutant's tests."""
        return self.directory / "temporary"

    def prepare(self) -> None:
        for name in ("native", "tests/native", "tests/fake_driver"):
            shutil.copytree(REPOSITORY / name, self.directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        # What these tests have of others, without the setting up of all tests.
        there = {"native", "tests", "fake_driver", "conftest.py", "__pycache__"}
        for folder in ("", "tests"):
            for path in (REPOSITORY / folder).iterdir():
                if path.name not in there and not path.name.startswith("."):
                    (self.directory / folder / path.name).symlink_to(path)
        (self.directory / "tests/pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
        # A mutant may leave something unused; that is no reason not to try it.
        for path in (self.directory / "tests/native").rglob("*.py"):
            path.write_text(path.read_text().replace('"-Werror", ', "").replace("-Werror", ""))
        # Each source notes where a program comes along.
        self.cover.mkdir()
        for path in self.native.glob("*.c"):
            note = self.cover / path.name
            note.write_bytes(bytes(4096))
            note.chmod(0o666)
            path.write_text(f'#define COVER_FILE "{note}"\n{COVER}#line 1\n{covered(path.read_text())}')

    def reached(self) -> set[tuple[str, int]]:
        """Return the places that were reached since the last call."""
        found = set()
        for note in self.cover.iterdir():
            noted = note.read_bytes()
            if any(noted):
                found |= {(note.name, at) for at, byte in enumerate(noted) if byte}
                with note.open("r+b") as file:
                    file.write(bytes(4096))
        return found

    def restore(self) -> None:
        for path in (REPOSITORY / "native").glob("*.c"):
            shutil.copy(path, self.native / path.name)

    def compiles(self, mutant: Mutant) -> bool:
        flags = ["-std=gnu11", "-fsyntax-only", "-w", f"-I{self.native}", "-include", str(self.native / "old_glibc.h")]
        flags += [f'-D{name}="/{name}"' for name in ("DRIVER_DIR", "FGPU_LIMITS", "FGPU_STATE")]
        done = subprocess.run(["gcc", *flags, self.native / mutant.file], capture_output=True, check=False)
        return done.returncode == 0


@dataclass
class Test:
    item: pytest.Item
    seconds: float
    reached: set[tuple[str, int]]
    caught: Counter[str] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        return f"{self.item.path.name}::{self.item.name}"


class Trial:
    """A pytest plugin that runs all tests once, and then those that concern a mutant, for each of them."""

    def __init__(
        self, scratch: Scratch, mutants: list[Mutant], within_s: float, report: Callable[[Mutant, str], None]
    ) -> None:
        self.scratch, self.mutants, self.within_s, self.report = scratch, mutants, within_s, report
        self.failed: list[str] = []
        self.forked = False
        self.loaded: list[pytest.FixtureDef[Any]] = []
        self.commands: dict[Path, list[str]] = {}
        self.made: set[Path] = set()

    # --- what pytest calls ---

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid}\n{report.longrepr}")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        made = yield
        if fixturedef.argname == "build_native":
            fixturedef.cached_result = (self.build_again(made), *fixturedef.cached_result[1:])
        if fixturedef.argname == "lease_steps":
            self.loaded = [fixturedef]
        return made

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            sys.exit("mutants: the tests cannot be collected")
        items = [item for item in session.items if item.path.name not in OF_THE_FAKE]
        tests = list(self.run_unchanged(items))
        self.scratch.restore()
        for mutant in self.mutants:
            self.report(mutant, self.verdict(mutant, tests))
        return True

    # --- the tests without a mutation ---

    def run_unchanged(self, items: list[pytest.Item]) -> Iterator[Test]:
        """Run all tests where the sources note what is reached. Keeps what tests have in common all along."""
        for item, following in itertools.pairwise([*items, items[0]]):
            began = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                sys.exit(f"mutants: a test fails without a mutation: {self.failed[0]}")
            yield Test(item, time.monotonic() - began, self.scratch.reached())

    # --- one mutant ---

    def verdict(self, mutant: Mutant, tests: list[Test]) -> str:
        """Return `caught by TEST`, `survived`, `reached by no test` or `does not compile`."""
        path = self.scratch.native / mutant.file
        original = path.read_text()
        place = places(original)[mutant.line - 1]
        concerned = [test for test in tests if not place or (mutant.file, place) in test.reached]
        concerned.sort(key=lambda test: test.seconds / (1 + 4 * test.caught[mutant.file]))
        sums = itertools.accumulate(test.seconds for test in concerned)
        concerned = [test for test, seconds in zip(concerned, sums, strict=True) if seconds <= self.within_s]
        path.write_text(mutant.change(original))
        try:
            if not self.scratch.compiles(mutant):
                return "does not compile"
            return self.try_in_a_fork(mutant, concerned) if concerned else "reached by no test"
        finally:
            path.write_text(original)

    def try_in_a_fork(self, mutant: Mutant, tests: list[Test]) -> str:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                os.close(reading)
                self.run_in_child(mutant, tests, writing)
            except BaseException:  # noqa: BLE001 - what comes after this function is the parent's
                os.write(writing, f"mutants: {traceback.format_exc()!r}\n".encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as answers:
            test, end = self.end_of(answers, tests)
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        shutil.rmtree(self.scratch.temporary)
        if end == "survived":
            return end
        test.caught[mutant.file] += 1
        return f"caught by {test.name}{end}"

    @staticmethod
    def end_of(answers: io.RawIOBase, tests: list[Test]) -> tuple[Test, str]:
        """Return the last test that a child has begun, and how it ended."""
        test = tests[0]
        while True:
            if not select.select([answers], [], [], LEAST_PATIENCE_S + PATIENCE * test.seconds)[0]:
                return test, ", which did not end"
            line = answers.readline().decode().strip()
            if line == "survived":
                return test, line
            if line == "failed":
                return test, ""
            if not line:
                return test, ", which crashed"
            if not line.isdigit():
                sys.exit(line)
            test = tests[int(line)]

    def run_in_child(self, mutant: Mutant, tests: list[Test], writing: int) -> None:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        self.forked = True
        self.made.clear()
        self.scratch.temporary.mkdir()
        tests[0].item.config._tmp_path_factory._basetemp = self.scratch.temporary  # type: ignore[attr-defined] # noqa: SLF001
        for fixture in self.loaded if mutant.file in LOADED else ():
            fixture.cached_result = None
        for at, (test, following) in enumerate(itertools.pairwise([*tests, tests[-1]])):
            os.write(writing, f"{at}\n".encode())
            test.item.config.hook.pytest_runtest_protocol(item=test.item, nextitem=following.item)
            if self.failed:
                os.write(writing, b"failed\n")
                return
        os.write(writing, b"survived\n")

    def build_again(self, build: Callable[..., Path]) -> Callable[..., Path]:
        """Return a function that builds as `build` does. In a child that is up to date with the mutant."""

        def built(*arguments: object, **options: object) -> Path:
            commands: list[list[str]] = []
            run = subprocess.run

            def recorded(words: list[str], *, check: bool) -> None:
                commands.append(words)
                run(words, check=check)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(subprocess, "run", recorded)
                directory = build(*arguments, **options)
            if commands:
                self.commands[directory] = commands[0]
            elif self.forked and directory not in self.made:
                run(self.commands[directory], check=True)
            self.made.add(directory)
            return directory

        return built
