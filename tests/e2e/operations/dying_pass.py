"""`muster pass`, killed by SIGKILL just before its n-th commit."""

import itertools
import os
import signal

import sqlalchemy as sa

from tests.control_node import ControlNode
from tests.running.forked_cli import run_forked


def die_at(node: ControlNode, commit: int) -> bool:
    """Make a pass whose process dies at that commit. Return whether the pass got so far."""

    def prepare() -> None:
        commits = itertools.count(1)

        @sa.event.listens_for(sa.Engine, "commit")
        def _committing(connection: sa.Connection) -> None:
            if connection.get_execution_options().get("writing") and next(commits) == commit:
                os.kill(os.getpid(), signal.SIGKILL)

    done = run_forked(("pass",), node.environment, "", 120, prepare)
    assert done.code in {0, -signal.SIGKILL}, done.err
    return done.code == -signal.SIGKILL
