"""Pulls beside the worker. One that fails for any reason counts as failed, and its reason is reported."""

import pytest

from muster.core.turn.facts import PullOver
from muster.core.turn.pulls import ImagePull
from muster.core.values.errors import ImageError, StoreUnavailableError
from muster.service.queue.pulls import PullRunner
from tests.strategies.agents import make_agent


def over(pull_image):
    facts = []
    runner = PullRunner(pull_image, lambda run: run(), facts.append)
    runner.begin(ImagePull(make_agent("a1"), "debian:13"))
    return facts


def test_a_database_that_is_away_during_a_pull_is_a_failure_that_may_be_tried_again():
    def pull(*_):
        raise StoreUnavailableError("database failed: refused")

    (fact,) = over(pull)
    assert isinstance(fact, PullOver)
    assert isinstance(fact.error, ImageError)
    assert not fact.error.permanent
    assert "refused" in str(fact.error)


def test_a_pull_that_dies_of_a_fault_has_not_ended_well():
    facts = []

    def pull(*_):
        raise RuntimeError("a fault")

    runner = PullRunner(pull, lambda run: run(), facts.append)
    with pytest.raises(RuntimeError):
        runner.begin(ImagePull(make_agent("a1"), "debian:13"))
    assert facts[0].error is not None


def test_a_pull_that_ends_well_has_no_error():
    assert over(lambda *_: None)[0].error is None
