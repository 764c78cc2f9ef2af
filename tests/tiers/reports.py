"""A pytest plugin that records how each test of a tier went, and the reader of its record."""

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

VARIABLE = "MUSTER_TIER_REPORT"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Append a phase of a test to the tier's record; of parallel runs, only where their results come together."""
    path = os.environ.get(VARIABLE)
    if path and "PYTEST_XDIST_WORKER" not in os.environ:
        _append(path, report.nodeid, report.outcome, report.duration)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Append a test file that could not be read."""
    path = os.environ.get(VARIABLE)
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        _append(path, report.nodeid, report.outcome, 0.0)


def _append(path: str, test: str, outcome: str, duration_s: float) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "duration_s": duration_s}) + "\n")


@dataclass(frozen=True, slots=True)
class Record:
    """The tests of a tier: those that passed, those that failed, and how long each took with its fixtures."""

    passed: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    durations_s: Mapping[str, float] = field(default_factory=dict)


def read_record(path: Path) -> Record:
    """Return what the plugin wrote; a tier without pytest has an empty record."""
    durations_s: dict[str, float] = defaultdict(float)
    outcomes: dict[str, set[str]] = defaultdict(set)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        entry = json.loads(line)
        durations_s[entry["test"]] += entry["duration_s"]
        outcomes[entry["test"]].add(entry["outcome"])
    failed = frozenset(test for test, seen in outcomes.items() if "failed" in seen)
    passed = frozenset(test for test, seen in outcomes.items() if seen == {"passed"})
    return Record(passed, failed, dict(durations_s))
