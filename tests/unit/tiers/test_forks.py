"""Tests in forks of one process: each runs once, and what came of it is said as if there were no forks."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.tiers.reports import read_record

ROOT = Path(__file__).parents[3]
TESTS = """
import os
import signal
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent

@pytest.mark.parametrize("number", range(40))
def test_passes(number):
    with (HERE / "numbers").open("a") as file:
        print(number, file=file)

def test_warns():
    warnings.warn("look out")

def test_fails():
    print("said before it failed")
    assert [1, 2] == [1, 3]

def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
"""
pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester, monkeypatch, tmp_path):
    """Runs the tests above in two forks."""
    pytester.makepyfile(test_them=TESTS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("MUSTER_TIER_REPORT", str(tmp_path / "report"))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(*arguments):
        plugins = ("tests.running.forks", "tests.tiers.reports", "no:schemathesis")
        return pytester.runpytest_subprocess(*(f"-p{name}" for name in plugins), "--forks=2", *arguments)

    return run


def test_each_test_runs_once_and_one_that_kills_its_worker_fails_alone(run, pytester, tmp_path):
    done = run()
    done.assert_outcomes(passed=41, failed=2, warnings=1)
    numbers = Counter((pytester.path / "numbers").read_text().split())
    assert numbers == Counter(map(str, range(40)))
    done.stdout.fnmatch_lines(["*said before it failed*"])
    done.stdout.fnmatch_lines(["*look out*"])
    done.stdout.fnmatch_lines_random(["FAILED test_them.py::test_dies*", "FAILED test_them.py::test_fails - *assert*"])
    assert "ended with -9 in this test" in done.stdout.str()
    record = read_record(tmp_path / "report")
    assert (len(record.passed), record.failed) == (41, {"test_them.py::test_fails", "test_them.py::test_dies"})


MEETING = """
import os
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent

@pytest.fixture(scope="session", autouse=True)
def worker(tmp_path_factory):
    with (HERE / "directories").open("a") as file:
        print(tmp_path_factory.mktemp("own"), file=file)
    while len((HERE / "directories").read_text().split()) < 2:
        time.sleep(0.01)
    yield
    (HERE / f"ended-{os.getpid()}").touch()

# A worker has two at the most while it waits for the other.
@pytest.mark.parametrize("number", range(4))
def test_passes(number):
    pass
"""


def test_each_worker_has_its_own_directory_and_ends_its_fixtures(run, pytester):
    pytester.makepyfile(test_them=MEETING)
    run().assert_outcomes(passed=4)
    directories = (pytester.path / "directories").read_text().split()
    assert len(set(directories)) == 2
    assert len(list(pytester.path.glob("ended-*"))) == 2


def test_after_a_failure_nothing_is_handed_out_where_that_is_wanted(run):
    done = run("--forks=1", "-x", "test_them.py::test_fails", "test_them.py::test_passes")
    assert done.ret == 1
    # With the failing one it was given these.
    done.assert_outcomes(passed=7, failed=1)


UNENDING = """
import os
import signal

import pytest

@pytest.mark.parametrize("number", range(4))
def test_ends_only_where_it_is_not_the_first(number):
    try:
        os.mkdir("first")
    except FileExistsError:
        # Opens as soon as the other side does.
        open("ready").close()
        pytest.exit("enough")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open("ready", "w").close()
    while True:
        signal.pause()
"""


def test_a_worker_that_heeds_no_signal_does_not_outlive_the_run(run, pytester):
    pytester.makepyfile(test_them=UNENDING)
    os.mkfifo(pytester.path / "ready")
    done = run()
    assert done.ret != 0
    assert "failed outside its tests" in done.stdout.str() + done.stderr.str()
