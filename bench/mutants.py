"""Change the fGPU libraries in small ways, and count how many of these mutants the native tests catch.

    .venv/bin/python -m bench.mutants [--count 60] [--seed 1] [--only cuda_vmm.c] [--named | --drawn] [--list]

A mutant negates one condition, drops one call, or swaps an operator or a constant of native/*.c. Besides those that the
seed draws from all files there are NAMED ones, which once survived. Each is built in a scratch directory, where those
tests run that reach its line, until one fails. A mutant that no test notices has survived. Each verdict is printed as
it is found. The score is the part that was caught; mutants that do not compile are left out of it. EQUIVALENT ones,
which no test could notice, are neither made nor counted. The exit status is 1 below --target.
"""

import argparse
import math
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.support.mutant_tests import REPOSITORY, Mutant, Scratch, Trial

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
        "each launch reads the lease",
        "lease.c",
        "    atomic_store(&lease->gate.grant, lease->table->grant);\n",
        "",
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
    ("a count of drains goes wrong", "cuda_capture.c", "        drains++;\n", "        drains--;\n"),
    (
        "a primary context ends amid a drain",
        "cuda_context.c",
        "        launch_context_ends(primary);\n",
        "        (void)0;\n",
    ),
    (
        "a descriptor too many has a byte of the next share",
        "shares.c",
        "        uint32_t byte = share->exports < EXPORTS ? share->exports++ : EXPORTS - 1;\n",
        "        uint32_t byte = share->exports <= EXPORTS ? share->exports++ : EXPORTS - 1;\n",
    ),
    (
        "memsets of a graph run without a turn",
        "cuda_graph_memory.c",
        "    if (type == CU_GRAPH_NODE_TYPE_MEMSET)\n        return add_context(context_of_memset(node), memory);\n",
        "    (void)context_of_memset;\n",
    ),
    (
        "memory that others have open is free",
        "cuda_memory.c",
        "    if (allocation->share != 0)\n        shares_drop(allocation->share);\n    else\n",
        "",
    ),
    (
        "the launch of a graph never ends for other threads",
        "cuda_launch.c",
        "    result = real(executable, stream);\n    fgpu_after_graph_launch();\n",
        "    result = real(executable, stream);\n",
    ),
    (
        "a capture by the oldest function is noted as another stream's",
        "cuda_capture.c",
        "    BEGIN(stream, REAL(cuStreamBeginCapture)(stream));\n",
        "    BEGIN(CU_STREAM_PER_THREAD, REAL(cuStreamBeginCapture)(stream));\n",
    ),
    (
        "a graph that is refused stays charged on another GPU",
        "cuda_graph_memory.c",
        "            measure(memory);\n            pools_unlock();\n",
        "            pools_unlock();\n",
    ),
    (
        "looking for a memset's GPU keeps its context",
        "cuda_graph_memory.c",
        "    REAL(cuDevicePrimaryCtxRelease_v2)(device);\n",
        "",
    ),
    (
        "a launch that waits needs no credit",
        "lease.c",
        "            if (atomic_fetch_sub(&gate->credits, 1) > 0) {\n",
        "            if (atomic_fetch_sub(&gate->credits, 1) >= 0) {\n",
    ),
    (
        "a lease is read without its lock",
        "lease_file.c",
        "    lock(file->descriptor);\n    /* A file that was grown",
        "    (void)lock;\n    /* A file that was grown",
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
# Lines whose change no program can notice: messages, pauses of a loop that waits anyway, and what the Linux kernel
# closes at the end. A lock that is not taken, or an order of writes that is not kept, is a race, for which the
# sanitizers' tests and those that kill processes look.
SKIPPED = re.compile(
    r"^\s*(?://|/\*|\*|#|static_assert|fprintf|free\(|close\(|munmap|nanosleep|sched_yield|pause_for|atomic_signal_fence|"
    r"pthread_(?:detach|sigmask|mutex_lock|setcancelstate)|sigfillset|(?:vmm|pools)_lock)|\\$"
)
# By file and changed line: why no test could notice the change.
EQUIVALENT = {
    ("allocations.c", "if (allocations->count * 4 <= allocations->room * 3)"): "the table grows one entry later",
    (
        "cuda_pool.c",
        "uint64_t bytes = charge_size(request->bytes), block = (bytes + POOL_BLOCK + 1) / POOL_BLOCK * POOL_BLOCK;",
    ): "what the pool does not take of a reservation is released",
    ("cuda_pool.c", "if (block > bytes && usage_reserve(gpu, block) == USAGE_GRANTED)"): "both reserve the same",
    ("charge.c", "if (charge->pause_ns <= 100000000)"): "no power of two milliseconds is 100",
    (
        "charge.c",
        "if (bytes >= charge->bytes && usage_reserve(charge->gpu, bytes - charge->bytes) != USAGE_GRANTED)",
    ): "what is charged already has room",
    (
        "cuda_lookup.c",
        "if (best == NULL || hook->flag > best->flag || (hook->flag == best->flag && hook->version >= best->version))",
    ): "no two hooks are of one name, version and kind of stream",
    (
        "cuda_memory.c",
        "return milli == 1000 || size >= UINT64_MAX / 1000 ? size : (size * 1000 + milli - 1) / milli;",
    ): "that is odd, and no size is",
    ("lease_table.c", "table->changes--;"): "the number is only compared with an earlier one",
    (
        "lease_turn.c",
        "if (lease->batch_credits != 0 && credits >= 2 * lease->batch_credits)",
    ): "it sets what is there already",
    ("lease_turn.c", "lease->credits_given += credits - (left >= 0 ? left : 0);"): "it subtracts 0",
    (
        "limits.c",
        "while (length < room && (got = read(file, text + length, room + length)) > 0)",
    ): "a file is read at once",
    ("pools.c", "atomic_store(&freed, true);"): "all pools are measured once more",
    ("pools.c", "return 1;"): "a pool that grows for a single byte is measured, and refused, afterwards",
    (
        "pools.c",
        "if (bytes >= pool->charged && usage_take(pool->gpu, bytes - pool->charged) != USAGE_GRANTED)",
    ): "nothing is taken if both are the same",
    (
        "shares.c",
        "uint64_t number = (uint64_t)table->seed * USAGE_SHARES - (uint64_t)(share - table->share);",
    ): "each share has a place of its own either way",
    ("usage.c", "for (uint32_t i = 0; i <= table->slots_used; i++) {"): "the slot after the last one is free",
    ("usage.c", "for (uint32_t i = 0; i <= table->slots_used; i++)"): "the slot after the last one is free",
    ("shares.c", "for (uint32_t byte = 0; byte <= share->exports; byte++) {"): "nobody has a lock on that byte",
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
    files = [native / only] if only else sorted(native.glob("*.c"))
    everything = [mutant for path in files for mutant in mutants_of(path)]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def main() -> int:
    """Try mutants, print those that survive and the score; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="how many to draw beside the named ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="FILE", help="draw from this file alone")
    parser.add_argument("--named", action="store_true", help="only the named ones")
    parser.add_argument("--drawn", action="store_true", help="only those that the seed draws")
    parser.add_argument("--list", action="store_true", help="print the mutants and try none")
    parser.add_argument(
        "--within", type=float, default=math.inf, metavar="S", help="try each with tests of so many seconds at most"
    )
    parser.add_argument("--target", type=float, default=0.95)
    options = parser.parse_args()
    native = REPOSITORY / "native"
    mutants = [] if options.only or options.drawn else named_mutants(native)
    if not options.named:
        mutants += drawn_mutants(native, options.count, options.seed, options.only)
    if options.list:
        print("\n".join(map(str, mutants)))
        return 0
    began = time.monotonic()
    verdicts: list[str] = []

    def report(mutant: Mutant, verdict: str) -> None:
        verdicts.append(verdict)
        print(f"{len(verdicts)}/{len(mutants)} {verdict}: {mutant}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Scratch(Path(folder))
        scratch.prepare()
        os.chdir(folder)
        sys.path.insert(0, folder)
        words = ["-q", "-s", "-c", "tests/pytest.ini", "--rootdir=.", f"--basetemp={folder}/tmp", "tests/native"]
        pytest.main(words, plugins=[Trial(scratch, mutants, options.within, report)])
    tried = [verdict for verdict in verdicts if verdict != "does not compile"]
    caught = sum(verdict.startswith("caught") for verdict in tried)
    print(
        f"{caught} of {len(tried)} mutants caught: {caught / max(len(tried), 1):.1%} "
        f"({len(verdicts) - len(tried)} do not compile; seed {options.seed}; {time.monotonic() - began:.0f} s)"
    )
    return 0 if caught >= options.target * len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
