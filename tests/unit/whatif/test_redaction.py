"""Texts name no sessions that their reader may not see."""

import pytest

from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.reasons import behind, preempting
from muster.core.whatif.counterfactual import what_would_help
from muster.core.whatif.redaction import redacted
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW


@pytest.mark.parametrize("code", WaitCode)
def test_no_wait_names_a_session_that_may_not_be_seen(code):
    wait = Wait(code, "it waits for secret-plan", waits_for=("hers", "mine"), until=5.0, position=3)
    wait_shown = redacted(wait, {"hers"})
    assert "secret-plan" not in str(wait_shown)
    assert (wait_shown.waits_for, wait_shown.until, wait_shown.position, wait_shown.code) == (("mine",), 5.0, 3, code)
    assert wait_shown.message


def test_reasons_about_other_sessions_do_not_name_them():
    hers = make_session(name="secret-plan")
    for wait in (behind(hers, delays=True), behind(hers, delays=False), preempting([hers])):
        assert "secret-plan" in wait.message
        assert "secret-plan" not in redacted(wait, {hers.id}).message


def test_who_waits_in_a_queue_without_backfill_is_not_told_that_they_would_delay_others():
    hers = make_session(name="secret-plan")
    assert "delay" not in redacted(behind(hers, delays=False), {hers.id}).message


@pytest.mark.parametrize(
    ("time_limit", "requeue", "other"),
    [
        (None, False, "another user's session ends"),
        ("1h", False, "wait until other users' sessions end by their time limits"),
        (None, True, "other users' sessions start anew elsewhere"),
    ],
)
def test_a_suggestion_without_names_says_all_that_has_to_be_done(time_limit, requeue, other):
    """The session is held: that another one ends does not let it start by itself."""
    agents = (make_agent("a1", cpus=4), make_agent("a2", cpus=8))
    hers = make_session(1, name="secret-plan", cpu=2, time_limit=time_limit, requeue=requeue)
    full = [] if requeue else [placed_on(make_session(2, cpu=4), "a1")]
    mine = make_session(3, cpu=8, hold=True, held_by="ada")
    found = what_would_help(Snapshot(agents, (placed_on(hers, "a2"), *full, mine), NOW), mine)
    names = {suggestion.nameless for suggestion in found if "secret-plan" in suggestion.text}
    assert f"release it, and {other}" in names


def test_a_wait_for_sessions_that_may_be_seen_stays_as_it_is():
    wait = behind(make_session(name="mine"), delays=True)
    assert redacted(wait, {"somebody-elses"}) is wait
