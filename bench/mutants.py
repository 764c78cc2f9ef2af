"""Change the fGPU libraries in small ways, and count how many of these mutants the native tests catch.

    .venv/bin/python -m bench.mutants [--count 60] [--seed 1] [--only cuda_vmm.c] [--named | --drawn] [--list]

A mutant negates one condition, drops one call, or swaps an operator or a constant of native/*.c. Besides those that the
seed draws from all files there are NAMED ones, which once survived. Each is built in a scratch directory, and the tests
that concern its file run there until one fails, then all other tests of the libraries. A mutant that no test notices
has survived, and is printed as it is found. The score is the part that was caught; mutants that do not compile are left
out of it. EQUIVALENT ones, which no test could notice, are neither made nor counted. The exit status is 1 below
--target.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LIMIT_S = 240

MEMORY = ("test_memory.py", "test_ways_around.py", "test_kept_memory.py", "test_usage.py")
LEASES = (
    "test_lease_table.py",
    "test_lease_turn.py",
    "test_lease_best_effort.py",
    "test_lease.py",
    "test_lease_classes.py",
)
LAUNCHES = ("test_launch.py", *LEASES)
TESTS = {
    "allocations.c": MEMORY,
    "canary.c": ("test_canary.py",),
    "charge.c": MEMORY,
    "cuda_array.c": MEMORY,
    "cuda_bindings.c": ("test_kept_memory.py",),
    "cuda_capture.c": ("test_launch.py",),
    "cuda_context.c": MEMORY,
    "cuda_device.c": ("test_memory.py", "test_ways_around.py", "test_launch.py"),
    "cuda_graph_memory.c": ("test_memory.py", "test_launch.py"),
    "cuda_launch.c": ("test_launch.py",),
    "cuda_lookup.c": ("test_lookup.py", "test_launch.py"),
    "cuda_memory.c": MEMORY,
    "cuda_pool.c": MEMORY,
    "cuda_vmm.c": ("test_kept_memory.py", "test_memory.py", "test_ways_around.py"),
    "hooks.c": ("test_lookup.py",),
    "lease.c": LAUNCHES,
    "lease_file.c": ("test_lease.py",),
    "lease_table.c": LEASES,
    "lease_turn.c": LEASES,
    "limits.c": ("test_memory.py", "test_canary.py", "test_nvml.py"),
    "nvml_processes.c": ("test_nvml.py",),
    "nvml_proxy.c": ("test_nvml.py",),
    "pools.c": MEMORY,
    "process.c": ("test_usage.py", "test_lease.py"),
    "real.c": ("test_lookup.py",),
    "shares.c": ("test_kept_memory.py",),
    "usage.c": ("test_usage.py", "test_memory.py", "test_nvml.py"),
}
# These run nothing of the libraries.
OF_THE_FAKE = {"test_driver_limits.py", "test_fake_driver.py", "test_fake_nvml.py", "test_mig_geometry.py"}


@dataclass(frozen=True)
class Mutant:
    """One change of one line of a file, or of a text that is there once."""

    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"native/{self.file}:{self.line}\n    - {self.before.strip()}\n    + {self.after.strip()}"


# --- what once survived: (what it does, file, text, the text in its place) ---

NAMED = [
    (
        "a failed call keeps its charge",
        "charge.c",
        "    if (result != CUDA_SUCCESS && charge->gpu >= 0)\n        usage_release(charge->gpu, charge->bytes);\n",
        "",
    ),
    (
        "a dead slot before a live one is never reaped",
        "usage.c",
        "        slot->owner.pid = 0;\n    }\n    table->slots_used = used;",
        "        slot->owner.pid *= i + 1 != table->slots_used;\n    }\n    table->slots_used = used;",
    ),
    (
        "no recount after a lock's owner died",
        "usage.c",
        "        count_again(table);\n        wrong =",
        "        wrong =",
    ),
    (
        "a lease is not returned on exit",
        "lease.c",
        "        atexit(close_all); /* registered later than the driver's own handler, hence run before it */\n",
        "        (void)close_all;\n",
    ),
    (
        "a start time is ignored",
        "process.c",
        "    if (process->started != 0 && process->started != line.started)\n        return false;\n",
        "",
    ),
    (
        "memory of a child graph is not counted",
        "cuda_graph_memory.c",
        "REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS && add_graph(child, memory)",
        "REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS && false",
    ),
    (
        "a pool grows past the cap",
        "cuda_pool.c",
        "    return pool->charged <= before || (usage_total(pool->gpu, &total) == USAGE_GRANTED && total <= cap);",
        "    (void)before;\n    (void)total;\n    (void)cap;\n    return true;",
    ),
    (
        "a forked child is in its parent's slot",
        "usage.c",
        "static void forget(void)\n{\n    mine = NULL;\n",
        "static void forget(void)\n{\n",
    ),
    (
        "late work is not charged",
        "lease_turn.c",
        "    lease_table_charge(lease->table, lease->account, elapsed(lease->late_since, now));\n",
        "",
    ),
]

# --- what the seed draws from ---

SWAPS = [
    (r" == ", " != "),
    (r" != ", " == "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" <= ", " < "),
    (r" >= ", " > "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" \+= ", " -= "),
    (r" -= ", " += "),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\+\+;", "--;"),
    (r"--;", "++;"),
    (r"\breturn 0;", "return 1;"),
]
CONDITION = re.compile(r"^(\s*(?:\} else )?(?:if|while) )\((.*)\)( \{)?$")
CALL = re.compile(r"^(\s+)([a-z_]\w*(?:\(\w+\))?\(.*\);)$")
# Lines whose change no program can notice: messages, and what the Linux kernel closes at the end. A lock that is not
# taken is a race, for which the sanitizers' tests look.
SKIPPED = re.compile(
    r"^\s*(?://|/\*|\*|#|static_assert|fprintf|free\(|close\(|munmap|nanosleep|"
    r"pthread_(?:detach|sigmask|mutex_lock|setcancelstate)|sigfillset|(?:vmm|pools)_lock)|\\$"
)
LIMITS_READ = (
    "while (length < room && ((got = read(file, text + length, room + length)) > 0 || (got < 0 && errno == EINTR)))"
)
# By file and changed line: why no test could notice the change.
EQUIVALENT = {
    ("allocations.c", "if (allocations->count * 4 <= allocations->room * 3)"): "the table grows one entry later",
    (
        "cuda_pool.c",
        "uint64_t bytes = charge_size(request->bytes), block = (bytes + POOL_BLOCK + 1) / POOL_BLOCK * POOL_BLOCK;",
    ): "what the pool does not take of a reservation is released",
    ("cuda_pool.c", "if (block > bytes && usage_reserve(gpu, block) == USAGE_GRANTED)"): "both reserve the same",
    ("lease_table.c", "table->changes--;"): "the number is only compared with an earlier one",
    (
        "lease_turn.c",
        "if (lease->batch_credits != 0 && credits >= 2 * lease->batch_credits)",
    ): "it sets what is there already",
    ("lease_turn.c", "return idle_at <= next ? idle_at : next;"): "both are the same",
    ("lease_turn.c", "lease->credits_given += credits - (left >= 0 ? left : 0);"): "it subtracts 0",
    ("limits.c", LIMITS_READ): "a file is read at once",
    ("lease_turn.c", "return late && now - WATCH < next ? now + WATCH : next;"): "it looks at the table once more",
    ("pools.c", "if (bytes <= pool->charged)"): "nothing is released if both are the same",
    ("usage.c", "for (uint32_t i = 0; i <= table->slots_used; i++) {"): "the slot after the last one is free",
}


def code_of(line: str) -> str:
    """Return the line without its comment."""
    return re.sub(r"\s*/\*.*", "", line)


def changes(line: str) -> Iterator[str]:
    code = code_of(line)
    if SKIPPED.search(code) or not code.strip():
        return
    condition = CONDITION.match(code)
    if condition:
        before, inside, after = condition.groups(default="")
        yield f"{before}(!({inside})){after}"
    call = CALL.match(code)
    if call and not call[2].startswith("return"):
        yield f"{call[1]}(void)0;"
    if '"' in code:
        return
    for pattern, instead in SWAPS:
        for found in re.finditer(pattern, code):
            yield code[: found.start()] + instead + code[found.end() :]


def mutants_of(path: Path) -> list[Mutant]:
    made, in_comment = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        in_comment = in_comment or line.lstrip().startswith("/*")
        if not in_comment:
            made += [Mutant(path.name, number, line, changed) for changed in changes(line)]
        in_comment = in_comment and "*/" not in line
    return [mutant for mutant in made if (mutant.file, mutant.after.strip()) not in EQUIVALENT]


def named_mutants(native: Path) -> list[Mutant]:
    made = []
    for what, file, before, after in NAMED:
        text = (native / file).read_text()
        if text.count(before) != 1:
            sys.exit(f"mutants: {what}: native/{file} has changed; mend NAMED")
        made.append(Mutant(file, text[: text.index(before)].count("\n") + 1, before, after))
    return made


def drawn_mutants(native: Path, count: int, seed: int, only: str | None) -> list[Mutant]:
    """Return mutants of all files, as many of each as there is code in it."""
    unknown = {path.name for path in native.glob("*.c")} ^ set(TESTS)
    if unknown:
        sys.exit(f"mutants: native/{min(unknown)}: TESTS and the folder differ; say which tests concern it")
    files = [only] if only else sorted(TESTS)
    everything = [mutant for file in files for mutant in mutants_of(native / file)]
    return random.Random(seed).sample(everything, min(count, len(everything)))


# --- a scratch copy, in which mutants are built and tested ---

# Remembers what gcc made of the same input, so that a mutant costs the compilation of one file.
COMPILER = """#!{python}
import hashlib, os, shutil, subprocess, sys
words = sys.argv[1:]
def real(*more):
    return subprocess.run(["{gcc}", *more])
