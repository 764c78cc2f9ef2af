"""`muster pass`, killed by SIGKILL just before its n-th commit."""

import itertools
import os
import signal
import sys
from contextlib import contextmanager

from muster.service.control_node import opened, work_once
from muster.settings import load_settings
from muster.store.store import Store

last = int(sys.argv[1])
commits = itertools.count(1)
writing = Store._writing


@contextmanager
def dying(self):
    with writing(self) as connection:
        yield connection
        if next(commits) == last:
            os.kill(os.getpid(), signal.SIGKILL)


settings = load_settings()
with opened(settings) as shell:
    Store._writing = dying
    work_once(settings, shell)
