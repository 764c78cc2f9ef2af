"""Commits in the background of a process that ends."""

import subprocess
import sys

_ENDS_WITH_FIVE_COMMITS = """
import os
import threading
import time
from dataclasses import replace
from muster.service.images.commits_under_way import CommitsUnderWay
from tests.contract.test_images import IMAGE, MADE

def say(word):
    # In one piece: two threads write at once.
    os.write(1, f"{word}\\n".encode())

def make(progressed):
    begun.append(1)
    closed.wait()
    say("made")
    return MADE

begun, closed = [], threading.Event()
commits = CommitsUnderWay()
for number in range(5):
    commits.begin(replace(IMAGE, tag=str(number)), make, lambda: say("given up"))
while len(begun) < 2:
    time.sleep(0.01)
commits.close()
closed.set()
"""


def test_at_the_end_of_a_process_no_commit_begins_and_names_are_free_again():
    done = subprocess.run([sys.executable, "-c", _ENDS_WITH_FIVE_COMMITS], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["given up"] * 3 + ["made"] * 2
    assert not done.stderr
