"""`muster pass`, killed by SIGKILL just before its n-th commit."""

import itertools
import os
import signal
from contextlib import contextmanager

import pytest

from muster.store.store import Store
from tests.control_node import ControlNode
from tests.running.forked_cli import run_forked


def die_at(node: ControlNode, commit: int) -> bool:
    """Make a pass whose process dies at that commit. Return whether the pass got so far."""

    def prepare() -> None:
        commits = itertools.count(1)
        writing = Store._writing

        @contextmanager
        def dying(self):
            with writing(self) as connection:
                yield connection
                if next(commits) == commit:
                    os.kill(os.getpid(), signal.SIGKILL)

        pytest.MonkeyPatch().setattr(Store, "_writing", dying)

    done = run_forked(("pass",), node.environment, "", 120, prepare)
    assert done.code in {0, -signal.SIGKILL}, done.err
    return done.code == -signal.SIGKILL