out = words[words.index("-o") + 1] if "-o" in words else None
if out is None:
    sys.exit(real(*words).returncode)
rest = [word for at, word in enumerate(words) if word != "-o" and (not at or words[at - 1] != "-o")]
key = hashlib.sha256("\\0".join(rest).encode())
sources = [word for word in rest if word.endswith(".c")]
if sources:
    flags = [word for word in rest if word.startswith(("-D", "-I", "-std", "-O", "-f"))]
    include = [word for at, word in enumerate(rest) if word == "-include" or (at and rest[at - 1] == "-include")]
    key.update(subprocess.run(["{gcc}", "-E", *flags, *include, *sources], capture_output=True).stdout)
for word in rest:
    if not word.endswith(".c") and not word.startswith("-") and os.path.isfile(word) and word != "/dev/null":
        key.update(open(word, "rb").read())
kept = os.path.join("{cache}", key.hexdigest())
if not os.path.exists(kept):
    status = real(*words).returncode
    if status:
        sys.exit(status)
    shutil.copy2(out, kept + str(os.getpid()))
    os.replace(kept + str(os.getpid()), kept)
else:
    shutil.copy2(kept, out)
"""


@dataclass(frozen=True)
class Scratch:
    directory: Path

    @property
    def native(self) -> Path:
        return self.directory / "native"

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
        for path in (self.native / "Makefile", *(self.directory / "tests/native").glob("*.py")):
            path.write_text(path.read_text().replace('"-Werror", ', "").replace(" -Werror", ""))
        tools, cache = self.directory / "tools", self.directory / "cache"
        for made in (tools, cache):
            made.mkdir()
        compiler = tools / "gcc"
        compiler.write_text(COMPILER.format(python=sys.executable, gcc=shutil.which("gcc"), cache=cache))
        compiler.chmod(0o755)

    def run(self, test: str) -> subprocess.CompletedProcess[str] | None:
        """Run one file of tests up to the first that fails; None: it did not end in time."""
        path = f"{self.directory / 'tools'}:{os.environ['PATH']}"
        words = ["-q", "-x", "-k", "not sanitized and not race", f"--basetemp={self.directory / 'tmp'}"]
        command = [sys.executable, "-m", "pytest", "-c", "tests/pytest.ini", "--rootdir=.", *words]
        process = subprocess.Popen(
            [*command, f"tests/native/{test}"],
            cwd=self.directory,
            env={**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None
        return subprocess.CompletedProcess(command, process.returncode, output)

    def verdict(self, mutant: Mutant) -> str:
        """Return `caught by TEST`, `survived` or `does not compile`."""
        path = self.native / mutant.file
        original = path.read_text()
        if "\n" in mutant.before or mutant.before not in original.splitlines():
            changed = original.replace(mutant.before, mutant.after, 1)
        else:
            lines = original.split("\n")
            lines[mutant.line - 1] = mutant.after
            changed = "\n".join(lines)
        concerned = TESTS[mutant.file]
        for test in (*concerned, *self.others(concerned)):
            path.write_text(changed)
            done = self.run(test)
            path.write_text(original)
            if done is not None and done.returncode == 0:
                continue
            if done is not None and done.returncode > 1:
                sys.exit(f"mutants: pytest ended with {done.returncode}\n{done.stdout}")
            if done is not None and re.search(r"CalledProcessError: Command.*'(?:make|gcc)'", done.stdout):
                return "does not compile"
            if test not in concerned:
                self.check_unchanged(test)
            if done is None:
                return f"caught by {test}, which did not end"
            if done.returncode < 0:
                return f"caught by {test}, which crashed"
            failed = re.search(r"^(?:FAILED|ERROR) \S+?::(\S+)", done.stdout, re.MULTILINE)
            return f"caught by {failed[1] if failed else test}"
        return "survived"

    def others(self, concerned: tuple[str, ...]) -> list[str]:
        """Return the names of all other tests that run something of the libraries."""
        names = {path.name for path in (self.directory / "tests/native").glob("test_*.py")}
        return sorted(names - OF_THE_FAKE - set(concerned))

    def check_unchanged(self, test: str) -> None:
        """End the program if a test fails without a mutation."""
        done = self.run(test)
        if done is None or done.returncode != 0:
            sys.exit(f"mutants: {test} fails without a mutation\n{done.stdout if done else 'it does not end'}")


def main() -> int:
    """Try mutants, print those that survive and the score; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="how many to draw beside the named ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(TESTS), metavar="FILE", help="draw from this file alone")
    parser.add_argument("--named", action="store_true", help="only the named ones")
    parser.add_argument("--drawn", action="store_true", help="only those that the seed draws")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument("--target", type=float, default=0.95)
    options = parser.parse_args()
    native = REPOSITORY / "native"
    mutants = [] if options.only or options.drawn else named_mutants(native)
    if not options.named:
        mutants += drawn_mutants(native, options.count, options.seed, options.only)
    if options.list:
        print("\n".join(map(str, mutants)))
        return 0
    began, verdicts = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Scratch(Path(folder))
        scratch.prepare()
        for test in sorted({test for mutant in mutants for test in TESTS[mutant.file]}):
            scratch.check_unchanged(test)
        for number, mutant in enumerate(mutants, 1):
            verdicts.append(scratch.verdict(mutant))
            print(f"{number}/{len(mutants)} {verdicts[-1]}: {mutant}", flush=True)
    tried = [verdict for verdict in verdicts if verdict != "does not compile"]
    caught = len(tried) - tried.count("survived")
    print(
        f"{caught} of {len(tried)} mutants caught: {caught / max(len(tried), 1):.1%} "
        f"({len(verdicts) - len(tried)} do not compile; seed {options.seed}; {time.monotonic() - began:.0f} s)"
    )
    return 0 if caught >= options.target * len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
