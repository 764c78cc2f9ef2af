"""One pass at a time, whatever becomes of the process that makes it."""

import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.errors import PassInProgressError
from muster.store.lock import exclusive

ROOT = Path(__file__).parents[2]
HOLDER = """
import sys
from pathlib import Path
from muster.store.lock import exclusive
with exclusive(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "pass.lock"


def holder(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_holder_is_refused_and_told_why(path):
    second = exclusive(path, wait=False)
    with exclusive(path, wait=False), pytest.raises(PassInProgressError, match="another pass"):
        second.__enter__()
    with exclusive(path, wait=False):
        pass


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_a_lock_ends_with_its_process(path, end):
    process = holder(path)
    with pytest.raises(PassInProgressError), exclusive(path, wait=False):
        pass
    if end == "kill":
        process.kill()
    process.communicate()
    with exclusive(path, wait=False):
        pass


def test_one_that_waits_gets_the_lock_when_it_is_free(path):
    process = holder(path)
    process.stdin.close()
    with exclusive(path, wait=True):
        assert process.wait() == 0
    process.stdout.close()
