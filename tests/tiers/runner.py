"""Running a plan of tiers: stage by stage, all of them also when one fails, and then what came of each."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.tiers.plan import PROVISION, Stage, Tier
from tests.tiers.reports import VARIABLE, Record, read_record

_PLUGIN = "-p tests.tiers.reports"
_SLOWEST = 15
# Often only the end of a long log is kept, so it repeats what failed.
_FAILURE = re.compile(r"(FAILED|ERROR|E  ) ")
# Molecule says this of the playbook that failed, and then removes the hosts at length.
_MOLECULE_FAILED = "Executed: Failed"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MOST_FAILURE_LINES = 60


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    DID_NOT_RUN = "did not run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a tier; `reason` says why it did not run.

    `cpu_s` is the processor time of its processes, without what containers and daemons did for it.
    """

    tier: Tier
    verdict: Verdict
    duration_s: float = 0.0
    cpu_s: float = 0.0
    record: Record = field(default_factory=Record)
    failures: tuple[str, ...] = ()
    reason: str = ""


class Runner:
    """A runner of tiers by `dev`, a program that takes a tier's command. `obstacle` says why none can use an engine."""

    def __init__(self, dev: Sequence[str], obstacle: str = "") -> None:
        self._dev = dev
        self._obstacle = obstacle
        self._stopped = ""
        self._printing = threading.Lock()

    def run(self, plan: Sequence[Stage]) -> list[Outcome]:
        """Return the outcomes of all tiers in the plan's order."""
        outcomes: list[Outcome] = []
        with tempfile.TemporaryDirectory(prefix="muster-tiers-") as directory, ThreadPoolExecutor() as lanes:
            for stage in plan:
                running = [lanes.submit(self._lane, lane, Path(directory), index) for index, lane in enumerate(stage)]
                found = [outcome for lane in running for outcome in lane.result()]
                outcomes += found
                self._decide_what_can_follow(found)
        return outcomes

    def _decide_what_can_follow(self, found: Iterable[Outcome]) -> None:
        for outcome in found:
            if outcome.verdict is not Verdict.FAILED:
                continue
            if outcome.tier.is_gate:
                self._stopped = f"{outcome.tier.name} failed"
            if outcome.tier == PROVISION:
                self._obstacle = "this machine could not be provisioned"

    def _lane(self, tiers: Iterable[Tier], directory: Path, index: int) -> list[Outcome]:
        """Run one lane. The first of a stage prints as it goes, the others each tier's output at its end."""
        return [self._tier(tier, directory, prints_at_once=index == 0) for tier in tiers]

    def _tier(self, tier: Tier, directory: Path, *, prints_at_once: bool) -> Outcome:
        reason = self._stopped or (self._obstacle if tier.on_engine else "")
        if reason:
            return Outcome(tier, Verdict.DID_NOT_RUN, reason=reason)
        report = directory / f"{tier.name}.jsonl"
        plugins = f"{os.environ.get('PYTEST_ADDOPTS', '')} {_PLUGIN}".strip()
        environment = {**os.environ, VARIABLE: str(report), "PYTEST_ADDOPTS": plugins}
        if tier != PROVISION:
            environment["MUSTER_PROVISIONED"] = "1"
        began = time.monotonic()
        lines = [f"\ndev: == {tier.name}\n"]
        if prints_at_once:
            self._print(lines)
        with subprocess.Popen(
            ["nice", "-n", str(tier.niceness), *self._dev, *tier.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                if prints_at_once:
                    self._print([line])
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if not prints_at_once:
            self._print(lines)
        return Outcome(
            tier,
            Verdict.FAILED if process.returncode else Verdict.PASSED,
            time.monotonic() - began,
            used.ru_utime + used.ru_stime,
            read_record(report),
            failure_lines(lines) if process.returncode else (),
        )

    def _print(self, lines: Iterable[str]) -> None:
        with self._printing:
            sys.stdout.writelines(lines)
            sys.stdout.flush()


def failure_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines of a failed tier that say why: pytest's, or of another program its last before it failed."""
    plain = [_COLOUR.sub("", line).rstrip() for line in lines]
    failed = next((index for index, line in enumerate(plain) if _MOLECULE_FAILED in line), None)
    if failed is None and (found := tuple(line for line in plain if _FAILURE.match(line))):
        return found
    return tuple(line for line in plain[:failed] if line)[-_MOST_FAILURE_LINES:]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return what failed, the slowest tests, each tier's time and verdict, and how many tests passed and failed."""
    failures = [line for outcome in outcomes for line in outcome.failures][-_MOST_FAILURE_LINES:]
    durations: Mapping[str, float] = {t: s for outcome in outcomes for t, s in outcome.record.durations_s.items()}
    slowest = sorted(durations.items(), key=lambda item: -item[1])[:_SLOWEST]
    width = max((len(outcome.tier.name) for outcome in outcomes), default=0)
    passed = sum(len(outcome.record.passed) for outcome in outcomes)
    failed = sum(len(outcome.record.failed) for outcome in outcomes)
    return "\n".join(
        [
            *failures,
            "dev: == the slowest tests",
            *(f"{duration_s:7.1f} s  {test}" for test, duration_s in slowest),
            "dev: == tiers",
            *(f"{outcome.tier.name:{width}}  {_result(outcome)}" for outcome in outcomes),
            f"{passed} passed, {failed} failed",
        ]
    )


def _result(outcome: Outcome) -> str:
    if outcome.verdict is Verdict.DID_NOT_RUN:
        return f"{outcome.verdict}: {outcome.reason}"
    return f"{outcome.verdict}  {outcome.duration_s:5.0f} s, {outcome.cpu_s:5.0f} s of CPU"


@dataclass(frozen=True, slots=True)
class Processors:
    """The time for which this machine's processors were busy, and that for which they were there, since it booted."""

    busy_s: float
    all_s: float

    @classmethod
    def now(cls) -> "Processors":
        """Return both by the kernel's counters."""
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
        user, nice, system, idle, waiting, *interrupts = map(int, line.split()[1:8])
        busy = user + nice + system + sum(interrupts)
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        return cls(busy * tick_s, (busy + idle + waiting) * tick_s)

    def since(self, earlier: "Processors") -> str:
        """Say how busy they were meanwhile, with what containers and daemons did."""
        busy_s, all_s = self.busy_s - earlier.busy_s, self.all_s - earlier.all_s
        return f"{busy_s / 60:.0f} min of CPU; processors were busy for {busy_s / max(all_s, 0.01):.0%} of the time"


def exit_code(outcomes: Sequence[Outcome], *, in_ci: bool) -> int:
    """Return 0 where nothing failed; CI may leave out nothing, a developer's machine what it cannot run."""
    bad = {Verdict.FAILED, Verdict.DID_NOT_RUN} if in_ci else {Verdict.FAILED}
    return int(any(outcome.verdict in bad for outcome in outcomes))
