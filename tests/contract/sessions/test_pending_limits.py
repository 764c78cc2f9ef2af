"""Limits of what may wait, when many submit at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from muster.core.values.errors import BadInputError
from muster.service.sessions.commands import SessionCommands
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from tests.strategies.values import NOW

AT_ONCE, MOST = 8, 3


def test_of_many_submits_at_once_no_more_are_queued_than_may_wait(url, open_store, tmp_path):
    limits = {"users": {"*": {"pending": {"sessions": MOST}}}}
    settings = Settings.model_validate({"state_dir": tmp_path, "catalog": tmp_path / "images.yml", "limits": limits})
    barrier = threading.Barrier(AT_ONCE)

    def submit(_number: int) -> None:
        commands = SessionCommands(SessionScope(open_store(url), settings), lambda: NOW)
        barrier.wait()
        with suppress(BadInputError):
            commands.submit({}, "ada")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(submit, range(AT_ONCE)))
    assert len(open_store(url).search()) == MOST
