"""Measure the time that the fGPU libraries add to an allocation with its release, and to a launch, on the fake driver.

    .venv/bin/python bench/fgpu.py [--rounds 7] [--batches 300] [--json]

Everything is built into a temporary folder. In each round the uncapped driver, the cap without a lease, and the cap
with an uncontended lease take turns, each in a process of its own. A process reports the median of its batches of 1,000
calls. Printed are medians over the rounds; the added time is the median of the rounds' differences. The fake driver
does no work, so the added time is the libraries' own, but the ratios mean little for a real GPU.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CAP_BYTES = 2 << 30
CONTEXT_BYTES = 256 << 20
TARGET_NS = {("alloc_free", "none"): 200, ("alloc_free", "fair"): 200, ("launch", "none"): 25, ("launch", "fair"): 60}
CALLS = {"alloc_free": "alloc + free", "launch": "launch"}
MODES = {"none": "cap, no lease", "fair": "cap and lease"}


@dataclass(frozen=True)
class Build:
    driver: Path
    proxies: Path
    limits: Path
    client: Path


def make(source: str, **variables: Path) -> None:
    words = [f"{name}={value}" for name, value in variables.items()]
    subprocess.run(["make", "-s", "-C", REPOSITORY / source, *words], check=True)


def build(folder: Path) -> Build:
    """Build the fake driver, the libraries in front of it, the client, and the files of a kernel's container."""
    made = Build(folder / "driver", folder / "proxies", folder / "limits", folder / "client")
    make("tests/fake_driver", OUT=made.driver, STATE=folder / "devices", VISIBLE=folder / "visible")
    make("native", OUT=made.proxies, LIMITS=made.limits, STATE=folder / "fgpu", DRIVER_DIR=made.driver)
    subprocess.run(
        ["gcc", "-O2", "-I", REPOSITORY / "native/abi", "-o", made.client, REPOSITORY / "bench/fgpu_client.c", "-ldl"],
        check=True,
    )
    (folder / "fgpu/lease").mkdir(parents=True)
    (folder / "fgpu/usage").touch()
    (folder / "fgpu/lease" / device_of(made)).touch()
    return made


def device_of(made: Build) -> str:
    status = subprocess.run([made.driver / "fakegpu", "status"], check=True, capture_output=True, text=True)
    return str(json.loads(status.stdout)["devices"][0]["uuid"])


def write_limits(made: Build, mode: str) -> None:
    lines = [
        "version 1",
        "kernel 00000000-0000-4000-8000-000000000001",
        f"compute {mode}",
        f"context_bytes {CONTEXT_BYTES}",
        f"gpu {device_of(made)} {CAP_BYTES} 250",
    ]
    made.limits.write_text("\n".join(lines) + "\n")


def measure(made: Build, libraries: Path, batches: int) -> dict[str, float]:
    """Return the nanoseconds of each call, with the libraries of one directory."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(libraries)}
    command = [str(made.client), str(batches)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def measured_rounds(made: Build, rounds: int, batches: int) -> list[dict[str, dict[str, float]]]:
    results = []
    for _ in range(rounds):
        this = {"uncapped": measure(made, made.driver, batches)}
        for mode in MODES:
            write_limits(made, mode)
            this[mode] = measure(made, made.proxies / "lib", batches)
        results.append(this)
    return results


def figures(rounds: Sequence[dict[str, dict[str, float]]]) -> list[dict[str, object]]:
    rows = []
    for (call, mode), target_ns in TARGET_NS.items():
        uncapped = statistics.median(this["uncapped"][call] for this in rounds)
        capped = statistics.median(this[mode][call] for this in rounds)
        added = [this[mode][call] - this["uncapped"][call] for this in rounds]
        rows.append(
            {
                "call": call,
                "mode": mode,
                "uncapped_ns": round(uncapped, 1),
                "capped_ns": round(capped, 1),
                "added_ns": round(statistics.median(added), 1),
                "added_min_ns": round(min(added), 1),
                "added_max_ns": round(max(added), 1),
                "ratio": round(capped / uncapped, 2),
                "target_ns": target_ns,
            }
        )
    return rows


def show(rows: Sequence[dict[str, object]]) -> None:
    print("| call | with | uncapped ns | capped ns | ratio | added ns (min to max) | target |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        missed = "" if float(str(row["added_ns"])) <= float(str(row["target_ns"])) else ": **missed**"
        print(
            f"| {CALLS[str(row['call'])]} | {MODES[str(row['mode'])]} | {row['uncapped_ns']} | {row['capped_ns']} "
            f"| {row['ratio']} | {row['added_ns']} ({row['added_min_ns']} to {row['added_max_ns']}) "
            f"| {row['target_ns']}{missed} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if min(options.rounds, options.batches) < 1:
        sys.exit("fgpu.py: --rounds and --batches take 1 or more")
    with tempfile.TemporaryDirectory(prefix="bench-fgpu-") as folder:
        rows = figures(measured_rounds(build(Path(folder)), options.rounds, options.batches))
    if options.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "rows": rows}))
    else:
        show(rows)


if __name__ == "__main__":
    main()
