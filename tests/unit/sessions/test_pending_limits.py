"""Limits of what may wait, while others submit and passes place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.lifecycle import transitions
from muster.core.model.session import Session, SessionState
from muster.core.scheduling.schedule import schedule
from muster.core.values.errors import BadInputError
from muster.service.sessions.commands import SessionCommands
from muster.service.specs.scope import SessionScope
from muster.settings import Settings
from muster.store.sessions.submissions import Submission, SubmittedBeforeError
from muster.store.store import Store
from tests.strategies.agents import make_agent
from tests.strategies.values import NOW


class _StoreBesideSubmits(Store):
    """A store in which something happens between a submit's look at the queue and what it adds."""

    before_add: Callable[[], None] | None = None

    def add(self, *arguments: Any) -> None:
        if self.before_add is not None:
            happens, self.before_add = self.before_add, None
            happens()
        super().add(*arguments)


@pytest.fixture
def busy(tmp_path: Path) -> _StoreBesideSubmits:
    return _StoreBesideSubmits(f"sqlite:///{tmp_path / 'muster.db'}")


@pytest.fixture
def submit(busy: Store, tmp_path: Path) -> Callable[[], list[Session]]:
    limits = {"users": {"ada": {"pending": {"sessions": 2}}}}
    settings = Settings.model_validate({"state_dir": tmp_path, "catalog": tmp_path / "images.yml", "limits": limits})
    return lambda: SessionCommands(SessionScope(busy, settings), lambda: NOW).submit({}, "ada")


def test_two_submits_at_once_do_not_exceed_a_limit_that_each_would_keep_to(busy, submit):
    submit()
    busy.before_add = submit
    with pytest.raises(BadInputError, match="user ada may have 2 sessions waiting, has 2 sessions"):
        submit()
    assert len(busy.search()) == 2


def test_a_submit_that_is_repeated_before_its_answer_is_not_refused_for_what_it_has_queued_itself(busy, tmp_path):
    limits = {"users": {"ada": {"pending": {"sessions": 1}}}}
    settings = Settings.model_validate({"state_dir": tmp_path, "catalog": tmp_path / "images.yml", "limits": limits})
    commands = SessionCommands(SessionScope(busy, settings), lambda: NOW)
    once = Submission("ada", "key", "the same", NOW)
    (queued,) = commands.submit({}, "ada", 1, once)
    with pytest.raises(SubmittedBeforeError) as repeated:
        commands.submit({}, "ada", 1, once)
    assert repeated.value.session_ids == (queued.id,)
    with pytest.raises(BadInputError, match="user ada may have 1 session waiting"):
        commands.submit({}, "ada", 1, Submission("ada", "another", "the same", NOW))


def test_a_session_that_a_pass_has_placed_since_counts_no_more_among_those_that_wait(busy, submit):
    (first,) = submit()
    busy.agents.save([make_agent("a1", cpus=1)])

    def others() -> None:
        snapshot = busy.snapshot(NOW)
        busy.apply(transitions.place(schedule(snapshot), snapshot))
        submit()

    busy.before_add = others
    submit()
    assert [session.id for session in busy.search(states=[SessionState.SCHEDULED])] == [first.id]
    assert len(busy.search(states=[SessionState.PENDING])) == 2
