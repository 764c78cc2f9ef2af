"""Measure how containers share the time of a GPU by the compute lease, in real time.

    .venv/bin/python bench/fgpu_shares.py [--seconds 10] [--json]

The programs of tests/native/lease_user.c launch on a fake GPU, which needs no processor. Like users' programs, they
share the processors with each other and with all that runs on the machine. A program that gets no processor in its turn
loses that turn. The tests run the same programs by a virtual clock.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.native.lease_gpu import CASES, Gpu, compile_user, result

SECOND_NS = 1_000_000_000


def measure(name: str, gpu: Gpu, seconds: float) -> dict[str, Any]:
    when = [f"start={time.monotonic_ns() + SECOND_NS // 4}", f"run={int(seconds * SECOND_NS)}"]
    commands = [
        gpu.command(f"kernel-{i}", share, *options.split(), *when) for i, (share, options) in enumerate(CASES[name])
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    busy_ns = [result(process.communicate()[0])[0] for process in running]
    return {
        "case": name,
        "shares": [share / 1000 for share, _ in CASES[name]],
        "measured": [round(part / sum(busy_ns), 4) for part in busy_ns],
        "gpu_use": round(sum(busy_ns) / (seconds * SECOND_NS), 4),
    }


def show(rows: list[dict[str, Any]]) -> None:
    print("| containers | shares | measured | use of the GPU |")
    print("| --- | --- | --- | --- |")
    for row in rows:
        shares, measured = (" ".join(f"{part:.3f}" for part in row[key]) for key in ("shares", "measured"))
        print(f"| {row['case']} | {shares} | {measured} | {row['gpu_use']:.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-fgpu-") as folder:
        program = compile_user(Path(folder))
        rows = [
            measure(name, Gpu(program, Path(folder) / f"gpu-{number}"), arguments.seconds)
            for number, name in enumerate(CASES)
        ]
    if arguments.json:
        print(json.dumps({"cpus": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
